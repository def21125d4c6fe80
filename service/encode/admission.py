"""The gate before the work: memory, queue and deadline, first by an estimate, then by the works."""

import asyncio
import math
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from sys import getsizeof
from typing import TypeVar

import numpy as np

from service.encode.interventions import Course, Outcome
from service.encode.request import Base64, Input
from service.engine.batcher import Batcher
from service.engine.fair.line import Timing
from service.engine.fair.queue import DeadlinePassed, Overloaded
from service.engine.lanes import Broken, NonFiniteOutput
from service.engine.work import Result, Work
from service.memory import NoRoom
from service.observe.metrics import Metrics
from service.observe.record import Record
from service.refusals import Refused

T = TypeVar("T")

LATE = (Overloaded, DeadlinePassed)
AROUND = 2  # tokens that stand around a text
KEEP = 0.9  # of what was seen before, at each request
USUAL_CHARACTERS = 4.0  # of a token, until one is seen

# Bytes as tests/service/encode/test_held.py measures them
REQUEST_BYTES = 14 * 1024  # of one that waits, whatever it holds: tasks, headers, records
INPUT_BYTES = 800  # of an input, and of the sequence and the work that it becomes
ID_BYTES, TYPE_BYTES = 40, 8  # of a number in a list; types are 0 or 1, of which each is there once
TOKEN_BYTES, COPY_BYTES = 54, 16  # of a token of a text that was read, and of one that came as id
FACT_BYTES = 250  # of a token that an answer shows


class Estimate:
    """Tokens by characters, as in the texts lately tokenized.

    Args:
        longest: tokens of a sequence, at most.
        most: tokens of a request, at most.
    """

    def __init__(self, longest: int, most: int) -> None:
        self._longest, self._most = longest, most
        self._tokens, self._characters = 1.0, USUAL_CHARACTERS

    def tokens(self, inputs: Sequence[Input]) -> tuple[int, int]:
        """Return about how many tokens these inputs hold, and exactly how many characters.

        Embeddings count as few tokens.
        """
        ratio, longest = self._tokens / self._characters, self._longest
        tokens, characters = 0, 0
        for one in inputs:
            size = len(one.text or "") + len(one.pair or "")
            ids = one.token_ids
            tokens += min(int(size * ratio) + AROUND if ids is None else len(ids), longest)
            characters += size
        return min(tokens, self._most), characters

    def learn(self, inputs: Sequence[Input], works: Sequence[Work]) -> None:
        """Remember how many tokens the texts among some inputs turned out to be."""
        tokens, characters = 0, 0
        for one, work in zip(inputs, works, strict=True):
            size = len(one.text or "") + len(one.pair or "")
            if size and len(work) >= work.length:  # not cut
                tokens, characters = tokens + work.length - AROUND, characters + size
        if characters:
            self._characters = KEEP * self._characters + characters
            self._tokens = KEEP * self._tokens + max(1, tokens)


def held(inputs: Sequence[Input], works: Sequence[Work] = ()) -> int:
    """Return about how many bytes inputs keep.

    Args:
        works: what they became; empty before they are read.
    """
    size = REQUEST_BYTES + INPUT_BYTES * len(inputs)
    for one in inputs:
        if one.text is None or one.pair is not None:
            size += _held(one)
        else:
            size += getsizeof(one.text)
    for one, work in zip(inputs, works, strict=False):
        token = COPY_BYTES if one.text is None else TOKEN_BYTES
        size += len(work) * (token + FACT_BYTES if work.facts else token)
    return size


def _held(item: Input) -> int:
    """Count the bytes of what an input holds."""
    size = sum(getsizeof(text) for text in (item.text, item.pair) if text is not None)
    size += ID_BYTES * len(item.token_ids or ()) + TYPE_BYTES * len(item.token_type_ids or ())
    if isinstance(item.embeddings, np.ndarray):
        size += item.embeddings.nbytes
    if isinstance(item.embeddings, Base64):  # and what it is decoded to, as float32
        data = getsizeof(item.embeddings.data)
        size += data + data * 3 // 4 * (2 if item.embeddings.dtype == "float16" else 1)
    return size


