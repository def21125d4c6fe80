"""The bounded queue of waiting requests, with a line for each API key.

The key that has started the fewest tokens is next, so none delays another by sending many requests;
one that comes has no claim on what was started without it. Within a key, first come, but much
smaller requests overtake (line.py). Without keys, all requests stand in one line.

Source: Goyal, Vin and Cheng 1996, "Start-time Fair Queueing".
"""

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Generic

from service.engine.fair.line import JobLine
from service.engine.fair.rotation import fits_fairly
from service.shapes.job import Batch, Job, Result, Work
from service.tables.keys import Limits
from service.tables.refusals import overloaded

# A batch may have this many times the tokens of its first request, so that a short request does not
# wait for the long ones it shares a batch with
BATCH_GROWTH = 8
# Tokens up to which a batch always may grow: on a CPU up to SMALL_TOKENS sharing costs no time (on
# a GPU up to what proof.py measures); of short ones up to CROWD_TOKENS a little, and each token
# takes 10 % less
SMALL_TOKENS = 128
CROWD_TOKENS = 256
# After a request a key is expected to ask again for so long, as one that asks ten times a second
LATELY_SECONDS = 0.15


class JobQueue(Generic[Work, Result]):
    """Admitted requests whose works are not all started.

    Args:
        most_requests, most_tokens: how many may wait.
        limits: limits of each API key, by its name.
        small: tokens up to which requests can share a batch at no cost.

    Attributes:
        count, tokens, cost: of all that wait: requests, tokens, and tokens of short sequences
            that take as long.
    """

    def __init__(
        self,
        most_requests: int,
        most_tokens: int,
        limits: Mapping[str, Limits] | None = None,
        small: int = SMALL_TOKENS,
    ) -> None:
        self._most_requests, self._most_tokens, self._small = most_requests, most_tokens, small
        self._lines = dict[str, JobLine[Work, Result]]()  # by key; empty lines stay
        self._waiting = list[JobLine[Work, Result]]()  # lines that are not empty
        self._latest = list[JobLine[Work, Result]]()  # of the two keys that asked last
        self._started = 0  # tokens of the line that was served last, before it was
        self.count, self.tokens, self.cost = 0, 0, 0.0
        self.set_limits(limits or {})

    def set_limits(self, limits: Mapping[str, Limits]) -> None:
        """Set the limits for requests that arrive from now on; those that wait keep their place."""
        self._limits = limits
        for name in [name for name, line in self._lines.items() if not line.jobs]:
            if name not in limits:
                del self._lines[name]

    @property
    def jobs(self) -> list[Job[Work, Result]]:
        """Return all waiting requests, key by key."""
        return [job for line in self._waiting for job in line.jobs]

    def __len__(self) -> int:
        """Return the number of waiting requests."""
        return self.count

    def check_admission(
        self, tokens: int, cost: float, seconds: float, speed: float, key: str
    ) -> None:
        """Refuse a request that would not be admitted now.

        The bound reached is queue_full, token_budget or deadline; key_requests or key_tokens of its
        own key; share if most of the queue is its own key's.

        Args:
            tokens, cost: of the request; the cost in tokens of short sequences.
            seconds: time within which the request, and all that runs before it, must be done.
            speed: tokens of short sequences per second.
            key: name of the API key that sent it.
        """
        line, limits = (
            self._lines.get(key) or JobLine[Work, Result](key),
            self._limits.get(key, Limits()),
        )
        if limits.requests is not None and len(line.jobs) >= limits.requests:
            bound = "key_requests"
        elif limits.tokens is not None and line.jobs and line.tokens + tokens > limits.tokens:
            bound = "key_tokens"
        elif reached := self._find_reached_bound(line, tokens, key):
            bound = reached
        elif self._tokens_ahead(line, cost) / speed >= seconds:
            bound = "share" if self._has_most(line, key) else "deadline"
        else:
            return
        raise overloaded(bound, self._tokens_ahead(line, 0.0) / speed)

    def _find_reached_bound(self, line: JobLine[Work, Result], tokens: int, key: str) -> str | None:
        """Return which bound of the whole queue this many tokens would exceed; None: none."""
        own_requests, own_tokens = (
            (len(line.jobs), line.tokens) if self._has_other_keys(key) else (None, None)
        )
        if not fits_fairly(1, self._most_requests - self.count, own_requests):
            bound = "queue_full"
        elif self.count and not fits_fairly(tokens, self._most_tokens - self.tokens, own_tokens):
            bound = "token_budget"
        else:
            return None
        return "share" if self._has_most(line, key) else bound

    def _has_other_keys(self, key: str) -> bool:
        """Tell whether this key has limits, and so has another."""
        return len(self._limits) > 1 and key in self._limits

    def _has_most(self, line: JobLine[Work, Result], key: str) -> bool:
        """Tell whether more than half of the queue is one key's, where there are several keys."""
        has_half = 2 * len(line.jobs) > self.count or 2 * line.tokens > self.tokens
        return self._has_other_keys(key) and has_half

    def is_contested(self, key: str, now: float) -> bool:
        """Tell whether a key has requests that wait, and another key has some or asked lately."""
        if not self._has_other_keys(key) or not self._lines[key].jobs:
            return False
        since = now - LATELY_SECONDS
        asked = any(line.key != key and line.came > since for line in self._latest)
        return asked or self.waits_besides(key)

    def waits_besides(self, key: str) -> bool:
        """Tell whether a request of another key than this waits."""
        return any(line.key != key for line in self._waiting)

    def _tokens_ahead(self, line: JobLine[Work, Result], cost: float) -> float:
        """Return the cost of all that runs until a line, and `cost` added to it, is done.

        Waiting keys share evenly: a key's work takes as many times longer as there are keys, but
        never longer than all work together.
        """
        keys = len(self._waiting) + (not line.jobs)
        return min((line.cost + cost) * keys, self.cost + cost)

    def add_job(self, job: Job[Work, Result]) -> None:
        """Add a request to those that wait."""
        line = self._lines.get(job.key)
        if line is None:
            line = self._lines[job.key] = JobLine(job.key)
        if not line.jobs:
            line.started = max(line.started, self._started)
            self._waiting.append(line)
        line.came = job.arrived
        if line not in self._latest[-1:]:
            self._latest = [*self._latest[-1:], line]
        line.add_job(job)
        self.count += 1
        self.tokens += job.tokens
        self.cost += job.cost

    def remove_job(self, job: Job[Work, Result]) -> None:
        """Remove a request with the works of it that still wait, if any do."""
        line = self._lines.get(job.key)
        if line and job in line.jobs:
            line.remove_job(job)
            self.count -= 1
            self._subtract(job.tokens, job.cost)
            self._drop_empty(line)

    def take_batch(
        self,
        most_tokens: int,
        now: float,
        without: str | None = None,
        most_cost: float = math.inf,
    ) -> Batch[Work, Result]:
        """Take the works of the next batch, within these tokens and cost; at least one work.

        Args:
            now: the current time on the batcher's clock.
            without: a key of which none is taken, where others wait.
        """
        lines = [line for line in self._waiting if line.key != without]
        first = min(lines, key=attrgetter("started")).next_job()
        longest = max(self._small, BATCH_GROWTH * first.tokens)
        shared = max(CROWD_TOKENS, longest)
        most_tokens = max(min(most_tokens, shared), first.lengths[first.waiting[-1]])
        most_cost = max(most_cost, first.costs[first.waiting[-1]])
        batch: Batch[Work, Result] = Batch()
        while lines:
            line = min(lines, key=attrgetter("started"))
            job = line.next_job()
            if job is not first and job.lengths[job.waiting[-1]] > longest:
                break  # the first, which is short, would take as long
            self._started = line.started
            line.start_works(job, batch, most_tokens - batch.tokens, most_cost - batch.cost)
            if job.waiting:  # the batch is full
                break
            self.count -= 1
            if not line.jobs:
                lines.remove(line)
                self._drop_empty(line)
        for job, _ in batch:
            job.started = min(job.started, now)
        self._subtract(batch.tokens, batch.cost)
        return batch

    def _drop_empty(self, line: JobLine[Work, Result]) -> None:
        """Take a line out of those that wait if none of its requests does."""
        if not line.jobs:
            self._waiting.remove(line)

    def _subtract(self, tokens: int, cost: float) -> None:
        """Subtract works that no longer wait; the cost of an empty queue is exactly 0."""
        self.tokens -= tokens
        self.cost = self.cost - cost if self.tokens else 0.0
