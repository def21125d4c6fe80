"""What becomes of a service that is offered several times what it can do.

    python benchmarks/open_loop.py [--seconds 30] [--times 1 2 5 10]

Starts the service on the bundled model, measures what it can do when asked by a few clients that
wait for their answers, then offers multiples of that in an open loop: requests come at random
moments (a Poisson process) whether or not earlier ones are answered, each with four seconds to its
deadline. Prints for each multiple

    goodput    answers in time, a second; next to it its ratio to the first row's
    accepted   median and 99th percentile of the milliseconds an answer took
    refused    the same of 429 and 504, by status
    normal     seconds after the end until one small request takes no longer than before
    cpu        seconds of it that the service took, and this client, on the same cores

The client is one process that writes to sockets bodies made before, and reads lengths alone: what
it takes of the cores, the service has not.
"""

import argparse
import asyncio
import itertools
import json
import os
import random
import signal
import statistics
import time
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from overload import start

# Some 400 ms of work on two cores: client, HAProxy and refusals take their time from the same two,
# and of ten times as many small requests they would take most.
WORDS = "a dog ate the food because it was hungry and the night was cold".split()
SENTENCES, CLIENTS, DEADLINE_MS, CAPACITY_SECONDS = 128, 4, 4000, 10.0
NORMAL_TIMES, NORMAL_SECONDS = 2.0, 30.0
BODIES = 211  # that differ
TICKS = os.sysconf("SC_CLK_TCK")
HEAD = (
    "POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    f"X-Headlight-Deadline-Ms: {DEADLINE_MS}\r\nContent-Length: %d\r\n\r\n"
)
LENGTH = b"content-length: "
SMALL = json.dumps({"inputs": ["All is well"]}).encode()


@dataclass
class Offered:
    """What came back of what was offered, milliseconds by status."""

    seconds: float
    took: dict[int, list[float]] = field(default_factory=dict)
    cpu: tuple[float, float] = (0.0, 0.0)

    def note(self, status: int, milliseconds: float) -> None:
        """Keep one answer."""
        self.took.setdefault(status, []).append(milliseconds)

    @property
    def goodput(self) -> float:
        """Return the answers in time, a second."""
        return sum(each <= DEADLINE_MS for each in self.took.get(200, [])) / self.seconds


def request(body: bytes) -> bytes:
    """Return a request as it is sent."""
    return (HEAD % len(body)).encode() + body


def large() -> bytes:
    """Return a request like no other."""
    texts = [" ".join(random.choices(WORDS, k=12)) for _ in range(SENTENCES)]
    return request(json.dumps({"inputs": texts, "encoding": "base64"}).encode())


class Client:
    """Connections that are kept, as many as there are requests at once."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._free: list[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = []
        self.bodies = itertools.cycle([large() for _ in range(BODIES)])

    async def send(self, sent: bytes) -> tuple[int, float]:
        """Send one request; return its status and milliseconds."""
        begun = time.perf_counter()
        while self._free and self._free[-1][0].at_eof():  # idle for too long
            self._free.pop()[1].close()
        reader, writer = place = self._free.pop() if self._free else await self._connect()
        writer.write(sent)
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(LENGTH)[2].partition(b"\r")[0]))
        if b"connection: close" in head:
            writer.close()
        else:
            self._free.append(place)
        return int(head.split()[1]), (time.perf_counter() - begun) * 1000

    async def _connect(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        return await asyncio.open_connection("127.0.0.1", self._port, limit=1 << 20)


async def ask(client: Client, offered: Offered) -> None:
    """Send one large request and record its outcome."""
    offered.note(*await client.send(next(client.bodies)))


def cpu_seconds(pid: int) -> float:
    """Return what a process and all below it have had of the cores."""
    parents, seconds = dict[int, int](), dict[int, float]()
    for path in Path("/proc").glob("[0-9]*/stat"):
        with suppress(OSError):  # it has just ended
            stat = path.read_text().rpartition(")")[2].split()
            parents[int(path.parent.name)] = int(stat[1])
            seconds[int(path.parent.name)] = (int(stat[11]) + int(stat[12])) / TICKS
    found = {pid}
    while grown := {child for child, parent in parents.items() if parent in found} - found:
        found |= grown
    return sum(seconds[one] for one in found)


async def capacity(client: Client) -> float:
    """Return requests a second that a few patient clients get answered."""
    offered, until = Offered(CAPACITY_SECONDS), time.monotonic() + CAPACITY_SECONDS

    async def patient() -> None:
        while time.monotonic() < until:
            await ask(client, offered)

    await asyncio.gather(*(patient() for _ in range(CLIENTS)))
    return len(offered.took[200]) / CAPACITY_SECONDS


async def offer(client: Client, service: int, rate: float, seconds: float) -> Offered:
    """Send requests at random moments, on average so many a second.

    Args:
        service: the id of its process.
    """
    offered, asked = Offered(seconds), set[asyncio.Task[None]]()
    theirs, ours, due = cpu_seconds(service), time.process_time(), time.monotonic()
    until = due + seconds
    while (due := due + random.expovariate(rate)) < until:
        await asyncio.sleep(max(0.0, due - time.monotonic()))
        asked.add(asyncio.create_task(ask(client, offered)))
    await asyncio.gather(*asked)
    offered.cpu = (cpu_seconds(service) - theirs, time.process_time() - ours)
    return offered


async def small(client: Client) -> float:
    """Return milliseconds of one short text; infinite where it is refused."""
    status, milliseconds = await client.send(request(SMALL))
    return milliseconds if status == 200 else float("inf")


async def until_normal(client: Client, usual: float) -> float:
    """Return seconds until five small requests together take no longer than they did before."""
    begun = time.monotonic()
    while time.monotonic() - begun < NORMAL_SECONDS:
        now = time.monotonic()
        if statistics.median([await small(client) for _ in range(5)]) <= NORMAL_TIMES * usual:
            return now - begun
    return float("inf")


def row(times: float, offered: Offered, best: float, normal: float) -> str:
    """Return one line of the table."""

    def cuts(values: Sequence[float]) -> str:
        ordered = sorted(values)
        at = (len(ordered) // 2, int(len(ordered) * 0.99))
        return " / ".join(f"{ordered[place]:.0f}" for place in at)

    statuses = Counter({status: len(values) for status, values in offered.took.items()})
    refused = {s: cuts(values) for s, values in offered.took.items() if s != 200}
    goodput = f"{offered.goodput:6.1f} ({offered.goodput / best:.2f})"
    accepted = cuts(offered.took.get(200, [0.0]))
    cpu = f"{offered.cpu[0]:.1f} + {offered.cpu[1]:.1f}"
    return (
        f"{times:4g}x  {goodput}  {accepted:>14}  {refused}  {normal:.1f}  {cpu}  {dict(statuses)}"
    )


async def measure(service: int, port: int, multiples: Sequence[float], seconds: float) -> None:
    """Print all rows, one after the other."""
    client = Client(port)
    usual = statistics.median([await small(client) for _ in range(100)])
    able = await capacity(client)
    print(f"able to do {able:.1f} a second; a small request takes {usual:.1f} ms")
    print("      goodput  accepted p50 / p99  refused p50 / p99  normal s  cpu s  statuses")
    best = 0.0
    for times in multiples:
        offered = await offer(client, service, able * times, seconds)
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
        port = int(url.rpartition(":")[2])
        asyncio.run(measure(process.pid, port, arguments.times, arguments.seconds))
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait(60)


if __name__ == "__main__":
    main()