class Admission:
    """The one way to the model, for requests and for what the service asks of itself.

    Args:
        dtype: of the model, as a refusal names it.
    """

    def __init__(self, batcher: Batcher[Work, Result], metrics: Metrics, dtype: str) -> None:
        self._batcher, self._metrics, self._dtype = batcher, metrics, dtype

    async def run(
        self, works: Sequence[Work], deadline: float, record: Record | None = None
    ) -> tuple[list[Result], Timing]:
        """Wait for the batches that hold these works.

        Args:
            deadline: when the answer must be there, on time.monotonic's clock.
            record: of the request they are of, which they carry; None for what nobody asked for.

        Raises:
            Refused: they are not admitted, not done in time, or not finite.
        """
        if record is None:
            record = Record("own")
            works = [replace(work, record=record) for work in works]
        submitted = self._batcher.submit(works, deadline, record.key)
        return await self._wait(submitted, works, deadline, record)

    async def follow(
        self, course: Course, deadline: float, record: Record
    ) -> tuple[Outcome, Timing]:
        """Run as `run` does works that follow from others' results; all are admitted, or none.

        Args:
            record: of the request, which the works carry.
        """
        works = course.every
        followed = self._follow(course, works, deadline, record.key)
        return await self._wait(followed, works, deadline, record)

    async def _follow(
        self, course: Course, works: Sequence[Work], deadline: float, key: str
    ) -> tuple[Outcome, Timing]:
        """Run one step after the other; while one runs, the next ones count."""
        self._batcher.admit(works, deadline, key)
        steps, rest, timings = course.steps(), works, list[Timing]()
        step = next(steps)
        while True:
            rest = rest[len(step) :]
            results, timing = await self._batcher.submit(
                step, deadline, key, bounded=False, following=rest
            )
            timings.append(timing)
            try:
                step = steps.send(results)
            except StopIteration as end:
                queued, computed = (t.queued for t in timings), (t.computed for t in timings)
                return end.value, Timing(sum(queued), sum(computed))

    async def _wait(
        self, running: Awaitable[T], works: Sequence[Work], deadline: float, record: Record
    ) -> T:
        """Wait for works in time; how they end, as clients are told."""
        record.began, start = 0.0, time.monotonic()
        try:
            results = await running
        except LATE as error:
            raise self._wording(error, works, deadline, record) from None
        except asyncio.CancelledError:
            self._metrics.cancelled("forward" if record.began else "queue")
            raise
        except Broken:
            raise Refused("not_ready", retry_after=1) from None
        except NonFiniteOutput as error:
            raise Refused("nonfinite_output", layer=error.layer, dtype=self._dtype) from None
        finally:
            record.waited(start)
        self._metrics.encoded(sum(map(len, works)), record.key)
        return results

    def settle(self, record: Record, bodies: int) -> None:
        """Hold what was made of a body in place of the body; raises as `reserve` does."""
        self.reserve(record, bodies=bodies - record.hold.bytes["bodies"])

    def reserve(
        self, record: Record, *, bodies: int = 0, arrays: int = 0, answers: int = 0
    ) -> None:
        """Hold the memory that a request takes, until it ends.

        Args:
            bodies: bytes more of what it asks.
            arrays: bytes of what the model makes.
            answers: about how many bytes are written of them.

        Raises:
            Refused: there is no room.
        """
        try:
            record.hold.take(bodies=bodies, arrays=arrays, answers=answers)
        except NoRoom:
            record.shed = "memory"
            raise Refused("overloaded", retry_after=1) from None

    def check(self, works: Sequence[Work], deadline: float, record: Record) -> None:
        """Raise what `run` would if these works would not be admitted now."""
        try:
            self._batcher.check(works, deadline, record.key)
        except LATE as error:
            raise self._wording(error, works, deadline, record) from None

    def foresee(self, tokens: int, deadline: float, record: Record, *, aside: bool) -> None:
        """Refuse what would most likely not be admitted, before more is done for it.

        Args:
            tokens: about how many it holds.
            aside: whether its texts wait to be tokenized: it is foreseen behind others that do, and
                the next behind it. What is read at once is checked in a moment, and waits for none.

        Raises:
            Refused: others wait, and with this there is no time or no room.
        """
        try:
            self._batcher.foresee(tokens, deadline, record.key, behind=aside)
        except Overloaded as error:
            raise self._overloaded(error, record) from None
        except DeadlinePassed:
            raise Refused("deadline_exceeded") from None

    async def read_aside(
        self, read: Callable[[], Awaitable[T]], tokens: int, held: int, record: Record
    ) -> T:
        """Wait for inputs to be read aside; meanwhile they count as coming.

        Args:
            tokens: about how many they hold, and held: bytes in place of the body's.

        Raises:
            Refused: there is no room for them, or what reading raises.
        """
        self._batcher.expect(tokens, record.key)
        try:
            self.settle(record, held)
            return await read()
        finally:
            self._batcher.expect(-tokens, record.key)

    def _wording(
        self, error: Exception, works: Sequence[Work], deadline: float, record: Record
    ) -> Refused:
        """Word what the batcher does not admit, or not in time.

        A client may come again with what is late because others wait; what is late by itself
        would be late for ever, and is refused like any other request that cannot be served. That
        is said of all the time it was given, at the best speed, so that neither a slow moment of
        this machine nor what reading it took makes it so.
        """
        most = deadline - record.start
        fewest = self._batcher.fewest_seconds(works)
        if fewest >= most:
            return Refused(
                "deadline_unreachable",
                estimate_ms=math.ceil(fewest * 1000),
                deadline_ms=math.floor(most * 1000),
            )
        if not isinstance(error, Overloaded):
            return Refused("deadline_exceeded")
        return self._overloaded(error, record)

    def _overloaded(self, error: Overloaded, record: Record) -> Refused:
        record.shed = error.bound
        return Refused("overloaded", retry_after=1 + int(error.retry_after))
