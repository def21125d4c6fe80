"""A service on so many cores, as a simulation: HAProxy, event loops, batchers and lanes.

Clients that ask again at once send requests through HAProxy to the replica with the fewest of them
under way. A replica reads each on its event loop, which does one thing at a time; the service's own
Batcher, on a clock of ours, gives its sequences to lanes; the loop writes the answer. All of this
shares the cores evenly.
"""

import asyncio
import heapq
import itertools
import math
import random
import selectors
import statistics
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from served.balancer import Balancer

from service.engine.batcher import Batcher
from service.proof.machine import batch_budget

PROXY_THREADS = 2  # of HAProxy, as service/cluster/ingress.py has it
DEADLINE_SECONDS = 600.0
WARM_UP_SHARE = 0.3  # share of the requests that come before those that count
SHORT, BULK = (16,), (28,) * 32  # a request's texts, by their tokens


@dataclass(frozen=True)
class StepCosts:
    """Seconds that each step takes.

    Args:
        loop: of a request's, on an event loop that rested, and on one that is busy.
        text: of a further text in a request, on the event loop.
        proxy: of a request's, in HAProxy: at one connection and at many.
        alone, beside: of a pass on one core by its tokens; while others compute, in the second.
        pair: of a pass on two cores.
    """

    loop: tuple[float, float]
    text: float
    proxy: tuple[float, float]
    alone: list[tuple[int, float]]
    beside: list[tuple[int, float]]
    pair: list[tuple[int, float]]

    def pass_seconds(self, tokens: int, threads: int, others: bool) -> float:
        """Return the seconds of a pass.

        Args:
            others: whether other lanes compute meanwhile.
        """
        one = interpolate(self.beside if others else self.alone, tokens)
        if threads == 1:
            return one
        two = interpolate(self.pair, tokens)
        serial = min(max(2 * two / interpolate(self.alone, tokens) - 1, 0.0), 1.0)
        return one * (serial + (1 - serial) / threads)

    def tokens_per_second(self, threads: int) -> float:
        """Return the tokens a second of so many lanes, in full batches."""
        tokens, seconds = self.beside[-1] if threads > 1 else self.alone[-1]
        return threads * tokens / seconds


def interpolate(points: Sequence[tuple[int, float]], place: float) -> float:
    """Return the value at a place of a line through points; beyond the last, in proportion."""
    if place >= points[-1][0]:
        return points[-1][1] * place / points[-1][0]
    after = next(i for i, (x, _) in enumerate(points) if x >= place)
    (x1, y1), (x2, y2) = points[max(0, after - 1)], points[max(1, after)]
    return max(y1 + (y2 - y1) * (place - x1) / (x2 - x1), min(y1, y2) / 2)


class JumpingSelector(selectors.SelectSelector):
    """Waits for nothing: the time that would pass has passed."""

    now = 0.0

    def select(self, timeout: float | None = None) -> list[Any]:
        """Let the time pass."""
        if timeout is None:
            raise RuntimeError("nothing will happen any more")
        self.now += max(0.0, timeout)
        return []


class SimulatedLoop(asyncio.SelectorEventLoop):
    """An event loop whose clock goes from one event to the next."""

    def __init__(self) -> None:
        self._jump = JumpingSelector()
        super().__init__(self._jump)

    def time(self) -> float:
        """Return the seconds that have passed."""
        return self._jump.now


class Cores:
    """Cores that all computing shares evenly."""

    def __init__(self, count: float) -> None:
        self._count, self._loop = count, asyncio.get_running_loop()
        self._active, self._done, self._since = 0, 0.0, self._loop.time()
        self._ends: list[tuple[float, int, int, asyncio.Future[None]]] = []
        self._timer: asyncio.TimerHandle | None = None
        self._numbers = itertools.count()
        self.seconds = 0.0  # that all of them have computed

    async def compute(self, seconds: float, threads: int = 1) -> None:
        """Take so many seconds of so many cores, and longer where others want them too."""
        self._advance()
        future = self._loop.create_future()
        entry = (self._done + seconds, next(self._numbers), threads, future)
        heapq.heappush(self._ends, entry)
        self._active += threads
        self._plan()
        await future

    @property
    def _rate(self) -> float:
        return min(1.0, self._count / max(1, self._active))

    def _advance(self) -> None:
        """Count what everybody has had since the last time."""
        now = self._loop.time()
        self._done += (now - self._since) * self._rate
        self.seconds += (now - self._since) * min(self._active, self._count)
        self._since = now

    def _plan(self) -> None:
        if self._timer:
            self._timer.cancel()
        if self._ends:
            left = max(0.0, self._ends[0][0] - self._done) / self._rate
            self._timer = self._loop.call_later(left, self._end)

    def _end(self) -> None:
        self._advance()
        while self._ends and self._ends[0][0] <= self._done + 1e-9:
            _, _, threads, future = heapq.heappop(self._ends)
            self._active -= threads
            if not future.done():  # who waited for it may have given up
                future.set_result(None)
        self._plan()


