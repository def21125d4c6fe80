"""The requests that wait, a line for each key, within bounds.

Imagine the machine shared evenly among the keys that wait, and each key's share among its
requests: the request that would finish first there runs first here. So a small request passes a
flood of large ones, no stream of small ones delays a large one for ever, and no key delays
another by sending many requests. Without keys, all requests stand in one line.

Source: Demers, Keshav and Shenker 1989, "Analysis and Simulation of a Fair Queueing Algorithm";
of keys and their requests: Bennett and Zhang 1997, "Hierarchical Packet Fair Queueing Algorithms".
"""

import math
from collections.abc import Mapping
from operator import attrgetter
from typing import Generic

from service.engine.fair.line import Batch, Job, Line, Result, Work
from service.keys import Limits

# A batch grows to this many times the request that leads it, so that a short request does not
# wait for the long ones it shares a batch with; below SMALL tokens sharing costs a processor
# nothing, and a GPU below as many as it does in the time of its shortest pass (see proof.py). Up to
# CROWD it costs a little, and each token takes a tenth less.
GROWTH = 8
SMALL = 128
CROWD = 256

DONE = attrgetter("done")


class Overloaded(Exception):
    """The request could not be done by its deadline, or there is no room for it.

    Args:
        retry_after: seconds until the requests that wait now are done.
        bound: the limit that was reached: queue_full, token_budget or deadline; key_requests,
            key_tokens or key_rate of its own key; share if another key took its place, or if most
            of what waits is its own key's.
    """

    def __init__(self, retry_after: float, bound: str) -> None:
        super().__init__(retry_after, bound)
        self.retry_after, self.bound = retry_after, bound


class DeadlinePassed(Exception):
    """The deadline passed before the work was started."""


