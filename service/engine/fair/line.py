"""The requests of one key whose works are not all started: small ones before large ones."""

import asyncio
import math
from bisect import insort
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from operator import attrgetter
from typing import Generic, TypeVar

TURN_TOKENS = (
    256  # tokens that a key starts before it is the next one's turn: a batch of short texts
)
# Tokens of smaller requests that may pass the oldest one, and again as many as it has started
# since: small requests without end leave half of what their key gets to the large ones before them
OVERTAKING_TOKENS = 4096

SIZE_OF_JOB = attrgetter("size")

Work = TypeVar("Work", bound=Sized)
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True)
class Timing:
    """What became of a request's time, seconds: before its first batch, and in batches."""

    queued: float
    computed: float


@dataclass(eq=False, slots=True)
class Job(Generic[Work, Result]):
    """One request and what has become of it.

    Args:
        lengths, costs: of each work, in tokens, and in tokens of short sequences.
        key: name of the key that sent it.
        waiting: indices of works not yet started, longest first (taken from the end).
        tokens, cost: of the waiting works; size: tokens of all.
    """

    works: Sequence[Work]
    costs: Sequence[float]
    deadline: float
    arrived: float
    future: asyncio.Future[None]
    key: str = ""
    started: float = math.inf
    computed: float = 0.0
    lengths: Sequence[int] = field(init=False)
    waiting: list[int] = field(init=False)
    tokens: int = field(init=False)
    size: int = field(init=False)
    cost: float = field(init=False)
    results: list[Result | None] = field(init=False)
    unfinished: int = field(init=False)

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
        return Timing(self.started - self.arrived, self.computed)


class Batch(list[tuple[Job[Work, Result], int]]):
    """Works of jobs by their index, and what they come to together.

    Args:
        tokens: of all works.
        cost: in tokens of short sequences.
    """

    tokens: int = 0
    cost: float = 0.0

    @property
    def works(self) -> list[Work]:
        """Return what is to run."""
        return [job.works[index] for job, index in self]


class JobLine(Generic[Work, Result]):
    """The requests of one key whose works are not all started.

    Attributes:
        jobs: in order of arrival.
        left: tokens it may start before it is the next key's turn; what is too much is owed.
        gone: tokens that all keys together had started when this one had no request left.
    """

    def __init__(self) -> None:
        self.jobs = dict[Job[Work, Result], None]()
        self._by_size: list[Job[Work, Result]] = []
        self.tokens, self.cost = 0, 0.0
        self.left, self.gone = TURN_TOKENS, 0
        self._ahead = OVERTAKING_TOKENS  # tokens that may pass the oldest request now

    def add_job(self, job: Job[Work, Result]) -> None:
        """Add a request to those that wait."""
        self.jobs[job] = None
        insort(self._by_size, job, key=SIZE_OF_JOB)
        self.tokens += job.tokens
        self.cost += job.cost

    def remove_job(self, job: Job[Work, Result]) -> None:
        """Remove what still waits of a request."""
        self._subtract(job.tokens, job.cost)
        self._drop(job)

    def next_job(self) -> Job[Work, Result]:
        """Return the smallest request, or the oldest where too much has passed that."""
        smallest = self._by_size[0]
        return smallest if smallest.tokens <= self._ahead else next(iter(self.jobs))

    def start_works(self, job: Job[Work, Result], batch: Batch[Work, Result], room: int) -> int:
        """Start works of a request, the shortest first; it leaves with its last work.

        Args:
            batch: takes them.
            room: tokens at most.

        Returns:
            The tokens that were started.
        """
        tokens, cost = 0, 0.0
        waiting, lengths = job.waiting, job.lengths
        while waiting and tokens + lengths[waiting[-1]] <= room:
            index = waiting.pop()
            tokens, cost = tokens + lengths[index], cost + job.costs[index]
            batch.append((job, index))
        job.tokens, job.cost = job.tokens - tokens, job.cost - cost if waiting else 0.0
        batch.tokens, batch.cost = batch.tokens + tokens, batch.cost + cost
        oldest = job is next(iter(self.jobs))
        self._ahead = (
            min(OVERTAKING_TOKENS, self._ahead + tokens) if oldest else self._ahead - tokens
        )
        self.left -= tokens
        self._subtract(tokens, cost)
        if not waiting:
            self._drop(job)
        return tokens

    def _drop(self, job: Job[Work, Result]) -> None:
        del self.jobs[job]
        self._by_size.remove(job)

    def _subtract(self, tokens: int, cost: float) -> None:
        """Subtract what no longer waits; an empty line costs exactly 0 again."""
        self.tokens -= tokens
        self.cost = self.cost - cost if self.tokens else 0.0
