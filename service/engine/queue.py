"""The requests that wait, in order of their turn, within bounds.

Requests take turns as if the machine were shared evenly among all that wait: whoever would be
done first then, goes first. So a small request passes a flood of large ones, and no stream of
small ones can hold a large one up for ever.

Source: Demers, Keshav and Shenker 1989, "Analysis and Simulation of a Fair Queueing Algorithm".
"""

import asyncio
import math
from bisect import insort
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

# A batch grows to this many times the request that leads it, so that a short request does not
# wait for the long ones it shares a batch with; below SMALL tokens sharing costs nothing.
GROWTH = 8
SMALL = 128

Work = TypeVar("Work", bound=Sized)
Result = TypeVar("Result")


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


@dataclass(eq=False, slots=True)
class Job(Generic[Work, Result]):
    """One request and what has become of it.

    Args:
        costs: of each work, in tokens of short sequences.
        waiting: indices not yet started, longest first (taken from the end).
    """

    works: Sequence[Work]
    costs: Sequence[float]
    deadline: float
    arrived: float
    future: asyncio.Future[None]
    turn: float = math.inf
    started: float = math.inf
    computed: float = 0.0
    waiting: list[int] = field(init=False)
    results: list[Result | None] = field(init=False)
    unfinished: int = field(init=False)

    def __post_init__(self) -> None:
        self.unfinished = len(self.works)
        self.results = [None] * self.unfinished
        self.waiting = sorted(range(self.unfinished), key=self.length, reverse=True)

    def length(self, index: int) -> int:
        """Tokens of one work."""
        return len(self.works[index])

    @property
    def tokens(self) -> int:
        return sum(map(self.length, self.waiting))

    @property
    def cost(self) -> float:
        return sum(self.costs[index] for index in self.waiting)


Batch = list[tuple[Job[Work, Result], int]]  # works by their index


def total_cost(batch: Batch[Work, Result]) -> float:
    """What a batch takes, in tokens of short sequences."""
    return sum(job.costs[index] for job, index in batch)


class Queue(Generic[Work, Result]):
    """Admitted requests whose works are not all started.

    Args:
        most_requests, most_tokens: what may wait.
    """

    def __init__(self, most_requests: int, most_tokens: int) -> None:
        self._most_requests, self._most_tokens = most_requests, most_tokens
        self.jobs: list[Job[Work, Result]] = []  # in order of their turn
        self.tokens, self.cost = 0, 0.0
        self._shares = Shares()

    def check(self, tokens: int, cost: float, seconds: float, speed: float) -> None:
        """Raise where a request would not be admitted now.

        Args:
            tokens, cost: of the request.
            seconds: until its deadline.
            speed: tokens of short sequences per second.

        Raises:
            Overloaded, DeadlinePassed: why not.
        """
        if seconds <= 0:
            raise DeadlinePassed()
        late = (self.cost + cost) / speed >= seconds
        full = len(self.jobs) >= self._most_requests
        crowded = self.jobs and self.tokens + tokens > self._most_tokens
        if late or full or crowded:
            bound = "queue_full" if full else "token_budget" if crowded else "deadline"
            raise Overloaded(self.cost / speed, bound)

    def enter(self, job: Job[Work, Result]) -> None:
        """A request waits from now on."""
        job.turn = self._shares.enter(job.tokens)
        insort(self.jobs, job, key=lambda job: job.turn)
        self.tokens += job.tokens
        self.cost += job.cost

    def leave(self, job: Job[Work, Result]) -> None:
        """What still waits of a request will not run."""
        if job in self.jobs:
            self.jobs.remove(job)
            self._subtract(job.tokens, job.cost)
            self._shares.leave(job.turn, job.tokens)

    def take(self, most: int, now: float) -> Batch[Work, Result]:
        """Works for one batch of so many tokens, in order of turn; at least one, however long."""
        most = min(most, max(SMALL, GROWTH * self.jobs[0].tokens))
        batch: Batch[Work, Result] = []
        total = 0
        for job in list(self.jobs):
            job.started = min(job.started, now)
            while job.waiting and (not batch or total + job.length(job.waiting[-1]) <= most):
                index = job.waiting.pop()
                batch.append((job, index))
                total += job.length(index)
            if job.waiting:  # the batch is full
                break
            self.jobs.remove(job)
        self._subtract(total, total_cost(batch))
        self._shares.serve(total)
        return batch

    def _subtract(self, tokens: int, cost: float) -> None:
        """So much waits no longer; with the last of it goes what rounding left of its cost."""
        self.tokens -= tokens
        self.cost = self.cost - cost if self.tokens else 0.0


class Shares:
    """The clock of the evenly shared machine.

    It counts the tokens that a request waiting since the start would have had by now. Who waits is
    who would still wait there: work here is done one request after the other, so that the last
    of several that came together is left alone with a clock that must not run any faster.

    >>> shares = Shares()
    >>> first, second = shares.enter(100), shares.enter(100)
    >>> shares.serve(150)  # all of the first, half of the second
    >>> shares.enter(5)  # would be done before the second
    80.0
    """

    def __init__(self) -> None:
        self._now = 0.0
        self._turns: list[float] = []  # of those who would still wait
        self._ahead = 0.0  # tokens that are done there and not yet here

    def enter(self, tokens: int) -> float:
        """A request comes; returns its turn, by which requests are to be ordered."""
        turn = self._now + tokens
        insort(self._turns, turn)
        return turn

    def leave(self, turn: float, tokens: int) -> None:
        """A request gives up, with so many tokens not done.

        What it had more or less of here than there, the others had less or more of.
        """
        if turn in self._turns:
            self._turns.remove(turn)
        self.serve(tokens - max(turn - self._now, 0.0))

    def serve(self, tokens: float) -> None:
        """So many tokens are done, of whomever."""
        tokens -= self._ahead
        self._ahead = max(-tokens, 0.0)
        while self._turns and tokens > 0:
            needed = (self._turns[0] - self._now) * len(self._turns)
            if tokens < needed:
                self._now += tokens / len(self._turns)
                return
            tokens -= needed
            self._now = self._turns.pop(0)
