"""Waiting sequences -> batches under a token budget; plain asyncio, no Ray.

A request is admitted or refused as a whole; its sequences may run in several batches. Requests
take turns as if the machine were shared evenly among all that wait: whoever would be done first
then, goes first (fair.py). So a small request passes a flood of large ones, and no stream
of small ones can hold a large one up for ever.

Nothing here loops: `_pump` runs when work arrives and when a lane falls idle, so there is no
task that could die and leave the queue standing.
"""

import asyncio
import math
import time
from bisect import insort
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from service.engine.fair import Shares

# A batch grows to this many times the request that leads it, so that a short request does not
# wait for the long ones it shares a batch with; below SMALL tokens sharing costs nothing.
GROWTH = 8
SMALL = 128
# One batch may seem this many times slower than expected at most: a machine that slept must not
# come back believing that it can do nothing.
STALL = 4.0
PROBE = 16  # every so many lone sequences run on the other number of cores, to compare
SMOOTH = 0.2  # share of a new measurement in what is believed
MEMORY_SECONDS = 10.0  # how much working time the measured speed looks back on

Work = TypeVar("Work")
Done = TypeVar("Done")


class Overloaded(Exception):
    """The request could not be done by its deadline, or the queue is full.

    Args:
        retry_after: when what waits now will be done, seconds.
        bound: which one was met: queue_full, token_budget or deadline.
    """

    def __init__(self, retry_after: float, bound: str) -> None:
        super().__init__(retry_after, bound)
        self.retry_after, self.bound = retry_after, bound


class DeadlinePassed(Exception):
    """The deadline passed before the work was started."""


@dataclass(frozen=True, slots=True)
class Timing:
    """What became of a request's time, seconds: before its first batch, and in batches."""

    queued: float
    computed: float


@dataclass(eq=False, slots=True)
class _Job(Generic[Work, Done]):
    """One admitted request."""

    turn: float
    arrived: float
    deadline: float
    works: Sequence[Work]
    sizes: Sequence[int]
    costs: Sequence[float]
    waiting: list[int]  # indices not yet started, longest first (taken from the end)
    results: list[Done | None]
    future: asyncio.Future[None]
    started: float = math.inf
    computed: float = 0.0
    unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = len(self.works)

    @property
    def tokens(self) -> int:
        return sum(self.sizes[index] for index in self.waiting)

    @property
    def cost(self) -> float:
        return sum(self.costs[index] for index in self.waiting)


@dataclass(frozen=True, slots=True)
class _Run:
    """A batch that runs: since when, and how long it should take, seconds."""

    since: float
    expected: float


@dataclass(frozen=True, slots=True)
class _Part(Generic[Work, Done]):
    """One sequence on its way through a batch."""

    job: _Job[Work, Done]
    index: int


class _Alone:
    """How many cores a lone sequence gets: all, unless one has lately been faster.

    Threads of one forward pass wait for each other at every operator. With a neighbour on one of
    the cores that costs more than the second core gives (benchmarks/results.md), and only time
    tells. The bits do not depend on it.
    """

    def __init__(self, lanes: int) -> None:
        self._speeds = {1: 0.0, lanes: math.inf}  # tokens per second, as lately seen
        self._runs = 0

    def cores(self) -> int:
        """The better choice, but once in PROBE runs the other, since neighbours come and go."""
        self._runs += 1
        better = max(self._speeds, key=self._speeds.__getitem__)
        other = min(self._speeds, key=self._speeds.__getitem__)
        return other if self._runs % PROBE == 0 else better

    def record(self, cores: int, tokens: float, seconds: float) -> None:
        """Fold one run of a lone sequence in."""
        if cores in self._speeds and seconds > 0:
            before = self._speeds[cores]
            seen = tokens / seconds
            known = 0 < before < math.inf
            self._speeds[cores] = before + (seen - before) * SMOOTH if known else seen


# Runs works in lane `lane` with `threads` cores; returns one result or exception for each.
Launch = Callable[[int, Sequence[Work], int], Awaitable[Sequence[Done | Exception]]]


