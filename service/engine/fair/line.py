"""The waiting requests of one API key, small ones before large ones."""

import math
from bisect import insort
from operator import attrgetter
from typing import Generic

from service.shapes.job import Batch, Job, Result, Work

# Tokens of smaller requests that may overtake the oldest one; each token that the oldest starts
# allows another. So however many small requests come, large ones get half of their key's share.
OVERTAKING_TOKENS = 4096


class JobLine(Generic[Work, Result]):
    """The requests of one key whose works are not all started.

    Args:
        key: its name.

    Attributes:
        jobs: in order of arrival.
        tokens, cost: of all their waiting works.
        started: tokens that it has started, and those that it let pass while it had none waiting.
        came: when its last request came, on the batcher's clock.
    """

    def __init__(self, key: str) -> None:
        self.key = key
        self.jobs = dict[Job[Work, Result], None]()
        self._by_size: list[Job[Work, Result]] = []
        self.tokens, self.cost = 0, 0.0
        self.started, self.came = 0, -math.inf
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
        self.started += tokens
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
