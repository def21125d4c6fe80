"""Waiting sequences -> batches under a token budget; plain asyncio, no Ray.

A request is admitted or refused as a whole, by service/encode/admission.py, which asks here; its
sequences may run in several batches.

`_step` is the engine: it runs a batch and hands its results out.

Nothing here loops: `_fill_lanes` runs when work arrives, a lane falls idle or company is no
longer expected, so there is no task that could die and leave the queue standing.
"""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from typing import Generic

from service.engine.fair.line import Batch, Job, Result, Timing, Work
from service.engine.fair.queue import SMALL_TOKENS, DeadlinePassed, JobQueue
from service.engine.speed import LaneSpeed, LoneCores, RunningBatch
from service.keys import Limits

# A request behind others is admitted if it fits into this share of its time: the speed varies,
# the answer must be written too, and work that is done late is lost.
SURE_SHARE = 0.8
# Of two lanes a short sequence leaves one to its company, and a few wait for theirs; it has not
# been measured with more lanes
LINGERING_LANES = 2
HURRY_SECONDS = 0.1  # to its deadline: such a request waits for no other
# Most clients that ask again have by then: during a pass, the event loop takes 1 to 4 ms for each
COMPANY_WAIT_SECONDS = 0.01


# Runs works in lane `lane` with `threads` cores; returns one result or exception for each.
Launch = Callable[[int, Sequence[Work], int], Awaitable[Sequence[Result | Exception]]]


def _works_lengths(works: Sequence[Sized]) -> list[int]:
    return list(map(len, works))


class ReturningClients:
    """Counts those who are likely to ask again at once: their answers have just left.

    Args:
        gone: called when no more are expected.
    """

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone, self.expected = gone, 0
        self._patience: asyncio.TimerHandle | None = None

    def expect(self, count: int) -> None:
        """Expect this many more."""
        if count:
            self.expected += count
            self._start_waiting()

    def count_arrival(self, *, first: bool) -> None:
        """Take a request that has come for one of them.

        Args:
            first: whether none waits yet. So none waits for longer than COMPANY_WAIT_SECONDS.
        """
        if self.expected:
            self.expected -= 1
            if first:
                self._start_waiting()

    def _start_waiting(self) -> None:
        if self._patience:
            self._patience.cancel()
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(COMPANY_WAIT_SECONDS, self._stop_waiting)

    def _stop_waiting(self) -> None:
        self.expected, self._patience = 0, None
        self._gone()


