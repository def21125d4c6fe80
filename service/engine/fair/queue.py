"""The requests that wait, a line for each key, within bounds.

Keys that wait take turns of some tokens each, so no key delays another by sending many requests.
Within a key small requests go first (line.py). Without keys, all requests stand in one line.

Source: Shreedhar and Varghese 1996, "Efficient Fair Queuing Using Deficit Round Robin"; here a key
may exceed its turn, and owes what it has had too much.
"""

from collections import deque
from collections.abc import Mapping
from typing import Generic

from service.engine.fair.line import TURN_TOKENS, Batch, Job, JobLine, Result, Work
from service.engine.fair.rotation import fits_fairly
from service.keys import Limits

# A batch grows to this many times the request that leads it, so that a short request does not
# wait for the long ones it shares a batch with; below SMALL_TOKENS tokens sharing costs a processor
# nothing, and a GPU below as many as it does in the time of its shortest pass (see proof.py). Up to
# CROWD_REQUESTS it costs a little, and each token takes a tenth less.
BATCH_GROWTH = 8
SMALL_TOKENS = 128
CROWD_REQUESTS = 256


class Overloaded(Exception):
    """The request could not be done by its deadline, or there is no room for it.

    Args:
        retry_after: seconds until the requests that wait now are done.
        bound: the limit that was reached: queue_full, token_budget or deadline; key_requests or
            key_tokens of its own key; share if most of what waits is its own key's.
    """

    def __init__(self, retry_after: float, bound: str) -> None:
        super().__init__(retry_after, bound)
        self.retry_after, self.bound = retry_after, bound


class DeadlinePassed(Exception):
    """The deadline passed before the work was started."""


