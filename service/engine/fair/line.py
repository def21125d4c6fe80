"""The requests of one key that wait, in order of their turn.

Sources: Turner 1986, "New Directions in Communications (or Which Way to the Information Age?)", of
the bucket; Demers, Keshav and Shenker 1989, "Analysis and Simulation of a Fair Queueing Algorithm",
of the clock.
"""

import asyncio
import math
from bisect import insort
from collections.abc import Sequence, Sized
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from service.keys import Limits


class Bucket:
    """Holds what may be used now: at most one second's worth.

    A request is let in while nothing is owed, and may owe: so none is too large for ever, and the
    next waits until it is paid.

    Args:
        rate: tokens that come in, a second.

    >>> bucket = Bucket(100)
    >>> bucket.take(250, now=5.0)
    >>> bucket.wait(now=5.5)
    1.0
    """

    def __init__(self, rate: int) -> None:
        self._rate, self._left, self._since = float(rate), float(rate), -math.inf

    def set_rate(self, rate: int, now: float) -> None:
        """Admit at another rate from now on; what is owed is still owed."""
        self._fill(now)
        self._rate = float(rate)

    def wait(self, now: float) -> float:
        """Return the seconds until nothing is owed."""
        self._fill(now)
        return max(0.0, -self._left / self._rate)

    def take(self, tokens: int, now: float) -> None:
        """Note that a request uses this many."""
        self._fill(now)
        self._left -= tokens

    def put_back(self, tokens: int) -> None:
        """Note that it did not use this many of them."""
        self._left += tokens

    def _fill(self, now: float) -> None:
        self._left = min(self._rate, self._left + self._rate * (now - self._since))
        self._since = now


class Shares:
    """The clock of the evenly shared machine.

    It counts the tokens that a request waiting since the start would have had by now. It counts a
    request as waiting for as long as it would wait on the shared machine. Here requests run one
    after the other, so the last of several is left alone; the clock must not run faster for it.

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
        """Add a request and return its turn, by which requests are ordered."""
        turn = self._now + tokens
        insort(self._turns, turn)
        return turn

    def leave(self, turn: float, tokens: int) -> None:
        """Remove a request that gives up with `tokens` tokens not done.

        If it had more here than on the shared machine, the others had less, and the reverse.
        """
        if turn in self._turns:
            self._turns.remove(turn)
        self.serve(tokens - max(turn - self._now, 0.0))

    def serve(self, tokens: float) -> None:
        """Count tokens that are done, whichever request they belong to."""
        tokens -= self._ahead
        self._ahead = max(-tokens, 0.0)
        while self._turns and tokens > 0:
            needed = (self._turns[0] - self._now) * len(self._turns)
            if tokens < needed:
                self._now += tokens / len(self._turns)
                return
            tokens -= needed
            self._now = self._turns.pop(0)


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
        turn: its place among the requests of the same key.
        waiting: indices of works not yet started, longest first (taken from the end).
        tokens, cost: of the waiting works.
        line: in which it waits or has waited; its key may have another by now.
    """

    works: Sequence[Work]
    costs: Sequence[float]
    deadline: float
    arrived: float
    future: asyncio.Future[None]
    key: str = ""
    turn: float = math.inf
    started: float = math.inf
    computed: float = 0.0
    lengths: Sequence[int] = field(init=False)
    waiting: list[int] = field(init=False)
    tokens: int = field(init=False)
    cost: float = field(init=False)
    results: list[Result | None] = field(init=False)
    unfinished: int = field(init=False)
    line: "Line[Work, Result] | None" = None
    bucket: Bucket | None = None  # that its tokens were taken from

    def __post_init__(self) -> None:
        self.unfinished = count = len(self.works)
        self.results = [None] * count
        self.lengths = lengths = list(map(len, self.works))
        self.waiting = [0]
        if count != 1:
            self.waiting = sorted(range(count), key=lengths.__getitem__, reverse=True)
        self.tokens, self.cost = sum(lengths), sum(self.costs)

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


class Line(Generic[Work, Result]):
    """The requests of one key whose works are not all started.

    They take turns as if what the key gets of the machine were shared evenly among them.

    Args:
        limits: of the key.
    """

    def __init__(self, limits: Limits) -> None:
        self._limits, self._shares = limits, Shares()
        self._bucket = None if limits.rate is None else Bucket(limits.rate)
        self.jobs: list[Job[Work, Result]] = []  # in order of their turn
        self.tokens, self.cost = 0, 0.0
        self.had = 0.0  # tokens, by the clock of the machine that all keys share

    def set_limits(self, limits: Limits, now: float) -> None:
        """Limit what arrives from now on by other limits."""
        self._limits = limits
        if limits.rate is None or self._bucket is None:
            self._bucket = None if limits.rate is None else Bucket(limits.rate)
        else:
            self._bucket.set_rate(limits.rate, now)

    @property
    def done(self) -> float:
        """Return when its next request would be done, by that clock."""
        return self.had + self.jobs[0].tokens

    def bound(self, tokens: int) -> str | None:
        """Return the limit that a request of this many tokens would break, if any."""
        limits = self._limits
        if limits.requests is not None and len(self.jobs) >= limits.requests:
            return "key_requests"
        if limits.tokens is not None and self.jobs and self.tokens + tokens > limits.tokens:
            return "key_tokens"
        return None

    def pause(self, now: float) -> float:
        """Return the seconds until its rate allows another request."""
        return self._bucket.wait(now) if self._bucket else 0.0

    def enter(self, job: Job[Work, Result]) -> None:
        """Add a request to those that wait."""
        job.line = self
        job.turn = self._shares.enter(job.tokens)
        insort(self.jobs, job, key=lambda job: job.turn)
        self.tokens += job.tokens
        self.cost += job.cost
        job.bucket = self._bucket
        if self._bucket:
            self._bucket.take(job.tokens, job.arrived)

    def leave(self, job: Job[Work, Result]) -> None:
        """Remove what still waits of a request."""
        self.jobs.remove(job)
        self._subtract(job.tokens, job.cost)
        self._shares.leave(job.turn, job.tokens)
        if job.bucket:
            job.bucket.put_back(job.tokens)

    def start(self, batch: Batch[Work, Result], room: int, now: float) -> int:
        """Start works of the next request, the shortest first; it leaves with its last work.

        Args:
            batch: takes them.
            room: tokens at most.

        Returns:
            The tokens that were started.
        """
        job, tokens, cost = self.jobs[0], 0, 0.0
        waiting, lengths = job.waiting, job.lengths
        while waiting and tokens + lengths[waiting[-1]] <= room:
            index = waiting.pop()
            tokens, cost = tokens + lengths[index], cost + job.costs[index]
            batch.append((job, index))
            if job.started > now:
                job.started = now
        job.tokens, job.cost = job.tokens - tokens, job.cost - cost if waiting else 0.0
        batch.tokens, batch.cost = batch.tokens + tokens, batch.cost + cost
        self.had += tokens
        self._subtract(tokens, cost)
        if not waiting:
            self.jobs.remove(job)
        return tokens

    def serve(self, tokens: int) -> None:
        """Count what this line has in a batch as done."""
        self._shares.serve(tokens)

    def _subtract(self, tokens: int, cost: float) -> None:
        """Subtract what no longer waits; an empty line costs exactly 0 again."""
        self.tokens -= tokens
        self.cost = self.cost - cost if self.tokens else 0.0
