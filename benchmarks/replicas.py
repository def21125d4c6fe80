"""What a second replica is worth: tokens a second of two over one, each of one thread.

    python benchmarks/replicas.py [--rounds 12] [--seconds 8]

Starts a service of one replica and a service of two, and loads them in turns, a block each; which
goes first changes from round to round. The load is the same for both and enough for two: requests
of 8 texts of 24 words, 8 connections. Prints tokens a second of each, the ratio of each round (its
median and quartiles), and the part of the machine that this process took while it sent, which
two replicas lack and one does not.
"""

import argparse
import asyncio
import os
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from contextlib import ExitStack
from pathlib import Path

import httpx

HERE = Path(__file__).parent.parent
WORDS = "a dog ate the food because it was hungry and the night was cold".split()
CONNECTIONS, TEXTS, LENGTH = 8, 8, 24


def started(replicas: int, stack: ExitStack) -> str:
    """Return where a service answers that is started here, and stopped at the end."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ["--port", str(port), "--replicas", str(replicas), "--threads", "1"]
    process = subprocess.Popen(
        [sys.executable, "-m", "service.cli", "serve", *options], cwd=HERE, stdout=subprocess.PIPE
    )
    stack.callback(process.wait, 60)
    stack.callback(process.send_signal, signal.SIGINT)
    if process.stdout is None or not process.stdout.readline():
        raise SystemExit(f"the service of {replicas} did not start")
    return f"http://127.0.0.1:{port}"


async def block(url: str, seconds: float) -> tuple[float, float]:
    """Return tokens a second, and processor seconds a second that it took to ask for them."""
    tokens, until = 0, time.monotonic() + seconds

    async def ask(client: httpx.AsyncClient) -> None:
        nonlocal tokens
        while time.monotonic() < until:
            texts = [" ".join(random.choices(WORDS, k=LENGTH)) for _ in range(TEXTS)]
            answer = await client.post("/v1/encode", json={"inputs": texts, "encoding": "base64"})
            tokens += answer.raise_for_status().json()["usage"]["tokens"]

    began, took = time.monotonic(), time.process_time()
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        await asyncio.gather(*(ask(client) for _ in range(CONNECTIONS)))
    passed = time.monotonic() - began
    return tokens / passed, (time.process_time() - took) / passed


def main() -> None:
    """Start both, measure, print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--rounds", type=int, default=12)
    parser.add_argument("--seconds", type=float, default=8)
    arguments = parser.parse_args()
    cores = os.cpu_count() or 1
    print(f"{cores} cores, load average before {os.getloadavg()[0]:.1f}")
    rates: dict[int, list[float]] = {1: [], 2: []}
    asked: dict[int, list[float]] = {1: [], 2: []}
    with ExitStack() as stack:
        urls = {replicas: started(replicas, stack) for replicas in rates}
        for url in urls.values():
            asyncio.run(block(url, 3))
        for number in range(arguments.rounds):
            for replicas in (1, 2) if number % 2 else (2, 1):
                rate, took = asyncio.run(block(urls[replicas], arguments.seconds))
                rates[replicas].append(rate)
                asked[replicas].append(took)
    for replicas, measured in rates.items():
        print(
            f"{replicas} of one thread: {statistics.median(measured):,.0f} tokens/s;"
            f" the client took {statistics.median(asked[replicas]):.2f} of {cores} cores"
        )
    ratios = [two / one for one, two in zip(rates[1], rates[2], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"2 over 1: {middle:.2f} ({low:.2f} to {high:.2f}) in {len(ratios)} rounds")


if __name__ == "__main__":
    main()
