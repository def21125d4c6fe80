"""Runs waiting sequences as batches under a token budget; plain asyncio, no Ray.

A request is admitted or refused as a whole, by service/pipeline/admission.py, which asks here; its
sequences may run in several batches.

`_step` is the engine: it runs a batch and hands its results out.

Nothing here loops: `_fill_lanes` runs when work arrives, a lane falls idle or company is no
longer expected, so no background task can die and leave the queue waiting.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence, Sized
from typing import Generic

from service.engine.fair.queue import SMALL_TOKENS, JobQueue
from service.engine.speed import LaneSpeed, LoneCores, RunningBatch
from service.shapes.job import Batch, Job, Result, Timing, Work
from service.tables.keys import Limits
from service.tables.refusals import Refused

# A request behind others is admitted if it should be done within this share of its remaining time:
# the speed varies, the answer must be written too, and work that is done late is lost.
SURE_SHARE = 0.8
# Number of lanes with which a batch may wait for returning clients, so that they share it; with
# more lanes this has not been measured
LINGERING_LANES = 2
HURRY_SECONDS = 0.1  # a request this close to its deadline waits for no other
# How long to wait for returning clients; most send their next request within this time, since the
# event loop takes 1 to 4 ms for each while a batch runs
COMPANY_WAIT_SECONDS = 0.01


# Runs works in lane `lane` with `threads` cores; returns one result or exception for each.
Launch = Callable[[int, Sequence[Work], int], Awaitable[Sequence[Result | Exception]]]


def _count_tokens(works: Sequence[Sized]) -> list[int]:
    """Return the number of tokens of each work."""
    return list(map(len, works))


class ReturningClients:
    """Counts clients that were just answered and are likely to send another request at once.

    Each is expected for COMPANY_WAIT_SECONDS. An arrival counts as that of the client answered
    last, so one that does not return is forgotten in time, however many others do.

    Args:
        on_timeout: called when some are expected no more.
    """

    def __init__(self, on_timeout: Callable[[], None]) -> None:
        self._on_timeout = on_timeout
        self._until = deque[float]()  # when each client is expected no more, the next one first
        self._timer: asyncio.TimerHandle | None = None

    @property
    def expected(self) -> int:
        """Return how many clients are expected."""
        return len(self._until)

    def expect(self, count: int) -> None:
        """Expect another request of this many more clients."""
        until = asyncio.get_running_loop().time() + COMPANY_WAIT_SECONDS
        self._until.extend([until] * count)
        if self._timer is None:
            self._start_timer()

    def count_arrival(self) -> None:
        """Count an arriving request as that of an expected client, if there is one."""
        if self._until:
            self._until.pop()

    def _start_timer(self) -> None:
        """Start the timer for the next client to be forgotten, if any is expected."""
        if self._until:
            loop = asyncio.get_running_loop()
            self._timer = loop.call_at(self._until[0], self._forget_late)

    def _forget_late(self) -> None:
        """Expect those no more whose time is over, and say so to `on_timeout`."""
        now, self._timer = asyncio.get_running_loop().time(), None
        while self._until and self._until[0] <= now:
            self._until.popleft()
        self._start_timer()
        self._on_timeout()


class Batcher(Generic[Work, Result]):
    """Queues the works of requests and runs them as batches in a few lanes.

    Args:
        launch: runs one batch in a lane.
        lanes: how many batches may run at once, each on one core. A sequence that arrives while
            nothing runs may get the cores of all lanes.
        budget: most tokens in the batches of all lanes together, and their most cost.
        speed: initial estimate of the tokens per second of all lanes together.
        costs: returns the cost of each work: how many tokens of short sequences take as long.
        small: tokens up to which every batch takes the same time; see JobQueue.
        most_requests, most_tokens: how many may wait.
        limits: limits of each API key, by its name.
        clock: returns the current time in seconds, as time.monotonic.
        processor_seconds: returns the processor time that a lane's thread has had.
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
        costs: Callable[[Sequence[Work]], Sequence[float]] = _count_tokens,
        small: int = SMALL_TOKENS,
        clock: Callable[[], float] = time.monotonic,
        processor_seconds: Callable[[int], float] = lambda lane: 0.0,
    ) -> None:
        self._launch, self.lanes, self._clock = launch, lanes, clock
        self._processor_seconds = processor_seconds
        self.budget, self.costs = budget, costs
        self._small = small
        self._queue: JobQueue[Work, Result] = JobQueue(most_requests, most_tokens, limits, small)
        self._idle = list(range(lanes - 1, -1, -1))  # lane 0 is taken first, from the end
        self._running = dict[int, tuple[RunningBatch, asyncio.Task[None]]]()  # by lane
        self._speed, self._lone_cores = LaneSpeed(speed), LoneCores(lanes)
        self._batches_started = 0
        self._returning = ReturningClients(self._fill_lanes)

    def set_limits(self, limits: Mapping[str, Limits]) -> None:
        """Set the limits of each API key, by its name, for requests that arrive from now on."""
        self._queue.set_limits(limits)

    @property
    def waiting_requests(self) -> int:
        """Return the number of requests with works that are not started."""
        return self._queue.count

    @property
    def waiting_tokens(self) -> int:
        """Return the number of tokens in works that are not started."""
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
        """Tell whether any batch runs."""
        return bool(self._running)

    @property
    def speed(self) -> float:
        """Return the tokens per second of all lanes together, measured recently."""
        return self._speed.current

    def is_hanging(self, least: float, times: float) -> bool:
        """Tell whether a batch takes over `least` seconds and `times` its expected time.

        It is watched from the first call on; see `RunningBatch.is_hanging`.
        """
        now, found = self._clock(), list[bool]()
        for lane, (run, _) in self._running.items():  # all: each is watched from now on
            found.append(run.is_hanging(now, self._processor_seconds(lane), least, times))
        return any(found)

    def fewest_seconds(self, cost: float) -> float:
        """Return the seconds that work of this cost takes with an empty queue, at the best speed.

        Not at the recent speed: that also falls while another process keeps the cores busy.
        """
        return cost / self._speed.best

    async def submit(
        self,
        works: Sequence[Work],
        deadline: float,
        key: str = "",
        costs: Sequence[float] | None = None,
    ) -> tuple[list[Result], Timing]:
        """Run a request's sequences in as many batches as needed; return all results in order.

        A full queue is not checked here: call `check_admission` before.

        Args:
            works: one per sequence; its len() is its number of tokens.
            deadline: when the answer must be ready, on the batcher's clock.
            key: name of the API key that sent the request.
            costs: cost of each work, if already computed; see Batcher.

        Returns:
            One result for each work, and the seconds that they waited and were computed.

        Raises:
            Refused: the deadline passed before all results were there.
            Exception: the error of the first sequence that failed.
        """
        loop, now = asyncio.get_running_loop(), self._clock()
        future = loop.create_future()
        job: Job[Work, Result] = Job(works, costs or self.costs(works), deadline, now, future, key)
        self._returning.count_arrival()
        self._queue.add_job(job)
        self._fill_lanes(fresh=True)
        timer = loop.call_later(deadline - now, self._fail_job, job)
        try:
            await future
        finally:
            timer.cancel()
            self._queue.remove_job(job)  # finished, failed or cancelled
        results = [result for result in job.results if result is not None]
        return results, job.timing

    async def drain(self) -> None:
        """Wait until no work waits and no batch runs."""
        while len(self._queue) or self._running:
            running = [task for _, task in self._running.values()]
            await asyncio.wait([job.future for job in self._queue.jobs] or running)

    def check_admission(self, tokens: int, cost: float, deadline: float, key: str = "") -> None:
        """Raise if a request would not be admitted now.

        Args:
            tokens, cost: of the request; the cost in tokens of short sequences.
            deadline: when its answer must be ready, on the batcher's clock.
            key: name of the API key that sent it.

        Raises:
            Refused: the queue has no room for it, or it could not be done in time.
        """
        now = self._clock()
        if deadline <= now:
            raise Refused("deadline_exceeded")
        seconds = deadline - now
        if self._running:
            seconds = seconds * SURE_SHARE - sum(
                run.seconds_left(now) for run, _ in self._running.values()
            )
        self._queue.check_admission(tokens, cost, seconds, self._speed.current, key)

    def _fail_job(self, job: Job[Work, Result], error: Exception | None = None) -> None:
        """End a job with an error (None: it is late), unless it has ended; drop waiting works."""
        if not job.future.done():
            job.future.set_exception(error or Refused("deadline_exceeded"))
        self._queue.remove_job(job)

    def _fill_lanes(self, *, fresh: bool = False) -> None:
        """Start a batch in every idle lane, as long as works wait.

        Args:
            fresh: whether a request has just arrived. A short request that had to wait shares the
                lanes with others that soon come back, so with two lanes it takes only one.
        """
        queue = self._queue
        if queue.count > fresh:  # the deadline of a request that has just arrived was checked
            self._fail_late_jobs()
        while queue.count and self._idle:
            greedy = self._find_greedy_key()
            if self._should_linger() if greedy is None else not queue.waits_besides(greedy):
                break
            may_take_all = fresh or self.lanes > LINGERING_LANES or queue.tokens > self._small
            alone = may_take_all and not self._running
            if alone and queue.count == 1 and len(queue.jobs[0].waiting) == 1:
                cores = self._lone_cores.choose_cores(queue.tokens)
                self._start_batch(self.budget, self._idle[-cores:])
            else:
                share = math.ceil(queue.tokens / len(self._idle))
                self._start_batch(min(share, self.budget // self.lanes), self._idle[-1:], greedy)

    def _find_greedy_key(self) -> str | None:
        """Return the key that may not have the last idle lane, so that another finds it idle.

        It is most of each batch that runs, and would go on while another has asked lately. None:
        all may have it.
        """
        if len(self._idle) > 1:
            return None
        keys = {run.batch.main_key for run, _ in self._running.values()}
        key = keys.pop() if len(keys) == 1 else None
        return key if key and self._queue.is_contested(key, self._clock()) else None

    def _should_linger(self) -> bool:
        """Tell whether a few short sequences wait for returning clients, while one lane runs.

        Otherwise the first client to return would get a batch alone and all others the next one,
        again and again; and a batch of one takes almost half as long as a batch of four. None
        waits for longer than COMPANY_WAIT_SECONDS, though each answer lets others be expected.
        """
        if not self._running or not self._returning.expected or self._queue.tokens > self._small:
            return False
        now = self._clock()
        soon, since = now + HURRY_SECONDS, now - COMPANY_WAIT_SECONDS
        return all(job.deadline > soon and job.arrived > since for job in self._queue.jobs)

    def _fail_late_jobs(self) -> None:
        """Fail jobs past their deadline and, if several wait, those that cannot meet it."""
        now, jobs = self._clock(), self._queue.jobs
        token_seconds = 1 / self.speed if len(jobs) > 1 else 0.0
        for job in jobs:
            if job.deadline <= now + min(job.tokens, job.cost) * token_seconds:
                self._fail_job(job)

    def _start_batch(self, most_tokens: int, lanes: list[int], without: str | None = None) -> None:
        """Take a batch of at most `most_tokens`, without a key, from the queue; start it."""
        most_cost = self.budget * len(lanes) / self.lanes
        batch = self._queue.take_batch(most_tokens, self._clock(), without, most_cost)
        self._idle = [lane for lane in self._idle if lane not in lanes]
        self._batches_started += 1
        alone = self._batches_started if len(batch) == 1 and not self._running else None
        task = asyncio.get_running_loop().create_task(self._step(batch, lanes, alone))
        share = len(lanes) / self.lanes
        run = RunningBatch(batch, self._clock(), batch.cost / share / self._speed.current, share)
        self._running[lanes[-1]] = run, task

    async def _step(self, batch: Batch[Work, Result], lanes: list[int], alone: int | None) -> None:
        """Run a batch in the last of `lanes`, with the cores of all, and hand out its results.

        Args:
            alone: how many batches had been started with this one, if it is a single sequence and
                nothing else ran; else None.
        """
        start = self._clock()
        results: list[Result | Exception] = []
        try:
            results += await self._launch(lanes[-1], batch.works, len(lanes))
        except Exception as error:  # a lane that broke fails its batch, never the queue
            results = [error] * len(batch)
        finally:
            self._free_lanes(lanes)  # before clients are answered: their next request finds it idle
        seconds = self._clock() - start
        self._update_speed(batch, seconds, len(lanes), alone)
        self._hand_out(batch, results, seconds)
        self._fill_lanes()

    def _free_lanes(self, lanes: list[int]) -> None:
        """Mark lanes as idle again."""
        del self._running[lanes[-1]]
        self._idle = sorted([*self._idle, *lanes], reverse=True)

    def _hand_out(
        self, batch: Batch[Work, Result], results: Sequence[Result | Exception], seconds: float
    ) -> None:
        """Store each work's result in its job, and wake the requests whose works are all done."""
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
            self._returning.expect(len(answered))

    def _update_speed(
        self, batch: Batch[Work, Result], seconds: float, cores: int, alone: int | None
    ) -> None:
        """Update the measured speed from a finished batch, scaled up to all cores.

        A small batch takes the same time for any contents, so the speed leaves it out.

        Args:
            alone: as in `_step`.
        """
        if alone == self._batches_started:  # no other batch was started meanwhile
            self._lone_cores.record(cores, batch.tokens, seconds)
        if batch.cost >= self._small:
            self._speed.record(batch.cost * self.lanes / cores, seconds)
