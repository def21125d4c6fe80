"""What a sweep of all heads costs compared with single requests, and who waits for it.

    python benchmarks/sweep.py

One replica in this process; `--url` asks a service over HTTP instead. In every round a sweep and
one request with a gate for each head take turns, with a text that no earlier one had; the figure
is the median of the rounds' own ratios. Afterwards short texts are encoded one by one, alone and
next to sweeps of the longest text, and the latencies of both are shown.

Of the arithmetic, L layers, a sweep takes (L + 1) / 2L and less: each head's own layer begins
behind the attention.
"""

import argparse
import asyncio
import os
import random
import statistics
import time
from contextlib import AsyncExitStack
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import httpx
from starlette.types import ASGIApp

from service.edge.door import Door
from service.replica import Replica
from service.settings import Settings

WORDS = "time year people way day man thing woman life child world school state family".split()
CASES = {"12 words": 12, "100 words": 100, "250 words": 250}
ROUNDS, LONE = 5, 60


def application(replica: Replica) -> ASGIApp:
    """Return a replica as connections reach it."""

    async def scrape(openmetrics: bool) -> bytes:
        return replica.page(openmetrics)

    return Door(replica, scrape)


def text(words: int) -> str:
    """Return a text that never was before."""
    return " ".join(random.choices(WORDS, k=words))


async def seconds(client: httpx.AsyncClient, body: dict[str, Any]) -> float:
    """Return how long one request takes."""
    start = time.perf_counter()
    answer = await client.post("/v1/encode", json=body)
    took = time.perf_counter() - start
    answer.raise_for_status()
    return took


async def round_of(
    client: httpx.AsyncClient, words: int, heads: list[tuple[int, int]]
) -> tuple[float, float, float]:
    """Return the seconds of a sweep, of single requests, and of one with all as inputs."""
    given = text(words)
    gates = [[{"layer": layer, "head": head, "scale": 0.0}] for layer, head in heads]
    sweep = await seconds(client, {"inputs": [given], "sweep": "heads"})
    single = sum([await seconds(client, {"inputs": [given], "gates": each}) for each in gates])
    inputs = [given, *({"text": given, "gates": each} for each in gates)]
    return sweep, single, await seconds(client, {"inputs": inputs})


async def lone(client: httpx.AsyncClient) -> list[float]:
    """Return the milliseconds of short texts, one by one."""
    took = [await seconds(client, {"inputs": [text(12)]}) for _ in range(LONE)]
    return sorted(1000 * each for each in took)


async def beside(client: httpx.AsyncClient, words: int) -> list[float]:
    """Return the same while sweeps of a long text follow each other."""

    async def sweeps() -> None:
        while True:
            await seconds(client, {"inputs": [text(words)], "sweep": "heads"})

    flood = asyncio.create_task(sweeps())
    await asyncio.sleep(0.5)
    try:
        return await lone(client)
    finally:
        flood.cancel()


def percentiles(took: list[float]) -> str:
    """Return the middle and the 95th of some sorted milliseconds."""
    return f"p50 {statistics.median(took):.0f} ms, p95 {took[int(len(took) * 0.95)]:.0f} ms"


async def measure(client: httpx.AsyncClient, rounds: int) -> None:
    """Print a row for each case, then the latencies."""
    info = (await client.get("/info")).json()
    heads = [(i, j) for i in range(info["layers"]) for j in range(info["heads"])]
    print(f"{info['numerics']}, {info['layers']} layers of {info['heads']} heads")
    print("| text | sweep, ms | of single requests | of one request with all |")
    for name, words in CASES.items():
        await round_of(client, words, heads[:2])  # warm
        took = [await round_of(client, words, heads) for _ in range(rounds)]
        of_single = statistics.median(sweep / single for sweep, single, _ in took)
        of_one = statistics.median(sweep / one for sweep, _, one in took)
        sweep = statistics.median(sweep for sweep, *_ in took)
        print(f"| {name} | {1000 * sweep:.0f} | {of_single:.2f} | {of_one:.2f} |", flush=True)
    longest = max(CASES.values())
    print(f"a short text alone: {percentiles(await lone(client))}")
    print(f"next to sweeps of {longest} words: {percentiles(await beside(client, longest))}")


async def main(url: str | None, rounds: int) -> None:
    """Measure a service, or a replica of this process."""
    async with AsyncExitStack() as stack:
        transport = None
        if url is None:
            settings = Settings(device="cpu", canary_seconds=60)
            replica = await Replica.start(settings, "benchmark-1")
            stack.push_async_callback(replica.close)
            transport = httpx.ASGITransport(application(replica))
        client = httpx.AsyncClient(
            transport=transport, base_url=url or "http://benchmark", timeout=60
        )
        await measure(await stack.enter_async_context(client), rounds)


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--url")
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    asyncio.run(main(arguments.url, arguments.rounds))
