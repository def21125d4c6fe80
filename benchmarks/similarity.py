"""What an explained similarity costs compared with encoding the same texts.

    python benchmarks/similarity.py

One replica in this process, asked without HTTP's connections. In every round each kind of request
takes its turn, with texts that no earlier one had; the figure is the median of the rounds' own
ratios to POST /v1/encode, whose answer is the pooled vectors of all texts as JSON.
"""

import argparse
import asyncio
import os
import random
import statistics
import time
from typing import Any

os.environ["CUDA_VISIBLE_DEVICES"] = ""

import httpx
from starlette.types import ASGIApp

from service.edge.door import Door
from service.replica import Replica
from service.settings import Settings

WORDS = "time year people way day man thing woman life child world school state family".split()
CASES = {  # words of each text; texts on the right
    "1 with 1, 12 words": (12, 1),
    "1 with 32, 12 words": (12, 32),
    "1 with 8, 100 words": (100, 8),
    "1 with 1, 250 words": (250, 1),
}
KINDS: dict[str, dict[str, Any]] = {
    "full": {},
    "full, base64": {"encoding": "base64"},
    "words": {"level": "word"},
    "top": {"form": "top"},
    "score": {"form": "score"},
}
ROUNDS = 21


def application(replica: Replica) -> ASGIApp:
    """Return a replica as connections reach it."""

    async def scrape(openmetrics: bool) -> bytes:
        return replica.page(openmetrics)

    return Door(replica, scrape)


def texts(words: int, count: int) -> list[str]:
    """Return so many texts that never were before."""
    return [" ".join(random.choices(WORDS, k=words)) for _ in range(count)]


async def seconds(client: httpx.AsyncClient, path: str, body: dict[str, Any]) -> float:
    """Return how long one request takes."""
    start = time.perf_counter()
    answer = await client.post(path, json=body)
    took = time.perf_counter() - start
    answer.raise_for_status()
    return took


async def round_of(client: httpx.AsyncClient, words: int, right: int) -> dict[str, float]:
    """Return the seconds of each kind, in a new order."""
    kinds = ["encode", *KINDS]
    random.shuffle(kinds)
    took: dict[str, float] = {}
    for kind in kinds:
        first, *rest = texts(words, right + 1)
        if kind == "encode":
            took[kind] = await seconds(client, "/v1/encode", {"inputs": [first, *rest]})
        else:
            body = {"left": first, "right": rest, **KINDS[kind]}
            took[kind] = await seconds(client, "/v1/similarity", body)
    return took


async def main(rounds: int) -> None:
    """Print a row for each case."""
    replica = await Replica.start(Settings(device="cpu", canary_seconds=60), "benchmark-1")
    transport = httpx.ASGITransport(application(replica))
    async with httpx.AsyncClient(transport=transport, base_url="http://benchmark") as client:
        print("| texts | encode, ms |", " | ".join(KINDS), "|")
        for name, case in CASES.items():
            await round_of(client, *case)  # warm
            took = [await round_of(client, *case) for _ in range(rounds)]
            ratios = [
                f"{statistics.median(each[kind] / each['encode'] for each in took):.2f}"
                for kind in KINDS
            ]
            encode = statistics.median(each["encode"] for each in took)
            print(f"| {name} | {encode * 1000:.1f} |", " | ".join(ratios), "|", flush=True)
    await replica.close()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    asyncio.run(main(parser.parse_args().rounds))