class JobQueue(Generic[Work, Result]):
    """Admitted requests whose works are not all started.

    Args:
        most_requests, most_tokens: how much may wait.
        limits: of each key, by its name.
        small: tokens up to which requests can share a batch at no cost.
    """

    def __init__(
        self,
        most_requests: int,
        most_tokens: int,
        limits: Mapping[str, Limits] | None = None,
        small: int = SMALL_TOKENS,
    ) -> None:
        self._most_requests, self._most_tokens, self._small = most_requests, most_tokens, small
        self._lines = dict[str, JobLine[Work, Result]]()  # of those that have waited
        self._round = deque[JobLine[Work, Result]]()  # of those that wait, in order of their turn
        self._started = 0  # tokens, since the start
        self.count, self.tokens, self.cost = 0, 0, 0.0  # of all lines together
        self.set_limits(limits or {})

    def set_limits(self, limits: Mapping[str, Limits]) -> None:
        """Limit what arrives from now on by other limits; what waits keeps its place and line."""
        self._limits = limits
        for name in [name for name, line in self._lines.items() if not line.jobs]:
            if name not in limits:
                del self._lines[name]

    @property
    def jobs(self) -> list[Job[Work, Result]]:
        """Return all that wait."""
        return [job for line in self._round for job in line.jobs]

    def __len__(self) -> int:
        return self.count

    def check_admission(
        self, tokens: int, cost: float, seconds: float, speed: float, key: str
    ) -> None:
        """Raise Overloaded if a request would not be admitted now.

        Args:
            tokens, cost: of the request.
            seconds: time in which it, and all that runs before it, must be done.
            speed: tokens of short sequences per second.
            key: name of the key that sent it.

        Raises:
            Overloaded: why not.
        """
        line, limits = (
            self._lines.get(key) or JobLine[Work, Result](),
            self._limits.get(key, Limits()),
        )
        if limits.requests is not None and len(line.jobs) >= limits.requests:
            bound = "key_requests"
        elif limits.tokens is not None and line.jobs and line.tokens + tokens > limits.tokens:
            bound = "key_tokens"
        elif full := self._find_full(line, tokens, key):
            bound = full
        elif self._tokens_ahead(line, cost) / speed >= seconds:
            bound = "share" if self._has_most(line, key) else "deadline"
        else:
            return
        raise Overloaded(self._tokens_ahead(line, 0.0) / speed, bound)

    def _find_full(self, line: JobLine[Work, Result], tokens: int, key: str) -> str | None:
        """Return what has no room for a request of so many tokens, if anything."""
        requests, held = (
            (len(line.jobs), line.tokens) if self._has_other_keys(key) else (None, None)
        )
        if not fits_fairly(1, self._most_requests - self.count, requests):
            bound = "queue_full"
        elif self.count and not fits_fairly(tokens, self._most_tokens - self.tokens, held):
            bound = "token_budget"
        else:
            return None
        return "share" if self._has_most(line, key) else bound

    def _has_other_keys(self, key: str) -> bool:
        """Tell whether there are other keys than this one."""
        return len(self._limits) > 1 and key in self._limits

    def _has_most(self, line: JobLine[Work, Result], key: str) -> bool:
        """Tell whether a key, where there are several, has more than half of what waits."""
        own = 2 * len(line.jobs) > self.count or 2 * line.tokens > self.tokens
        return self._has_other_keys(key) and own

    def _tokens_ahead(self, line: JobLine[Work, Result], cost: float) -> float:
        """Return the tokens until a line's work, and `cost` more of it, is done.

        While others wait, the key gets an even share: its work takes as many times longer as there
        are keys, but never longer than all work together.
        """
        keys = len(self._round) + (not line.jobs)
        return min((line.cost + cost) * keys, self.cost + cost)

    def add_job(self, job: Job[Work, Result]) -> None:
        """Add a request to those that wait."""
        line = self._lines.setdefault(job.key, JobLine())
        if not line.jobs:
            # what the others have had since it was last here, it need not wait for again
            had = (self._started - line.gone) // (len(self._round) or 1)
            line.left = min(TURN_TOKENS, line.left + had)
            (self._round.appendleft if line.left > 0 else self._round.append)(line)
        line.add_job(job)
        self.count += 1
        self.tokens += job.tokens
        self.cost += job.cost

    def remove_job(self, job: Job[Work, Result]) -> None:
        """Remove what still waits of a request."""
        line = self._lines.get(job.key)
        if line and job in line.jobs:
            line.remove_job(job)
            self.count -= 1
            self._subtract(job.tokens, job.cost)
            self._drop_empty(line)

    def take_batch(self, most: int, now: float) -> Batch[Work, Result]:
        """Take works for a batch of at most `most` tokens, in turn; at least one, however long."""
        first = self._next_line().next_job()
        shared = max(self._small, CROWD_REQUESTS, BATCH_GROWTH * first.tokens)
        most = max(min(most, shared), first.lengths[first.waiting[-1]])
        batch: Batch[Work, Result] = Batch()
        while self._round:
            line = self._next_line()
            job = line.next_job()
            self._started += line.start_works(job, batch, most - batch.tokens)
            if job.waiting:  # the batch is full
                break
            self.count -= 1
            self._drop_empty(line)
        for job, _ in batch:
            job.started = min(job.started, now)
        self._subtract(batch.tokens, batch.cost)
        return batch

    def _next_line(self) -> JobLine[Work, Result]:
        """Return the line whose turn it is; one that has had its turn goes behind the others."""
        while (line := self._round[0]).left <= 0:
            line.left += TURN_TOKENS
            self._round.rotate(-1)
        return line

    def _drop_empty(self, line: JobLine[Work, Result]) -> None:
        """Leave the round, if nothing of a line waits."""
        if not line.jobs:
            self._round.remove(line)
            line.gone = self._started

    def _subtract(self, tokens: int, cost: float) -> None:
        """Subtract what no longer waits; an empty queue costs exactly 0 again."""
        self.tokens -= tokens
        self.cost = self.cost - cost if self.tokens else 0.0
