"""What counting, logging and tracing cost: a replica that does all three beside one that does none.

    python benchmarks/observability.py [--pairs N] [--seconds S]

Both are whole replicas in this process, without sockets, so that what is compared is a larger
share than it is for clients. They take turns, the first of a pair by turns; a pair gives one
ratio. The interval holds the median of all possible pairs with 95 % (order statistics: no shape
of the noise is assumed). Processor time is the steadier figure where others use the machine.
"""

import argparse
import asyncio
import json
import logging
import math
import os
import statistics
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from service import edge, guard, logs
from service.gateway import Gateway
from service.metrics import Metrics
from service.seen import Seen
from service.settings import Settings

BODY = json.dumps({"inputs": ["All is well"]}).encode()  # the cheapest answer there is
RATIO = 0.01  # share of requests that are traced, the default
CLIENTS = (1, 8)
SURE = 0.95


class Blind(Metrics):
    """Metrics that count nothing of a request."""

    @contextmanager
    def request(self, seen: Seen) -> Iterator[None]:
        yield

    def encoded(self, tokens: int) -> None:
        return

    def batch(self, sequences: int, tokens: int) -> None:
        return


@dataclass
class Rates:
    """One side's figures of one workload, one a pair: requests per second, and CPU each."""

    per_second: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)


async def replica(name: str, metrics: Metrics | None, **settings: Any) -> tuple[Gateway, Any]:
    """A started replica and its application."""
    gateway = Gateway(Settings(threads=1, **settings), name)
    gateway.metrics = metrics or gateway.metrics
    await gateway.start()

    async def scrape(openmetrics: bool) -> bytes:
        return gateway.metrics.render(exemplars=openmetrics)

    inner = edge.application(gateway, scrape)
    return gateway, guard.Guard(inner, gateway.settings)


async def ask(app: Any) -> None:
    """One request that must be answered."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": BODY, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if "status" in message:
            statuses.append(message["status"])

    headers = [(b"content-type", b"application/json"), (b"host", b"headlight")]
    scope = {"type": "http", "method": "POST", "path": "/v1/encode", "query_string": b""}
    await app({**scope, "headers": headers, "root_path": ""}, receive, send)
    if statuses != [200]:
        raise SystemExit(f"answered {statuses}")


async def drive(app: Any, clients: int, seconds: float, rates: Rates) -> None:
    """Ask from so many clients at once for so long."""
    count, until = 0, time.perf_counter() + seconds

    async def client() -> None:
        nonlocal count
        while time.perf_counter() < until:
            await ask(app)
            count += 1

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    rates.per_second.append(count / (time.perf_counter() - wall))
    rates.cpu_seconds.append((time.process_time() - cpu) / count)


def middle(values: list[float]) -> tuple[float, float, float]:
    """The median and an interval that holds the true one with SURE."""
    ranked, n = sorted(values), len(values)
    outside, cut = 0.0, 0  # how many values at each end may be left out
    while cut < n // 2 and outside + 2 * math.comb(n, cut) / 2**n <= 1 - SURE:
        outside += 2 * math.comb(n, cut) / 2**n
        cut += 1
    low = max(0, cut - 1)
    return statistics.median(ranked), ranked[low], ranked[n - 1 - low]


async def measure(pairs: int, seconds: float, folder: Path) -> None:
    """Every workload, all pairs of it, and a row of a table for each."""
    off, blind = await replica("off", Blind("off"), access_log=False)
    spans = f"file:{folder / 'spans.jsonl'}"
    on, seeing = await replica("on", None, tracing=spans, tracing_ratio=RATIO)
    print("| clients | requests/s off | on | on/off | CPU ms off | on | on - off, us |")
    print("|---|---|---|---|---|---|---|")
    for clients in CLIENTS:
        sides = {"off": (blind, Rates()), "on": (seeing, Rates())}
        for app, _ in sides.values():
            await drive(app, clients, seconds, Rates())
        for pair in range(pairs):
            for name in list(sides)[:: -1 if pair % 2 else 1]:
                app, rates = sides[name]
                await drive(app, clients, seconds, rates)
        report(clients, sides["off"][1], sides["on"][1])
    for gateway in (off, on):
        await gateway.close()


def report(clients: int, off: Rates, on: Rates) -> None:
    """A row: medians of both sides, and of the pairs' ratios with their interval."""
    ratio = middle([a / b for a, b in zip(on.per_second, off.per_second, strict=True)])
    added = [(a - b) * 1e6 for a, b in zip(on.cpu_seconds, off.cpu_seconds, strict=True)]
    speeds = [statistics.median(rates.per_second) for rates in (off, on)]
    cpu = [statistics.median(rates.cpu_seconds) * 1000 for rates in (off, on)]
    more, least, most = middle(added)
    cells = [
        f"{clients}",
        *(f"{speed:.1f}" for speed in speeds),
        f"{ratio[0]:.3f} ({ratio[1]:.3f} to {ratio[2]:.3f})",
        *(f"{each:.3f}" for each in cpu),
        f"{more:.0f} ({least:.0f} to {most:.0f})",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure and print."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--pairs", type=int, default=30)
    arguments.add_argument("--seconds", type=float, default=1.0)
    asked = arguments.parse_args()
    print(f"{asked.pairs} pairs of {asked.seconds:g} s, load average {os.getloadavg()[0]:.2f}\n")
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w") as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logs.Lines("on"))
        ours = logging.getLogger("service")
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        asyncio.run(measure(asked.pairs, asked.seconds, Path(folder)))


if __name__ == "__main__":
    main()
