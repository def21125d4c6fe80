"""What becomes of a service that is offered several times what it can do.

    python benchmarks/open_loop.py [--seconds 30] [--times 1 2 5 10]

Starts the service on the bundled model, measures what it can do when asked by a few clients that
wait for their answers, then offers multiples of that in an open loop: requests come at random
moments (a Poisson process) whether or not earlier ones are answered, each with four seconds to its
deadline. Prints for each multiple

    goodput    answers in time, a second; beside it its ratio to the first row's
    accepted   median and 99th percentile of the milliseconds an answer took
    refused    the same of 429 and 504, by status
    normal     seconds after the end until one small request takes no longer than before
"""

import argparse
import asyncio
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import httpx
from overload import start

# Some 400 ms of work on two cores: client, HAProxy and refusals take their time from the same two,
# and of ten times as many small requests they would take most.
WORDS = "a dog ate the food because it was hungry and the night was cold".split()
SENTENCES, CLIENTS, DEADLINE_MS, CAPACITY_SECONDS = 128, 4, 4000, 10.0
SMALL = json.dumps({"inputs": ["All is well"]}).encode()
NORMAL_TIMES, NORMAL_SECONDS = 2.0, 30.0


@dataclass
class Offered:
    """What came back of what was offered, milliseconds by status."""

    seconds: float
    took: dict[int, list[float]] = field(default_factory=dict)

    def note(self, status: int, milliseconds: float) -> None:
        """Keep one answer."""
        self.took.setdefault(status, []).append(milliseconds)

    @property
    def goodput(self) -> float:
        """Answers in time, a second."""
        return sum(each <= DEADLINE_MS for each in self.took.get(200, [])) / self.seconds


def body() -> bytes:
    """A request like no other."""
    texts = [" ".join(random.choices(WORDS, k=12)) for _ in range(SENTENCES)]
    return json.dumps({"inputs": texts, "encoding": "base64"}).encode()


async def ask(client: httpx.AsyncClient, offered: Offered) -> None:
    """One request, and what became of it."""
    begun = time.perf_counter()
    answer = await client.post(
        "/v1/encode", content=body(), headers={"x-headlight-deadline-ms": str(DEADLINE_MS)}
    )
    offered.note(answer.status_code, (time.perf_counter() - begun) * 1000)


async def capacity(client: httpx.AsyncClient) -> float:
    """Requests a second that a few patient clients get answered."""
    offered, until = Offered(CAPACITY_SECONDS), time.monotonic() + CAPACITY_SECONDS

    async def patient() -> None:
        while time.monotonic() < until:
            await ask(client, offered)

    await asyncio.gather(*(patient() for _ in range(CLIENTS)))
    return len(offered.took[200]) / CAPACITY_SECONDS


async def offer(client: httpx.AsyncClient, rate: float, seconds: float) -> Offered:
    """Send requests at random moments, on average so many a second."""
    offered, asked, due = Offered(seconds), set[asyncio.Task[None]](), time.monotonic()
    until = due + seconds
    while (due := due + random.expovariate(rate)) < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asked.add(asyncio.create_task(ask(client, offered)))
    await asyncio.gather(*asked)
    return offered


async def small(client: httpx.AsyncClient) -> float:
    """Milliseconds of one short text; infinite where it is refused."""
    begun = time.perf_counter()
    status = (await client.post("/v1/encode", content=SMALL)).status_code
    return (time.perf_counter() - begun) * 1000 if status == 200 else float("inf")


async def until_normal(client: httpx.AsyncClient, usual: float) -> float:
    """Seconds until five small requests together take no longer than they did before."""
    begun = time.monotonic()
    while time.monotonic() - begun < NORMAL_SECONDS:
        now = time.monotonic()
        if statistics.median([await small(client) for _ in range(5)]) <= NORMAL_TIMES * usual:
            return now - begun
    return float("inf")


def row(times: float, offered: Offered, best: float, normal: float) -> str:
    """One line of the table."""

    def cuts(values: Sequence[float]) -> str:
        ordered = sorted(values)
        at = (len(ordered) // 2, int(len(ordered) * 0.99))
        return " / ".join(f"{ordered[place]:.0f}" for place in at)

    statuses = Counter({status: len(values) for status, values in offered.took.items()})
    refused = {s: cuts(values) for s, values in offered.took.items() if s != 200}
    goodput = f"{offered.goodput:6.1f} ({offered.goodput / best:.2f})"
    accepted = cuts(offered.took.get(200, [0.0]))
    return f"{times:4g}x  {goodput}  {accepted:>14}  {refused}  {normal:.1f}  {dict(statuses)}"


async def measure(url: str, multiples: Sequence[float], seconds: float) -> None:
    """All rows, one after the other."""
    limits = httpx.Limits(max_connections=None, max_keepalive_connections=512)
    async with httpx.AsyncClient(base_url=url, timeout=60, limits=limits) as client:
        usual = statistics.median([await small(client) for _ in range(100)])
        able = await capacity(client)
        print(f"able to do {able:.1f} a second; a small request takes {usual:.1f} ms")
        print("      goodput  accepted p50 / p99  refused p50 / p99  normal s  statuses")
        best = 0.0
        for times in multiples:
            offered = await offer(client, able * times, seconds)
            best = best or offered.goodput
            print(row(times, offered, best, await until_normal(client, usual)), flush=True)


def main() -> None:
    """Start, measure, stop."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--times", type=float, nargs="+", default=[1, 2, 5, 10])
    arguments = parser.parse_args()
    load = os.getloadavg()[0]
    process, url = start(1)
    print(f"{os.cpu_count()} cores, 1 replica, load average before {load:.1f}")
    try:
        asyncio.run(measure(url, arguments.times, arguments.seconds))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main()
