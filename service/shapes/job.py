"""A request in the queue, and the works that run together."""

import asyncio
import math
from collections import Counter
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

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

    @property
    def main_key(self) -> str | None:
        """Return the key that has more than half of the tokens; None: none has."""
        tokens = Counter[str]()
        for job, index in self:
            tokens[job.key] += job.lengths[index]
        ((key, most),) = tokens.most_common(1)
        return key if 2 * most > self.tokens else None