class Batcher(Generic[Work, Result]):
    """One queue in front of a few lanes.

    Args:
        launch: runs one batch in a lane.
        lanes: how many batches may run at once, each on one core. A lone sequence gets all, if it
            did not wait for them.
        budget: tokens of all lanes' batches together.
        speed: tokens per second to believe in until measured.
        costs: of works: how many tokens of short sequences take as long as each.
        small: tokens up to which a batch takes the same time; see Queue.
        most_requests, most_tokens: how much may wait.
        limits: of each key, by its name.
    """

    def __init__(
        self,
        launch: Launch[Work, Result],
        *,
        lanes: int,
        budget: int,
        speed: float,
        most_requests: int,
        most_tokens: int,
        limits: Mapping[str, Limits] | None = None,
        costs: Callable[[Sequence[Work]], Sequence[float]] = _works_lengths,
        small: int = SMALL_TOKENS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._launch, self.lanes, self._clock = launch, lanes, clock
        self.budget, self.costs = budget, costs
        self._small = small
        self._queue: JobQueue[Work, Result] = JobQueue(most_requests, most_tokens, limits, small)
        self._idle = list(range(lanes - 1, -1, -1))  # lane 0 is taken first, from the end
        self._running = dict[int, tuple[RunningBatch, asyncio.Task[None]]]()  # by lane
        self._speed, self._alone = LaneSpeed(speed), LoneCores(lanes)
        self._starts = 0  # of batches
        self._company = ReturningClients(self._fill_lanes)

    def set_limits(self, limits: Mapping[str, Limits]) -> None:
        """Limit what arrives from now on by these limits of each key, by its name."""
        self._queue.set_limits(limits)

    @property
    def waiting_requests(self) -> int:
        return self._queue.count

    @property
    def waiting_tokens(self) -> int:
        return self._queue.tokens

    @property
    def waiting_seconds(self) -> float:
        """Return the seconds until all waiting or running is done, at the recent speed."""
        now = self._clock()
        return self._queue.cost / self.speed + sum(
            run.seconds_left(now) for run, _ in self._running.values()
        )

    @property
    def busy(self) -> bool:
        return bool(self._running)

    @property
    def speed(self) -> float:
        """Return the tokens per second of all lanes together, measured recently."""
        return self._speed.current

    def is_hanging(self, least: float, times: float) -> bool:
        """Tell whether a batch takes more than `least` seconds and `times` what it should take."""
        now = self._clock()
        return any(run.is_hanging(now, least, times) for run, _ in self._running.values())

    def fewest_seconds(self, cost: float) -> float:
        """Return the seconds of a request with nothing ahead of it, at the best speed measured.

        The recent speed also falls while another process keeps the cores busy, which passes.
        """
        return cost / self._speed.best

    async def submit(
        self,
        works: Sequence[Work],
        deadline: float,
        key: str = "",
        costs: Sequence[float] | None = None,
    ) -> tuple[list[Result], Timing]:
        """Run a request's sequences, in as many batches as it takes; all or nothing.

        It waits even in a full queue: whether it may is asked before, with `check_admission`.

        Args:
            works: one per sequence; its len() is its number of tokens.
            deadline: when the answer must be there, on the batcher's clock.
            key: name of the API key that sent it.
            costs: of each, where they are known; see `costs`.

        Raises:
            DeadlinePassed: the deadline passed before the request, or its turn, came.
            Exception: the error of the first sequence that failed.
        """
        loop, now = asyncio.get_running_loop(), self._clock()
        future = loop.create_future()
        job: Job[Work, Result] = Job(works, costs or self.costs(works), deadline, now, future, key)
        self._company.count_arrival(first=self._queue.count == 0)
        self._queue.add_job(job)
        self._fill_lanes(fresh=True)
        late = loop.call_later(deadline - now, self._fail_job, job, DeadlinePassed())
        try:
            await future
        finally:
            late.cancel()
            self._queue.remove_job(job)  # finished, failed or cancelled
        results = [result for result in job.results if result is not None]
        return results, job.timing

    async def drain(self) -> None:
        """Return once nothing waits and nothing runs."""
        while len(self._queue) or self._running:
            running = [task for _, task in self._running.values()]
            await asyncio.wait([job.future for job in self._queue.jobs] or running)

    def estimate_cost(self, works: Sequence[Work]) -> float:
        """Return how many tokens of short sequences take as long as these works."""
        return sum(self.costs(works))

    def check_admission(self, tokens: int, cost: float, deadline: float, key: str = "") -> None:
        """Refuse a request that would not be admitted now.

        Args:
            tokens: that it holds, and cost: in tokens of short sequences.

        Raises:
            Overloaded: there is no room for it, or no time.
            DeadlinePassed: its deadline is over.
        """
        now = self._clock()
        if deadline <= now:
            raise DeadlinePassed()
        seconds = deadline - now
        if self._running:
            seconds = seconds * SURE_SHARE - sum(
                run.seconds_left(now) for run, _ in self._running.values()
            )
        self._queue.check_admission(tokens, cost, seconds, self._speed.current, key)

    def _fail_job(self, job: Job[Work, Result], error: Exception) -> None:
        if not job.future.done():
            job.future.set_exception(error)
        self._queue.remove_job(job)

    def _fill_lanes(self, *, fresh: bool = False) -> None:
        """Give every idle lane a batch.

        Args:
            fresh: whether a request has just come. A short one that waited has company, which is
                soon back, and leaves it the other of two cores; what it does of more is not known.
        """
        queue = self._queue
        if queue.count > fresh:  # what has just come, alone, was asked about its deadline
            self._fail_late_jobs()
        while queue.count and self._idle and not self._should_linger():
            greedy = fresh or self.lanes > LINGERING_LANES or queue.tokens > self._small
            alone = greedy and not self._running
            if alone and queue.count == 1 and len(queue.jobs[0].waiting) == 1:
                self._start_batch(
                    self.budget, self._idle[-self._alone.choose_cores(queue.tokens) :]
                )
            else:
                share = math.ceil(queue.tokens / len(self._idle))
                self._start_batch(min(share, self.budget // self.lanes), self._idle[-1:])

    def _should_linger(self) -> bool:
        """Tell whether a few short sequences wait for company, while one of two lanes runs.

        Else the first to come back starts alone, all others start together, and so on; and a batch
        of one takes almost half as long as a batch of four.
        """
        if not self._running or not self._company.expected or self._queue.tokens > self._small:
            return False
        soon = self._clock() + HURRY_SECONDS
        return all(job.deadline > soon for job in self._queue.jobs)

    def _fail_late_jobs(self) -> None:
        """Fail jobs that are late, and, while others wait, jobs that are bound to be."""
        now, jobs = self._clock(), self._queue.jobs
        pace = 1 / self.speed if len(jobs) > 1 else 0.0  # seconds for a token, at least
        for job in jobs:
            if job.deadline <= now + min(job.tokens, job.cost) * pace:
                self._fail_job(job, DeadlinePassed())

    def _start_batch(self, most: int, lanes: list[int]) -> None:
        """Take a batch of `most` tokens, which runs in `lanes` from now on."""
        batch = self._queue.take_batch(most, self._clock())
        self._idle = [lane for lane in self._idle if lane not in lanes]
        self._starts += 1
        alone = self._starts if len(batch) == 1 and not self._running else None
        task = asyncio.get_running_loop().create_task(self._step(batch, lanes, alone))
        share = len(lanes) / self.lanes
        run = RunningBatch(self._clock(), batch.cost / share / self._speed.current, share)
        self._running[lanes[-1]] = run, task

    async def _step(self, batch: Batch[Work, Result], lanes: list[int], alone: int | None) -> None:
        """Run a batch in the last of some lanes, with the cores of all, and hand its results out.

        Args:
            alone: the number of its start, if it is one sequence and nothing else runs.
        """
        start, results = self._clock(), list[Result | Exception]()
        try:
            results += await self._launch(lanes[-1], batch.works, len(lanes))
        except Exception as error:  # a lane that broke fails its batch, never the queue
            results = [error] * len(batch)
        finally:
            self._free_lanes(lanes)  # before anyone is told: what one sends next finds them idle
        seconds = self._clock() - start
        self._update_speed(batch, seconds, len(lanes), alone)
        self._hand_out(batch, results, seconds)
        self._fill_lanes()

    def _free_lanes(self, lanes: list[int]) -> None:
        """Let lanes take the next batch."""
        del self._running[lanes[-1]]
        self._idle = sorted([*self._idle, *lanes], reverse=True)

    def _hand_out(
        self, batch: Batch[Work, Result], results: Sequence[Result | Exception], seconds: float
    ) -> None:
        """Give requests their results, and tell those that have all of them."""
        for (job, index), result in zip(batch, results, strict=True):
            if isinstance(result, Exception):
                self._fail_job(job, result)
            else:
                job.results[index] = result
                job.unfinished -= 1
        jobs = dict.fromkeys(job for job, _ in batch)
        for job in jobs:
            job.computed += seconds
        answered = [job for job in jobs if not job.unfinished and not job.future.done()]
        for job in answered:
            job.future.set_result(None)
        if self.lanes == LINGERING_LANES:
            self._company.expect(len(answered))

    def _update_speed(
        self, batch: Batch[Work, Result], seconds: float, cores: int, alone: int | None
    ) -> None:
        """Update the speed from a batch, scaled up if it had only some of the cores.

        A small batch takes the same time whatever it holds, so it says nothing about a queue.
        """
        if alone == self._starts:  # nor since
            self._alone.record(cores, batch.tokens, seconds)
        if batch.cost >= self._small:
            self._speed.record(batch.cost * self.lanes / cores, seconds)