class SerialServer:
    """Whatever does one thing at a time, in the order in which it is asked."""

    def __init__(self, count: int = 1) -> None:
        self._free, self._waiting = count, deque[asyncio.Future[None]]()
        self.seconds = 0.0  # that it was wanted for

    @property
    def is_idle(self) -> bool:
        """Tell whether it has nothing to do."""
        return self._free > 0

    async def do(self, cores: Cores, seconds: float) -> None:
        """Do something that takes so long, after everything that came before."""
        if not self._free:
            turn = asyncio.get_running_loop().create_future()
            self._waiting.append(turn)
            await turn
        else:
            self._free -= 1
        try:
            await cores.compute(seconds)
        finally:
            self._hand_on()
        self.seconds += seconds

    def _hand_on(self) -> None:
        """Let the next one that has not given up begin."""
        while self._waiting:
            turn = self._waiting.popleft()
            if not turn.done():
                return turn.set_result(None)
        self._free += 1


class SimulatedReplica:
    """An event loop, the service's own Batcher, and lanes."""

    def __init__(self, cores: Cores, costs: StepCosts, threads: int) -> None:
        self._cores, self._costs, self.loop = cores, costs, SerialServer()
        self.threads, self._running, self.lane_seconds = threads, 0, 0.0
        speed = costs.tokens_per_second(threads)
        self._batcher: Batcher[range, bool] = Batcher(
            self._pass,
            lanes=threads,
            budget=batch_budget(speed),
            speed=speed,
            most_requests=1 << 30,
            most_tokens=1 << 40,
            clock=asyncio.get_running_loop().time,
        )

    async def _pass(self, lane: int, works: Sequence[range], threads: int) -> list[bool]:
        """Compute one batch."""
        tokens = sum(map(len, works))
        self._running += threads
        seconds = self._costs.pass_seconds(tokens, threads, self._running > threads)
        await self._cores.compute(seconds, threads)
        self._running -= threads
        self.lane_seconds += seconds * threads
        return [True] * len(works)

    async def answer(self, texts: Sequence[int]) -> None:
        """Answer one request."""
        await self._step(len(texts))
        deadline = asyncio.get_running_loop().time() + DEADLINE_SECONDS
        await self._batcher.submit([range(one) for one in texts], deadline)
        await self._step(len(texts))

    async def _step(self, texts: int) -> None:
        """Read a request or write its answer: half each."""
        seconds = self._costs.loop[not self.loop.is_idle] + self._costs.text * (texts - 1)
        await self.loop.do(self._cores, seconds / 2)


@dataclass(frozen=True)
class SimulatedOutcome:
    """What clients and the machine saw."""

    rate: float  # texts a second
    p50: float  # seconds of a request
    p99: float
    loop: float  # share of its time that a replica's event loop was busy, on average
    lanes: float
    proxy: float  # of HAProxy's threads
    cores: float  # of the machine


def simulate(
    costs: StepCosts,
    cores: float,
    replicas: int,
    threads: int,
    connections: int,
    texts: Sequence[int] = SHORT,
    requests: int = 2000,
) -> SimulatedOutcome:
    """Have so many connections, each with one request under way, ask replicas on some cores."""
    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(_simulate(costs, cores, replicas, threads, connections, texts, requests))


async def _simulate(
    costs: StepCosts,
    cores: float,
    replicas: int,
    threads: int,
    connections: int,
    texts: Sequence[int],
    requests: int,
) -> SimulatedOutcome:
    loop, every = asyncio.get_running_loop(), Cores(cores)
    fleet = [SimulatedReplica(every, costs, threads) for _ in range(replicas)]
    balancer, proxy = Balancer(list(range(replicas))), SerialServer(PROXY_THREADS)
    hop = costs.proxy[connections > 1] / 2
    spans, left = list[tuple[float, float]](), requests
    chance = random.Random(0)

    async def ask() -> None:
        nonlocal left
        await asyncio.sleep(chance.uniform(0, 0.01))
        while left > 0:
            left -= 1
            begun = loop.time()
            await proxy.do(every, hop)
            place = balancer.take()
            await fleet[place].answer(texts)
            balancer.give(place)
            await proxy.do(every, hop)
            spans.append((begun, loop.time()))

    await asyncio.gather(*(ask() for _ in range(connections)))
    ends = sorted(end for _, end in spans)
    first, last, whole = (
        ends[int(len(ends) * WARM_UP_SHARE)],
        max(begun for begun, _ in spans),
        ends[-1],
    )
    counted = [end - begun for begun, end in spans if first < end <= last]
    took = sorted(counted) or [0.0]
    return SimulatedOutcome(
        rate=len(counted) * len(texts) / (last - first),
        p50=statistics.median(took),
        p99=took[math.ceil(0.99 * len(took)) - 1],
        loop=statistics.fmean(one.loop.seconds for one in fleet) / whole,
        lanes=statistics.fmean(one.lane_seconds / one.threads for one in fleet) / whole,
        proxy=proxy.seconds / PROXY_THREADS / whole,
        cores=every.seconds / cores / whole,
    )
