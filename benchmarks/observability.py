"""What counting, logging and tracing cost: a replica that does all three, and one that does none.

    python benchmarks/observability.py [--pairs N] [--seconds S]

Both are whole replicas in this process, without sockets, so that what is compared is a larger
share than it is for clients. They share one loaded model: two copies differ by where their weights
happen to lie. A third, which does none of it either, shows what the method itself sees where
nothing differs. They take short turns, so that what slows the machine for a while slows them all;
the turns of some seconds give each one a ratio to the first. The interval holds the median of all
possible ratios with 95 % (order statistics: no shape of the noise is assumed).
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
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest import mock
from unittest.mock import AsyncMock

from service.edge.door import Door
from service.engine.lanes import Lanes
from service.observe import logs
from service.observe.metrics import Metrics
from service.observe.record import Record
from service.replica import Replica
from service.settings import Settings

SHORT = "All is well"  # the cheapest answer there is
LINES = " ".join(["A dog ate the food because it was hungry"] * 7)  # 65 tokens, a paragraph
RATIO = 0.01  # share of requests that are traced, the default
WORKLOADS = {  # clients, how often each asks in a turn of about a tenth of a second, for what
    "1 client, 5 tokens": (1, 10, SHORT),
    "8 clients, 5 tokens": (8, 4, SHORT),
    "8 clients, 65 tokens": (8, 1, LINES),
}
SURE = 0.95


class Blind(Metrics):
    """Metrics that count nothing of a request."""

    def request(self, seen: Record) -> None:
        return

    def encoded(self, tokens: int) -> None:
        return

    def batch(self, sequences: int, tokens: int) -> None:
        return


@dataclass
class Spent:
    """What some requests of one side took, seconds."""

    requests: int = 0
    wall: float = 0.0
    cpu: float = 0.0


Side = tuple[Replica, Any]


async def started(name: str, metrics: Metrics, **settings: Any) -> Side:
    """Return a started replica and its application."""
    with mock.patch("service.replica.Metrics", lambda label: metrics):
        replica = await Replica.start(Settings(threads=1, canary_seconds=60, **settings), name)

    async def scrape(openmetrics: bool) -> bytes:
        return replica.page(openmetrics)

    return replica, Door(replica, scrape)


async def ask(app: Any, body: bytes) -> None:
    """Send one request that must be answered."""
    statuses: list[int] = []

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body, "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        if "status" in message:
            statuses.append(message["status"])

    headers = [(b"content-type", b"application/json"), (b"host", b"headlight")]
    scope = {"type": "http", "method": "POST", "path": "/v1/encode", "query_string": b""}
    await app({**scope, "headers": headers, "root_path": ""}, receive, send)
    if statuses != [200]:
        raise SystemExit(f"answered {statuses}")


async def drive(replica: Replica, app: Any, workload: str, spent: Spent) -> None:
    """Run one turn: several clients ask, each several times; it reports its own requests."""
    clients, times, text = WORKLOADS[workload]
    body = json.dumps({"inputs": [text]}).encode()

    async def client() -> None:
        for _ in range(times):
            await ask(app, body)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(client() for _ in range(clients)))
    replica.observer.tell()
    spent.wall += time.perf_counter() - wall
    spent.cpu += time.process_time() - cpu
    spent.requests += clients * times


def middle(values: list[float]) -> tuple[float, float, float]:
    """Return the median and an interval that holds the true one with SURE."""
    ranked, n = sorted(values), len(values)
    outside, cut = 0.0, 0  # how many values at each end may be left out
    while cut < n // 2 and outside + 2 * math.comb(n, cut) / 2**n <= 1 - SURE:
        outside += 2 * math.comb(n, cut) / 2**n
        cut += 1
    low = max(0, cut - 1)
    return statistics.median(ranked), ranked[low], ranked[n - 1 - low]


async def measure(pairs: int, seconds: float, folder: Path) -> None:
    """Measure every workload in all rounds; print a row for each side but the first."""
    off = await started("off", Blind("off"), access_log=False)
    with mock.patch.object(Lanes, "start", AsyncMock(return_value=off[0].lanes)):
        control = await started("control", Blind("control"), access_log=False)
        spans = f"file:{folder / 'spans.jsonl'}"
        on = await started("on", Metrics("on"), tracing=spans, tracing_ratio=RATIO)
    sides = {"off": off, "control": control, "on": on}
    print("| workload | side | requests/s off | this/off | CPU us off | more |")
    print("|---|---|---|---|---|---|")
    for workload in WORKLOADS:
        await rounds(sides, workload, 1, seconds)  # warm
        measured = await rounds(sides, workload, pairs, seconds)
        for name in ("control", "on"):
            report(workload, name, [(each["off"], each[name]) for each in measured])
    for replica, _ in sides.values():
        await replica.close()


async def rounds(
    sides: dict[str, Side], workload: str, count: int, seconds: float
) -> list[dict[str, Spent]]:
    """Return what each side spent in each of `count` rounds, whose turns take `seconds` a side."""
    results = []
    for _ in range(count):
        spent = {name: Spent() for name in sides}
        order = list(sides)
        while sum(one.wall for one in spent.values()) < seconds * len(sides):
            for name in order:
                await drive(*sides[name], workload, spent[name])
            order.append(order.pop(0))  # each follows each other's traces in the caches alike
        results.append(spent)
    return results


def report(workload: str, name: str, pairs: list[tuple[Spent, Spent]]) -> None:
    """Print a row: medians of the first side, and of the pairs' ratios with their interval."""
    ratio, low, high = middle([off.wall / this.wall for off, this in pairs])
    cpu = [off.cpu / off.requests * 1e6 for off, _ in pairs]
    more = [(this.cpu - off.cpu) / this.requests * 1e6 for off, this in pairs]
    added, least, most = middle(more)
    cells = [
        workload,
        name,
        f"{statistics.median(off.requests / off.wall for off, _ in pairs):.1f}",
        f"{ratio:.3f} ({low:.3f} to {high:.3f})",
        f"{statistics.median(cpu):.0f}",
        f"{added:.0f} ({least:.0f} to {most:.0f})",
    ]
    print(f"| {' | '.join(cells)} |", flush=True)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--pairs", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=1.0)
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    print(f"{arguments.pairs} pairs of {arguments.seconds:g} s a side, load average {load:.2f}\n")
    with tempfile.TemporaryDirectory() as folder, open(Path(folder) / "log", "w") as file:
        handler = logging.StreamHandler(file)
        handler.setFormatter(logs.Lines("on"))
        ours = logging.getLogger("service")
        ours.addHandler(handler)
        ours.setLevel(logging.INFO)
        asyncio.run(measure(arguments.pairs, arguments.seconds, Path(folder)))


if __name__ == "__main__":
    main()
