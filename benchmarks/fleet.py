"""What 10 to 1,000 replicas would do behind HAProxy: a simulation, and what it stands on.

    python benchmarks/fleet.py                simulate with the figures below
    python benchmarks/fleet.py --measure      measure 1 to 4 replicas here, and predict 1 to 3

Requests arrive at random moments, in turn at the HAProxy of each node. Each HAProxy gives one to
the replica with the fewest connections of its own, the one it used longest ago among those; it
knows nothing of the others' connections. A replica takes requests one after the other.
"""

import argparse
import asyncio
import heapq
import json
import random
import signal
import socket
import statistics
import subprocess
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import httpx

from service.cluster import haproxy, ingress
from service.settings import Settings

BUSY = 0.7  # of all replicas' time
PER_NODE = 4  # replicas, and one HAProxy
SERVICE_SECONDS = 0.02  # a request with eight short texts, one thread
REQUESTS = 20_000  # at least, and some hundred for each replica
OPENED = 1_048_576  # descriptors of a process: Linux's fs.nr_open
CHECK_SECONDS = 2.0  # between two checks of a replica by an HAProxy
CHECK_MILLISECONDS = 0.25  # of a replica's event loop, for one
SCRAPE_SECONDS = 4.0  # that Prometheus waits, as deploy/prometheus has it
# The page of all: for one replica, and for each one more, from 2 and 8 replicas on two cores
# (results.md, "Under a flood"); of the latter, joining is on the event loop of who is asked
BASE_MILLISECONDS, EACH_MILLISECONDS, JOIN_MILLISECONDS, PAGE_BYTES = 24.0, 4.3, 2.0, 76_000


class Balancer:
    """The servers of one HAProxy: fewest connections first, then longest unused."""

    def __init__(self, servers: list[int]) -> None:
        self._connections = dict.fromkeys(servers, 0)
        self._buckets = [deque(servers)]  # by connections; a server that moved on is stale in it

    def take(self) -> int:
        """Return the next server."""
        for count, bucket in enumerate(self._buckets):
            while bucket:
                server = bucket.popleft()
                if self._connections[server] == count:
                    self._put(server, count + 1)
                    return server
        raise AssertionError("every server is in a bucket")

    def give(self, server: int) -> None:
        """Free one of its connections."""
        self._put(server, self._connections[server] - 1)

    def _put(self, server: int, count: int) -> None:
        self._connections[server] = count
        if count == len(self._buckets):
            self._buckets.append(deque())
        self._buckets[count].append(server)


@dataclass(frozen=True)
class Outcome:
    """What clients and replicas saw, in seconds and shares."""

    p50: float
    p99: float
    busiest: float  # of the replicas, the share of its time
    idlest: float


def simulate(
    replicas: int, nodes: int, *, busy: float = BUSY, mean: float = SERVICE_SECONDS, fixed: bool
) -> Outcome:
    """Send requests at random moments to replicas behind one HAProxy for each node.

    Args:
        busy: work that arrives, by what all replicas could do.
        mean: seconds of one replica for a request.
        fixed: whether each takes just that; else they are spread exponentially.
    """
    chance = random.Random(0)
    balancers = [Balancer(chance.sample(range(replicas), replicas)) for _ in range(nodes)]
    free, worked = [0.0] * replicas, [0.0] * replicas
    under_way: list[tuple[float, int, int]] = []
    times, now = list[float](), 0.0
    for number in range(max(REQUESTS, 400 * replicas)):
        now += chance.expovariate(busy * replicas / mean)
        while under_way and under_way[0][0] <= now:
            _, node, server = heapq.heappop(under_way)
            balancers[node].give(server)
        node = number % nodes
        server = balancers[node].take()
        seconds = mean if fixed else chance.expovariate(1 / mean)
        free[server] = max(free[server], now) + seconds
        worked[server] += seconds
        times.append(free[server] - now)
        heapq.heappush(under_way, (free[server], node, server))
    cuts, shares = statistics.quantiles(times, n=100), [one / now for one in worked]
    return Outcome(cuts[49], cuts[98], max(shares), min(shares))


def hops(replicas: int, nodes: int) -> tuple[int, int, float, float, float]:
    """Return what each hop holds and costs.

    Returns:
        Of each node's HAProxy, most connections and descriptors; a replica's share of time spent
        on their checks; the seconds that a page of all replicas takes, and for how many of them
        the replica that is asked does nothing else.
    """
    connections = int(ingress.promised(Settings(replicas=min(replicas, 256)))[ingress.CONNECTIONS])
    if replicas > 256:
        connections += ingress.ongoing(Settings()) * (replicas - 256)
    connections += haproxy.RESERVE
    checks = nodes / CHECK_SECONDS * CHECK_MILLISECONDS / 1000
    page = (BASE_MILLISECONDS + EACH_MILLISECONDS * replicas) / 1000
    still = JOIN_MILLISECONDS * replicas / 1000
    return connections, 2 * connections + haproxy.OWN_DESCRIPTORS, checks, page, still