class Queue(Generic[Work, Result]):
    """Admitted requests whose works are not all started.

    Args:
        most_requests, most_tokens: how much may wait.
        limits: of each key, by its name; a lone key without limits shares with no other.
        small: tokens up to which requests can share a batch at no cost.
    """

    def __init__(
        self,
        most_requests: int,
        most_tokens: int,
        limits: Mapping[str, Limits] | None = None,
        small: int = SMALL,
    ) -> None:
        self._most_requests, self._most_tokens, self._small = most_requests, most_tokens, small
        self._lines: dict[str, Line[Work, Result]] = {"": Line(Limits())}
        self.set_limits(limits or {}, -math.inf)
        self.count, self.tokens, self.cost = 0, 0, 0.0  # of all lines together
        self._now = 0.0  # tokens that a key waiting since the start would have had

    def set_limits(self, limits: Mapping[str, Limits], now: float) -> None:
        """Limit what arrives from now on by other limits; what waits keeps its place and line.

        A name that stays keeps what it has had, and what it owes.
        """
        if len(limits) < 2 and all(one == Limits() for one in limits.values()):
            limits = {}
        old = {name: line for name, line in self._lines.items() if name in limits or line.jobs}
        self._lines = {"": self._lines[""], **old}
        for name in old.keys() - limits.keys():  # it waits on, but no limit is its own any more
            old[name].set_limits(Limits(), now)
        for name, one in limits.items():
            if name in old:
                old[name].set_limits(one, now)
            else:
                self._lines[name] = Line(one)

    @property
    def jobs(self) -> list[Job[Work, Result]]:
        """Return all that wait."""
        return [job for line in self._lines.values() for job in line.jobs]

    def __len__(self) -> int:
        return self.count

    def check(
        self, tokens: int, cost: float, seconds: float, speed: float, key: str, now: float
    ) -> list[Job[Work, Result]]:
        """Raise Overloaded if a request would not be admitted now.

        Args:
            tokens, cost: of the request.
            seconds: time in which it, and all that runs before it, must be done.
            speed: tokens of short sequences per second.
            key: name of the key that sent it.

        Returns:
            The requests whose place it would take: when the queue is full, a key with less than
            its share takes from keys with more.

        Raises:
            Overloaded: why not.
        """
        line = self._line(key)
        if own := line.bound(tokens):
            raise Overloaded(self.delay(key) / speed, own)
        if pause := line.pause(now):
            raise Overloaded(pause, "key_rate")
        late = self._delay(line, cost) / speed >= seconds
        room = self.count < self._most_requests and self._excess(tokens) <= 0
        displaced = [] if room else self._displaced(line, tokens)
        if late or displaced is None:
            full = "queue_full" if self.count >= self._most_requests else "token_budget"
            bound = "deadline" if displaced is not None else full
            raise Overloaded(self.delay(key) / speed, "share" if self._most(line) else bound)
        return displaced

    def delay(self, key: str) -> float:
        """Return the tokens until a key's waiting work is done."""
        return self._delay(self._line(key), 0.0)

    def _delay(self, line: Line[Work, Result], cost: float) -> float:
        """Return the tokens until a line's work, and `cost` more of it, is done.

        While others wait, the key gets an even share: its work takes as many times longer as there
        are keys, but never longer than all work together.
        """
        if not self.count:
            return cost
        return min((line.cost + cost) * len(self._waiting(line)), self.cost + cost)

    def enter(self, job: Job[Work, Result]) -> None:
        """Add a request to those that wait."""
        line = self._line(job.key)
        if not line.jobs:
            line.had = max(line.had, self._now)  # what it did not ask for then, it has no claim on
        line.enter(job)
        self.count += 1
        self.tokens += job.tokens
        self.cost += job.cost

    def leave(self, job: Job[Work, Result]) -> None:
        """Remove what still waits of a request."""
        line = job.line
        if line and job in line.jobs:
            line.leave(job)
            self.count -= 1
            self._subtract(job.tokens, job.cost)

    def take(self, most: int, now: float) -> Batch[Work, Result]:
        """Take works for a batch of at most `most` tokens, in turn; at least one, however long."""
        waiting = self._waiting()
        keys, first = len(waiting), min(waiting, key=DONE).jobs[0]
        shared = max(self._small, CROWD, GROWTH * first.tokens)
        most = max(min(most, shared), first.lengths[first.waiting[-1]])
        served: dict[Line[Work, Result], int] = {}
        batch: Batch[Work, Result] = Batch()
        while waiting:
            line = waiting[0] if len(waiting) == 1 else min(waiting, key=DONE)
            job = line.jobs[0]
            served[line] = served.get(line, 0) + line.start(batch, most - batch.tokens, now)
            if job.waiting:  # the batch is full
                break
            self.count -= 1
            if not line.jobs:
                waiting.remove(line)
        for line, tokens in served.items():
            line.serve(tokens)
        self._subtract(batch.tokens, batch.cost)
        self._advance(batch.tokens / keys)
        return batch

    def _subtract(self, tokens: int, cost: float) -> None:
        """Subtract what no longer waits; an empty queue costs exactly 0 again."""
        self.tokens -= tokens
        self.cost = self.cost - cost if self.tokens else 0.0

    def _advance(self, tokens: float) -> None:
        """Move the shared machine on by this many tokens for each key that waits."""
        waiting = [line.had for line in self._waiting()]
        self._now = max(self._now + tokens, min(waiting, default=0.0))

    def _displaced(self, line: Line[Work, Result], tokens: int) -> list[Job[Work, Result]] | None:
        """Return the requests whose place a new one of `line` would take; None if it may take none.

        Each is the last one, not yet started, of the key that holds most at that point. A request
        that brings its own key above an even share takes no other's place.
        """
        requests, excess = self.count + 1 - self._most_requests, self._excess(tokens)
        keys = len(self._waiting(line))
        if requests > 0 and (len(line.jobs) + 1) * keys > self._most_requests:
            return None
        if excess > 0 and (line.tokens + tokens) * keys > self._most_tokens:
            return None
        counts = {line: len(line.jobs) for line in self._waiting()}
        sums = {line: line.tokens for line in counts}
        last = {line: [job for job in line.jobs if job.started == math.inf] for line in counts}
        displaced = list[Job[Work, Result]]()
        while requests > 0 or excess > 0:
            held = counts if requests > 0 else sums
            longest = max(held, key=held.__getitem__)
            if not last[longest]:
                return None
            job = last[longest].pop()
            displaced.append(job)
            requests, excess = requests - 1, excess - job.tokens
            counts[longest] -= 1
            sums[longest] -= job.tokens
        return displaced

    def _most(self, line: Line[Work, Result]) -> bool:
        """Tell whether a key, where there are several, has more than half of what waits."""
        several = len(self._lines) > 2  # not counting the one without a name
        return several and (2 * len(line.jobs) > self.count or 2 * line.tokens > self.tokens)

    def _excess(self, tokens: int) -> int:
        """Count tokens over the limit with `tokens` more; where none waits there is no limit."""
        return self.tokens + tokens - self._most_tokens if self.count else 0

    def _waiting(self, *more: Line[Work, Result]) -> list[Line[Work, Result]]:
        """Return the lines with waiting requests, and `more`."""
        return [line for line in self._lines.values() if line.jobs or line in more]

    def _line(self, key: str) -> Line[Work, Result]:
        return self._lines.get(key) or self._lines[""]
