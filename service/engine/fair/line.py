"""The waiting requests of one API key: first come, but a much smaller one overtakes."""

import math
from collections import defaultdict
from typing import Generic

from service.shapes.job import Batch, Job, Result, Work

# A request overtakes those of at least so many times its tokens. What are about equal wait equally:
# smallest first, a crowd had a p99 of up to 17 times its median (docs/decisions/0002).
OVERTAKING_FACTOR = 2
# Tokens that may overtake the oldest request, but no more than it has itself; each token that it
# starts allows another. So however many small requests come, a large one advances like all of them.
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
        # the same by octave: sizes from one power of two to the next
        self._octaves = defaultdict[int, dict[Job[Work, Result], None]](dict)
        self.tokens, self.cost = 0, 0.0
        self.started, self.came = 0, -math.inf
        self._overtaken = 0  # tokens that overtook the oldest request, less those it has started

    def add_job(self, job: Job[Work, Result]) -> None:
        """Add a request to those that wait."""
        self.jobs[job] = None
        self._octaves[job.size.bit_length()][job] = None
        self.tokens += job.tokens
        self.cost += job.cost

    def remove_job(self, job: Job[Work, Result]) -> None:
        """Remove a request with the works of it that still wait."""
        self._subtract(job.tokens, job.cost)
        self._drop(job)

    def next_job(self) -> Job[Work, Result]:
        """Return the oldest request, or one that overtakes it.

        Of the oldest of each octave, from large to small, each overtakes the one found before it.
        """
        first = oldest = next(iter(self.jobs))
        for octave in sorted(self._octaves, reverse=True):
            job = next(iter(self._octaves[octave]))
            if OVERTAKING_FACTOR * job.tokens <= first.tokens:
                first = job
        most = min(OVERTAKING_TOKENS, oldest.size)
        return first if self._overtaken + first.tokens <= most else oldest

    def start_works(
        self,
        job: Job[Work, Result],
        batch: Batch[Work, Result],
        room: int,
        cost_room: float = math.inf,
    ) -> int:
        """Move a request's waiting works to a batch, the shortest first, as many as fit.

        A request with no work left is removed from the line.

        Args:
            room, cost_room: most tokens and cost to move.

        Returns:
            The number of tokens moved.
        """
        tokens, cost = 0, 0.0
        waiting, lengths, costs = job.waiting, job.lengths, job.costs
        while waiting:
            index = waiting[-1]
            if tokens + lengths[index] > room or cost + costs[index] > cost_room:
                break
            tokens, cost = tokens + lengths[index], cost + costs[index]
            batch.append((job, waiting.pop()))
        job.tokens, job.cost = job.tokens - tokens, job.cost - cost if waiting else 0.0
        batch.tokens, batch.cost = batch.tokens + tokens, batch.cost + cost
        if job is next(iter(self.jobs)):  # the oldest
            self._overtaken = max(0, self._overtaken - tokens)
        else:
            self._overtaken += tokens
        self.started += tokens
        self._subtract(tokens, cost)
        if not waiting:
            self._drop(job)
        return tokens

    def _drop(self, job: Job[Work, Result]) -> None:
        """Remove a request from both orders of the line."""
        if job is next(iter(self.jobs)):
            self._overtaken = 0
        del self.jobs[job]
        octave = job.size.bit_length()
        del self._octaves[octave][job]
        if not self._octaves[octave]:
            del self._octaves[octave]

    def _subtract(self, tokens: int, cost: float) -> None:
        """Subtract works that no longer wait; the cost of an empty line is exactly 0."""
        self.tokens -= tokens
        self.cost = self.cost - cost if self.tokens else 0.0
