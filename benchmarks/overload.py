"""What a small request and the probes feel while others flood the service.

    python benchmarks/overload.py [--replicas N]

Starts the service on the bundled model and prints, in milliseconds:
    small, idle       one short text at a time, nothing else
    small, flooded    the same next to connections that always have a large request under way
    metrics, idle     GET /metrics, nothing else
    metrics, flooded  the same next to the large requests
    probes, full      /live, /ready, /metrics while the queue refuses with 429
"""

import argparse
import asyncio
import json
import os
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator
from contextlib import contextmanager
from functools import partial

import httpx

SMALL = json.dumps({"inputs": ["All is well"]}).encode()
# 12,800 tokens, seconds of work
LARGE = json.dumps({"inputs": [{"token_ids": [2035] * 200}] * 64, "encoding": "base64"}).encode()
FLOODERS, FILLERS = 6, 96
IDLE_REQUESTS, FLOOD_SECONDS, FULL_SECONDS, SCRAPED_SECONDS = 300, 30.0, 10.0, 20.0


def start(replicas: int) -> tuple[subprocess.Popen[bytes], str]:
    """Start `headlight serve` on a free port; the process and its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "service.cli", "serve"]
    command += ["--port", str(port), "--replicas", str(replicas)]
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    if process.stdout is None or not process.stdout.readline():
        raise SystemExit("the service did not start")
    return process, f"http://127.0.0.1:{port}"


async def timed(send: Callable[[], Awaitable[httpx.Response]], codes: Counter[int]) -> float:
    """Return milliseconds of one request."""
    begun = time.perf_counter()
    codes[(await send()).status_code] += 1
    return (time.perf_counter() - begun) * 1000


async def flood(url: str, count: int) -> None:
    """Keep `count` large requests under way until ended; come back soon after a refusal."""

    async def one(client: httpx.AsyncClient) -> None:
        while True:
            answer = await client.post("/v1/encode", content=LARGE)
            if answer.status_code == 429:
                await asyncio.sleep(0.5)

    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        await asyncio.gather(*(one(client) for _ in range(count)))


@contextmanager
def flooded(url: str, count: int) -> Iterator[None]:
    """Flood from a process of its own, so that the clock here does not feel it."""
    command = [sys.executable, __file__, "--flood", url, str(count)]
    process = subprocess.Popen(command)
    try:
        time.sleep(4)  # until it is under way
        yield
    finally:
        process.kill()
        process.wait()


def report(name: str, milliseconds: list[float], codes: Counter[int]) -> None:
    """Print one row: median, 99th percentile, worst, and the statuses seen."""
    cuts = statistics.quantiles(milliseconds, n=100)
    row = f"p50 {cuts[49]:8.1f}  p99 {cuts[98]:8.1f}  max {max(milliseconds):8.1f}"
    print(f"{name:16s} n {len(milliseconds):5d}  {row}  {dict(codes)}", flush=True)


async def measure(url: str) -> None:
    """Print all rows, one after the other."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        small = partial(client.post, "/v1/encode", content=SMALL)
        metrics, *probes = (partial(client.get, path) for path in ("/metrics", "/live", "/ready"))
        codes: Counter[int] = Counter()
        report("small, idle", [await timed(small, codes) for _ in range(IDLE_REQUESTS)], codes)
        await beside("metrics, idle", SCRAPED_SECONDS, metrics)
        with flooded(url, FLOODERS):
            await beside("small, flooded", FLOOD_SECONDS, small)
            await beside("metrics, flooded", SCRAPED_SECONDS, metrics)
        await asyncio.sleep(5)
        with flooded(url, FILLERS):
            await beside("probes, full", FULL_SECONDS, *probes, metrics)
            refused = await client.post("/v1/encode", content=LARGE)
            print(f"{'':16s} a large request is answered {refused.status_code}", flush=True)


async def beside(
    name: str, seconds: float, *sends: Callable[[], Awaitable[httpx.Response]]
) -> None:
    """Send requests of each kind, at most ten a second, for this long."""
    codes: Counter[int] = Counter()
    taken: list[float] = []
    until = time.monotonic() + seconds
    while time.monotonic() < until:
        taken += [await timed(send, codes) for send in sends]
        await asyncio.sleep(0.1)
    report(name, taken, codes)


def main() -> None:
    """Start, measure, stop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--replicas", type=int, default=1)
    parser.add_argument("--flood", nargs=2, metavar=("URL", "COUNT"), help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.flood:
        return asyncio.run(flood(arguments.flood[0], int(arguments.flood[1])))
    replicas = arguments.replicas
    load = os.getloadavg()[0]
    process, url = start(replicas)
    print(f"{os.cpu_count()} cores, {replicas} replica(s), load average before {load:.1f}; ms")
    try:
        asyncio.run(measure(url))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main()