def fleet() -> None:
    """Print what 10 to 1,000 replicas do."""
    print("| replicas | nodes | p50 | p99 | busiest | idlest | connections | descriptors", end="")
    print(" | time for checks | page of all | loop blocked | bytes |\n" + "|---" * 12 + "|")
    for replicas in (10, 30, 100, 300, 1000):
        for nodes in (1, -(-replicas // PER_NODE)):
            one = simulate(replicas, nodes, fixed=False)
            connections, descriptors, checks, page, still = hops(replicas, nodes)
            print(
                f"| {replicas} | {nodes} | {one.p50 * 1000:.0f} ms | {one.p99 * 1000:.0f} ms"
                f" | {one.busiest:.0%} | {one.idlest:.0%} | {connections:,}"
                f" | {descriptors:,}{' (too many)' if descriptors > OPENED else ''}"
                f" | {checks:.2%} | {page:.1f} s{' (late)' if page > SCRAPE_SECONDS else ''}"
                f" | {still:.2f} s"
                f" | {PAGE_BYTES * replicas / 1e6:.1f} MB |"
            )


# What this machine shows

BODY = json.dumps({"inputs": [{"token_ids": [2035] * 61}] * 4, "encoding": "base64"}).encode()
PREDICTED, MEASURED_SECONDS, SCRAPES = (1, 2, 3), 12.0, 15


@contextmanager
def service(replicas: int) -> Iterator[str]:
    """Run `headlight serve`, one thread a replica; its address."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, "-m", "service.cli", "serve", "--port", str(port)]
    command += ["--replicas", str(replicas), "--access-log", "false"]
    command += ["--threads", "1"] if replicas < 3 else []
    process = subprocess.Popen(command, stdout=subprocess.PIPE)
    try:
        if process.stdout is None or not process.stdout.readline():
            raise SystemExit("the service did not start")
        yield f"http://127.0.0.1:{port}"
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


async def alone(url: str) -> float:
    """Return median seconds of a request that nothing waits for."""
    async with httpx.AsyncClient(base_url=url) as client:
        times = [await timed(client) for _ in range(60)]
    return statistics.median(times[10:])


async def timed(client: httpx.AsyncClient) -> float:
    """Return one request's seconds."""
    began = time.perf_counter()
    answer = await client.post("/v1/encode", content=BODY)
    answer.raise_for_status()
    return time.perf_counter() - began


async def arriving(url: str, rate: float) -> list[float]:
    """Return seconds of requests that arrive at random moments, so many a second."""
    chance, tasks = random.Random(0), list[asyncio.Task[float]]()
    limits = httpx.Limits(max_connections=None)
    async with httpx.AsyncClient(base_url=url, limits=limits, timeout=30) as client:
        until, due = time.perf_counter() + MEASURED_SECONDS, time.perf_counter()
        while due < until:
            due += chance.expovariate(rate)
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            tasks.append(asyncio.create_task(timed(client)))
        return list(await asyncio.gather(*tasks))


def scraped(url: str, scope: str) -> tuple[float, int]:
    """Return median milliseconds of a page, and its bytes."""
    times, size = list[float](), 0
    with httpx.Client(base_url=url) as client:
        for _ in range(SCRAPES):
            began = time.perf_counter()
            size = len(client.get("/metrics", params={"scope": scope}).content)
            times.append(1000 * (time.perf_counter() - began))
    return statistics.median(times), size


def measure() -> None:
    """Print measurements of 1 to 4 replicas on this machine, next to the simulation's prediction.

    All get the load that keeps one of them busy for 0.6 of its time, so that two cores suffice.
    """
    rate = seconds = 0.0
    for replicas in (1, 2, 3, 4):
        with service(replicas) as url:
            if not rate:
                seconds = asyncio.run(alone(url))
                rate = 0.6 / seconds
            whole, single = scraped(url, "all"), scraped(url, "replica")
            print(
                f"{replicas} replicas: page of all {whole[0]:.1f} ms, {whole[1]:,} bytes; of one"
                f" {single[0]:.1f} ms, {single[1]:,} bytes",
                flush=True,
            )
            if replicas not in PREDICTED:
                continue
            cuts = statistics.quantiles(asyncio.run(arriving(url, rate)), n=100)
            busy = 0.6 / replicas
            one = simulate(replicas, 1, busy=busy, mean=seconds, fixed=True)
            print(
                f"| {replicas} | {rate:.1f}/s | {seconds * 1000:.1f} ms"
                f" | {one.p50 * 1000:.1f} ms | {cuts[49] * 1000:.1f} ms"
                f" | {one.p99 * 1000:.1f} ms | {cuts[98] * 1000:.1f} ms |",
                flush=True,
            )


def main() -> None:
    """Simulate or measure."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--measure", action="store_true")
    measure() if parser.parse_args().measure else fleet()


if __name__ == "__main__":
    main()