class Batcher(Generic[Work, Done]):
    """One queue in front of a few lanes.

    Args:
        launch: runs one batch in a lane.
        lanes: how many batches may run at once, each on one core. A lone sequence gets all.
        budget: tokens of all lanes' batches together.
        speed: tokens per second to believe in until measured.
        cost: how many tokens of short sequences take as long as one sequence of so many.
        most_requests, most_tokens: what may wait.
    """

    def __init__(
        self,
        launch: Launch[Work, Done],
        *,
        lanes: int,
        budget: int,
        speed: float,
        most_requests: int,
        most_tokens: int,
        cost: Callable[[int], float] = float,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch, self._lanes, self._clock = launch, lanes, clock
        self.budget, self._cost = budget, cost
        self._most_requests, self._most_tokens = most_requests, most_tokens
        self._jobs: list[_Job[Work, Done]] = []  # in order of their turn
        self._idle = list(range(lanes - 1, -1, -1))  # lane 0 is taken first, from the end
        self._running: dict[asyncio.Task[set[_Job[Work, Done]]], _Run] = {}
        self._tokens, self._seconds = speed, 1.0  # decayed sums; their ratio is the speed
        self._best = speed  # that was ever believed in
        self._alone = _Alone(lanes)
        self.waiting_tokens, self._waiting_cost = 0, 0.0
        self._shares = Shares()

    @property
    def waiting_requests(self) -> int:
        return len(self._jobs)

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def speed(self) -> float:
        """Tokens per second of all lanes together, as lately measured."""
        return self._tokens / self._seconds

    def hangs(self, least: float, times: float) -> bool:
        """Whether a batch has run for more than `least` seconds and `times` what it should take."""
        now = self._clock()
        return any(
            now - run.since > max(least, times * run.expected) for run in self._running.values()
        )

    def fewest_seconds(self, sizes: Sequence[int]) -> float:
        """What a request would take with nothing before it, at the best speed ever seen.

        The speed lately measured also falls where a neighbour holds the cores up, which passes.
        """
        return sum(map(self._cost, sizes)) / self._best

    async def submit(
        self, works: Sequence[Work], sizes: Sequence[int], deadline: float
    ) -> tuple[list[Done], Timing]:
        """Run a request's sequences, in whatever batches; all or nothing.

        Args:
            sizes: tokens of each work.
            deadline: when the answer must be there, on the batcher's clock.

        Raises:
            Overloaded: it was not admitted.
            DeadlinePassed: it, or its turn, came too late.
            Exception: what the first failing sequence raised.
        """
        job = self._admit(works, sizes, deadline)
        self._pump()
        try:
            await job.future
        finally:
            self._forget(job)  # finished, failed or cancelled: what still waits will not run
        done = [result for result in job.results if result is not None]
        return done, Timing(job.started - job.arrived, job.computed)

    async def drain(self) -> None:
        """Wait until nothing waits and nothing runs."""
        while self._jobs or self._running:
            await asyncio.wait([job.future for job in self._jobs] or self._running.keys())

    def check(self, sizes: Sequence[int], deadline: float) -> None:
        """Raise what `submit` would if a request of such sequences would not be admitted now."""
        left, tokens = deadline - self._clock(), sum(sizes)
        if left <= 0:
            raise DeadlinePassed()
        late = (self._waiting_cost + sum(map(self._cost, sizes))) / self.speed >= left
        full = len(self._jobs) >= self._most_requests
        crowded = self._jobs and self.waiting_tokens + tokens > self._most_tokens
        if late or full or crowded:
            bound = "queue_full" if full else "token_budget" if crowded else "deadline"
            raise Overloaded(self._waiting_cost / self.speed, bound)

    def _admit(
        self, works: Sequence[Work], sizes: Sequence[int], deadline: float
    ) -> _Job[Work, Done]:
        tokens, now = sum(sizes), self._clock()
        self.check(sizes, deadline)
        longest_first = sorted(range(len(works)), key=sizes.__getitem__, reverse=True)
        job: _Job[Work, Done] = _Job(
            turn=self._shares.enter(tokens),
            arrived=now,
            deadline=deadline,
            works=works,
            sizes=sizes,
            costs=[self._cost(size) for size in sizes],
            waiting=longest_first,
            results=[None] * len(works),
            future=asyncio.get_running_loop().create_future(),
        )
        insort(self._jobs, job, key=lambda job: job.turn)
        self.waiting_tokens += tokens
        self._waiting_cost += job.cost
        return job

    def _forget(self, job: _Job[Work, Done]) -> None:
        if job in self._jobs:
            self._jobs.remove(job)
            self._unqueue(job.tokens, job.cost)
            self._shares.leave(job.turn, job.tokens)

    def _unqueue(self, tokens: int, cost: float) -> None:
        """So much waits no longer; with the last of it goes what rounding left of its cost."""
        self.waiting_tokens -= tokens
        self._waiting_cost = self._waiting_cost - cost if self.waiting_tokens else 0.0

    def _fail(self, job: _Job[Work, Done], error: Exception) -> None:
        if not job.future.done():
            job.future.set_exception(error)
        self._forget(job)

    def _pump(self) -> None:
        """Give every idle lane a batch."""
        self._expire()
        while self._jobs and self._idle:
            if not self._running and len(self._jobs) == 1 and len(self._jobs[0].waiting) == 1:
                self._start(self._take(self.budget), self._idle[-self._alone.cores() :])
            else:
                share = math.ceil(self.waiting_tokens / len(self._idle))
                self._start(self._take(min(share, self.budget // self._lanes)), [self._idle[-1]])

    def _expire(self) -> None:
        now = self._clock()
        for job in [job for job in self._jobs if job.deadline <= now]:
            self._fail(job, DeadlinePassed())

    def _take(self, most: int) -> list[_Part[Work, Done]]:
        """Sequences for one batch, in order of turn; at least one, however long it is."""
        most = min(most, max(SMALL, GROWTH * self._jobs[0].tokens))
        batch: list[_Part[Work, Done]] = []
        total = 0
        for job in list(self._jobs):
            job.started = min(job.started, self._clock())
            while job.waiting and (not batch or total + job.sizes[job.waiting[-1]] <= most):
                index = job.waiting.pop()
                batch.append(_Part(job, index))
                total += job.sizes[index]
            if job.waiting:  # the batch is full
                break
            self._jobs.remove(job)
        self._unqueue(total, _total(batch))
        self._shares.serve(total)
        return batch

    def _start(self, batch: list[_Part[Work, Done]], lanes: list[int]) -> None:
        """Run a batch in the last of `lanes`, with the cores of all of them."""
        self._idle = [lane for lane in self._idle if lane not in lanes]
        task = asyncio.get_running_loop().create_task(self._run(batch, lanes))
        expected = _total(batch) * self._lanes / len(lanes) / self.speed
        self._running[task] = _Run(self._clock(), expected)
        task.add_done_callback(lambda task: self._ended(task, lanes))

    def _ended(self, task: asyncio.Task[set[_Job[Work, Done]]], lanes: list[int]) -> None:
        """Free the lanes, then tell the requests: what one sends next finds them idle."""
        del self._running[task]
        self._idle = sorted([*self._idle, *lanes], reverse=True)
        for job in () if task.cancelled() else task.result():
            if not job.unfinished and not job.future.done():
                job.future.set_result(None)
        self._pump()

    async def _run(self, batch: list[_Part[Work, Done]], lanes: list[int]) -> set[_Job[Work, Done]]:
        """Run a batch and keep its results; returns the jobs it was for."""
        start = self._clock()
        works = [part.job.works[part.index] for part in batch]
        try:
            outcomes = await self._launch(lanes[-1], works, len(lanes))
        except Exception as error:  # a lane that broke fails its batch, never the queue
            outcomes = [error] * len(batch)
        seconds = self._clock() - start
        self._measure(batch, seconds, len(lanes))
        for part, outcome in zip(batch, outcomes, strict=True):
            self._deliver(part, outcome)
        jobs = {part.job for part in batch}
        for job in jobs:
            job.computed += seconds
        return jobs

    def _deliver(self, part: _Part[Work, Done], outcome: Done | Exception) -> None:
        if isinstance(outcome, Exception):
            self._fail(part.job, outcome)
        else:
            part.job.results[part.index] = outcome
            part.job.unfinished -= 1

    def _measure(self, batch: list[_Part[Work, Done]], seconds: float, cores: int) -> None:
        """Fold a batch into the speed; one that had some of the cores counts for as many."""
        cost = _total(batch)
        if len(batch) == 1:
            self._alone.record(cores, cost, seconds)
        tokens = cost * self._lanes / cores
        seconds = min(seconds, STALL * tokens / self.speed)
        keep = math.exp(-seconds / MEMORY_SECONDS)
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds
        self._best = max(self._best, self.speed)


def _total(batch: Sequence[_Part[Work, Done]]) -> float:
    """What a batch takes, in tokens of short sequences."""
    return sum(part.job.costs[part.index] for part in batch)
