"""The waiting requests of one API key, small ones before large ones."""

import asyncio
import math
from bisect import insort
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

# Tokens that a key may start in its turn, before the next key's turn: a batch of short texts
TURN_TOKENS = 256
# Tokens of smaller requests that may overtake the oldest one; each token that the oldest starts
# allows another. So however many small requests come, large ones get half of their key's share.
OVERTAKING_TOKENS = 4096

Work = TypeVar("Work", bound=Sized)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Timing:
    """Where a request's time went, in seconds."""

    queued: float  # from its arrival to the start of its first batch
    computed: float  # in the batches that its works were in


@dataclass(eq=False, slots=True)
class Job(Generic[Work, Result]):
    """One request in the queue: its works, what of them still waits, and the results so far."""

    works: Sequence[Work]
    costs: Sequence[float]  # of each work, in tokens of short sequences that take as long
    deadline: float  # of all works, on the batcher's clock
    arrived: float  # when it was submitted, on the batcher's clock
    future: asyncio.Future[None]  # done when the last work is, or as soon as one fails
    key: str = ""  # name of the API key that sent it
    started: float = math.inf  # when its first batch was started, on the batcher's clock
    computed: float = 0.0  # seconds of all batches that its works were in
    lengths: Sequence[int] = field(init=False)  # tokens of each work
    waiting: list[int] = field(init=False)  # indices of works not started, longest first
    tokens: int = field(init=False)  # of the waiting works
    size: int = field(init=False)  # tokens of all works
    cost: float = field(init=False)  # of the waiting works
    results: list[Result | None] = field(init=False)  # of each work; None until it is done
    unfinished: int = field(init=False)  # how many works are not done

    def __post_init__(self) -> None:
        self.unfinished = count = len(self.works)
        self.results = [None] * count
        self.lengths = lengths = list(map(len, self.works))
        self.waiting = [0]
        if count != 1:
            self.waiting = sorted(range(count), key=lengths.__getitem__, reverse=True)
        self.tokens = self.size = sum(lengths)
        self.cost = sum(self.costs)

    @property
    def timing(self) -> Timing:
        """Return how long it waited and was computed, once its first batch has started."""
        return Timing(self.started - self.arrived, self.computed)


class Batch(list[tuple[Job[Work, Result], int]]):
    """The works that run together, each as its job and its index there."""

    tokens: int = 0  # of all works
    cost: float = 0.0  # of all works, in tokens of short sequences that take as long

    @property
    def works(self) -> list[Work]:
        """Return the works themselves."""
        return [job.works[index] for job, index in self]


class JobLine(Generic[Work, Result]):
    """The requests of one key whose works are not all started.

    Attributes:
        jobs: in order of arrival.
        tokens, cost: of all their waiting works.
        turn_tokens: tokens it may still start in this turn; below 0, its next turn is shorter.
        started_when_empty: tokens that all keys had started when its last request left.
    """

    def __init__(self) -> None:
        self.jobs = dict[Job[Work, Result], None]()
        self._by_size: list[Job[Work, Result]] = []
        self.tokens, self.cost = 0, 0.0
        self.turn_tokens, self.started_when_empty = TURN_TOKENS, 0
        self._overtaking = OVERTAKING_TOKENS  # tokens that may still overtake the oldest request

    def add_job(self, job: Job[Work, Result]) -> None:
        """Add a request to those that wait."""
        self.jobs[job] = None
        insort(self._by_size, job, key=attrgetter("size"))
        self.tokens += job.tokens
        self.cost += job.cost

    def remove_job(self, job: Job[Work, Result]) -> None:
        """Remove a request with the works of it that still wait."""
        self._subtract(job.tokens, job.cost)
        self._drop(job)

    def next_job(self) -> Job[Work, Result]:
        """Return the smallest request, or the oldest if too many tokens have overtaken that."""
        smallest = self._by_size[0]
        return smallest if smallest.tokens <= self._overtaking else next(iter(self.jobs))

    def start_works(self, job: Job[Work, Result], batch: Batch[Work, Result], room: int) -> int:
        """Move a request's waiting works to a batch, the shortest first, as many as fit.

        A request with no work left is removed from the line.

        Args:
            room: most tokens to move.

        Returns:
            The number of tokens moved.
        """
        tokens, cost = 0, 0.0
        waiting, lengths = job.waiting, job.lengths
        while waiting and tokens + lengths[waiting[-1]] <= room:
            index = waiting.pop()
            tokens, cost = tokens + lengths[index], cost + job.costs[index]
            batch.append((job, index))
        job.tokens, job.cost = job.tokens - tokens, job.cost - cost if waiting else 0.0
        batch.tokens, batch.cost = batch.tokens + tokens, batch.cost + cost
        if job is next(iter(self.jobs)):  # the oldest
            self._overtaking = min(OVERTAKING_TOKENS, self._overtaking + tokens)
        else:
            self._overtaking -= tokens
        self.turn_tokens -= tokens
        self._subtract(tokens, cost)
        if not waiting:
            self._drop(job)
        return tokens

    def _drop(self, job: Job[Work, Result]) -> None:
        """Remove a request from both orders of the line."""
        del self.jobs[job]
        self._by_size.remove(job)

    def _subtract(self, tokens: int, cost: float) -> None:
        """Subtract works that no longer wait; the cost of an empty line is exactly 0."""
        self.tokens -= tokens
        self.cost = self.cost - cost if self.tokens else 0.0
