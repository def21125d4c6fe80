"""The second gate: whether an answer may be made, for which there must be memory, room and time."""

import asyncio
import math
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from sys import getsizeof
from typing import Protocol

import numpy as np

from service.core import Step
from service.encode.worker import Worker
from service.engine.batcher import Batcher
from service.engine.fair.line import Timing
from service.engine.fair.queue import DeadlinePassed, Overloaded
from service.engine.lanes import NonFiniteOutput, ProcessBroken
from service.engine.work import Result, Work
from service.inputs import Base64Array, Item, Text, Texts, text_and_pair
from service.observe.metrics import Metrics
from service.observe.record import Record
from service.refusals import Refused
from service.settings import Settings

LATE_ERRORS = (Overloaded, DeadlinePassed)
ESTIMATE_MARGIN = 2  # tokens that stand around a text
MOST_CHARACTERS = 8 << 20  # that wait for the tokenizer: 32 texts of the greatest length
ESTIMATE_MEMORY = 0.9  # of what was seen before, at each request
USUAL_CHARACTERS = 4.0  # of a token, until one is seen

# Bytes as tests/service/encode/test_held.py measures them
REQUEST_BYTES = 11 * 1024  # of one that waits, whatever it holds: tasks, headers, records
INPUT_BYTES = 600  # of an input, and of the sequence and the work that it becomes
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
        self._tokens, self._count_characters = 1.0, USUAL_CHARACTERS

    def tokens(self, texts: Texts) -> tuple[int, int]:
        """Return about how many tokens these hold, and exactly how many characters.

        Embeddings count as few tokens.
        """
        ratio, longest = self._tokens / self._count_characters, self._longest
        tokens, characters = 0, 0
        for one in texts:
            size, ids = _count_characters(one), one.token_ids if type(one) is Item else None
            tokens += min(int(size * ratio) + ESTIMATE_MARGIN if ids is None else len(ids), longest)
            characters += size
        return min(tokens, self._most), characters

    def learn(self, texts: Texts, works: Sequence[Work]) -> None:
        """Remember how many tokens texts turned out to be."""
        tokens, characters = 0, 0
        for one, work in zip(texts, works, strict=True):
            size = _count_characters(one)
            if size and len(work) >= work.length:  # not cut
                tokens, characters = tokens + work.length - ESTIMATE_MARGIN, characters + size
        if characters:
            self._count_characters = ESTIMATE_MEMORY * self._count_characters + characters
            self._tokens = ESTIMATE_MEMORY * self._tokens + max(1, tokens)


def _count_characters(one: Text) -> int:
    """Count those of a text and its pair."""
    if type(one) is str:
        return len(one)
    text, pair = text_and_pair(one)
    return len(text or "") + (len(pair) if pair else 0)


def estimate_held(texts: Texts, works: Sequence[Work] = ()) -> int:
    """Return about how many bytes texts, token ids and embeddings keep.

    Args:
        works: what they became; empty before they are read.
    """
    size = REQUEST_BYTES + INPUT_BYTES * len(texts)
    for one in texts:
        for text in text_and_pair(one):
            if text is not None:
                size += getsizeof(text)
        if type(one) is Item and one.text is None:
            size += _count_held(one)
    for one, work in zip(texts, works, strict=False):
        token = COPY_BYTES if text_and_pair(one)[0] is None else TOKEN_BYTES
        size += len(work) * (token + FACT_BYTES if work.facts else token)
    return size


def _count_held(item: Item) -> int:
    """Count the bytes of token ids or embeddings."""
    size = ID_BYTES * len(item.token_ids or ()) + TYPE_BYTES * len(item.token_type_ids or ())
    if (rows := item.embeddings) is None:
        return size
    if isinstance(rows, np.ndarray):
        size += rows.nbytes
    if isinstance(rows, Base64Array):  # and what it is decoded to, as float32
        data = getsizeof(rows.data)
        size += data + data * 3 // 4 * (2 if rows.dtype == "float16" else 1)
    return size


class Priced(Protocol):
    """What an answer weighs; see service/encode/price.py."""

    @property
    def made(self) -> int:
        """Return the bytes that are held while it is made, and until it is written."""

    @property
    def written(self) -> int:
        """Return about how many bytes are written."""

    def check(self, most_json: int, most: int, /) -> None:
        """Refuse an answer that is too large."""


class Admission:
    """The one way to the model, for requests and for what the service asks of itself.

    foresee         before a request is read, by an estimate: no time, or no room
    reading         while it is read, if that takes long: too many characters wait already
    hold            once it is read, by its price: too large, or no memory
    run             by its works: no time, or no room in the queue
    check           the last two, for a dry run

    Three counts are taken here for a request, and end with what they count: memory with the
    request, tokens with its reading, works that follow from others with the last of them. What
    waits in the queue, and for each of the threads below, is counted there.

    Args:
        dtype: of the model, as a refusal names it.

    Attributes:
        texts: where long texts are tokenized.
        endings: where similarities are computed.
        lessons: where the mechanism is computed without the model.
    """

    def __init__(
        self, batcher: Batcher[Work, Result], metrics: Metrics, settings: Settings, dtype: str
    ) -> None:
        self._batcher, self._metrics, self._dtype = batcher, metrics, dtype
        self._settings = settings
        self.texts = Worker(MOST_CHARACTERS)
        self.endings, self.lessons = Worker(math.inf), Worker()  # endings' requests were admitted
        self._being_read = Counter[str]()  # tokens that are being read, by key
        self._following = list[tuple[str, int, float]]()  # of a key: tokens and their cost

    def foresee(self, tokens: int, deadline: float, record: Record, *, queued: bool) -> None:
        """Refuse what would most likely not be admitted, before more is done for it.

        While nothing waits, nothing is foreseen: a request that is alone may be long.

        Args:
            tokens: about how many it holds.
            queued: whether its texts wait to be tokenized: it is foreseen behind others that do,
                and the next behind it. What is read at once is checked soon, and waits for none.

        Raises:
            Refused: others wait, and with this there is no time or no room.
        """
        before = self._being_read[record.key] if queued else 0
        following = any(more for _, more, _ in self._following)
        if not (before or following or self._batcher.waiting_requests):
            return
        tokens, cost = self._with_following(tokens + before, tokens + before, record.key)
        try:
            self._batcher.check_admission(tokens, cost, deadline, record.key)
        except Overloaded as error:
            raise self._word_overloaded(error, record) from None
        except DeadlinePassed:
            raise Refused("deadline_exceeded") from None

    @contextmanager
    def reading(
        self, tokens: int, queued: bool, held: int, deadline: float, record: Record
    ) -> Iterator[None]:
        """Foresee a request, and count its tokens while long texts wait to be read.

        Otherwise all requests that arrive meanwhile would pass on the room left for one.

        Args:
            tokens: about how many it holds.
            queued: as of `foresee`.
            held: bytes of its inputs, in place of the body's.

        Raises:
            Refused: as `foresee`, or there is no room for them.
        """
        self.foresee(tokens, deadline, record, queued=queued)
        if not queued:
            yield
            return
        self._being_read[record.key] += tokens
        try:
            record.reserve(bodies=held)
            yield
        finally:
            self._being_read[record.key] -= tokens

    def hold(self, price: Priced, record: Record, inputs: int | None = None) -> None:
        """Hold the memory that an answer takes, until its request ends.

        Args:
            inputs: bytes of what was made of the body, in place of the body's; None: as before.

        Raises:
            Refused: the answer is too large, or there is no room for it.
        """
        settings = self._settings
        price.check(settings.max_answer_json_bytes, settings.max_answer_bytes)
        held = {} if inputs is None else {"bodies": inputs}
        record.reserve(arrays=price.made, answers=price.written, **held)

    def check(self, step: Step, price: Priced, deadline: float, record: Record) -> None:
        """Refuse what `run` would refuse now; nothing waits or runs."""
        self.hold(price, record)
        self._check_works(step.tokens, self._step_costs(step), deadline, record)

    async def run(
        self,
        step: Step,
        deadline: float,
        record: Record,
        price: Priced | None = None,
        *,
        inputs: int | None = None,
    ) -> Timing:
        """Wait for the batches that hold a request's works, whose results they get.

        Args:
            step: the first one; all that may follow is admitted with it.
            deadline: when the answer must be there, on time.monotonic's clock.
            record: of the request, which the works carry.
            price: of the answer, if a client gets one.
            inputs: bytes of what was made of the body; see `hold`.

        Raises:
            Refused: they are not admitted, not done in time, or not finite.
        """
        if price is not None:
            self.hold(price, record, inputs)
        record.batch_start, start = 0.0, time.monotonic()
        tokens, costs = step.tokens, self._step_costs(step)
        try:
            self._check_works(tokens, costs, deadline, record)
            timing = await self._run_steps(step, tokens, costs, deadline, record.key)
        except LATE_ERRORS as error:
            raise self._word_late(error, sum(costs), deadline, record) from None
        except asyncio.CancelledError:
            self._metrics.count_cancelled("forward" if record.batch_start else "queue")
            raise
        except ProcessBroken:
            raise Refused("not_ready", retry_after=1) from None
        except NonFiniteOutput as error:
            raise Refused("nonfinite_output", layer=error.layer, dtype=self._dtype) from None
        finally:
            record.end_batch_stages(start)
        self._metrics.count_tokens(tokens, record.key)
        return timing

    async def run_own(self, works: Sequence[Work], deadline: float) -> list[Result]:
        """Wait for works that no client asked for; raise as `run` does."""
        record = Record("own")
        own = [replace(work, record=record) for work in works]
        await self.run(Step(own), deadline, record)
        return [work.result for work in own]

    async def _run_steps(
        self, step: Step, tokens: int, costs: Sequence[float], deadline: float, key: str
    ) -> Timing:
        """Run one step after the other; while one runs, what follows counts.

        Else all that arrive meanwhile would be admitted to the time left for one.

        Args:
            tokens, costs: of all that it may run.
        """
        cost, queued, computed = sum(costs), 0.0, 0.0
        costs = costs[: len(step.works)]
        while True:
            rest = key, 0, 0.0
            if step.then:
                tokens, cost = tokens - sum(map(len, step.works)), cost - sum(costs)
                rest = key, max(tokens, 0), max(cost, 0.0)
            self._following.append(rest)
            try:
                results, timing = await self._batcher.submit(step.works, deadline, key, costs)
            finally:
                self._following.remove(rest)
            for work, result in zip(step.works, results, strict=True):
                work.result = result
            queued, computed = queued + timing.queued, computed + timing.computed
            follows = await step.then() if step.then else None
            if follows is None:
                return Timing(queued, computed)
            step, costs = follows, self._batcher.costs(follows.works)

    def _step_costs(self, step: Step) -> list[float]:
        """Return what a step's works take, then those that may follow, each with its like."""
        works, follow = step.works, step.follow
        if not follow:
            return list(self._batcher.costs(works))
        costs = self._batcher.costs([*works, *(like for like, _ in follow)])
        likes = zip(costs[len(works) :], follow, strict=True)
        return [*costs[: len(works)], *(cost * count for cost, (_, count) in likes)]

    def _check_works(
        self, tokens: int, costs: Sequence[float], deadline: float, record: Record
    ) -> None:
        """Refuse works that would not be admitted now."""
        tokens, cost = self._with_following(tokens, sum(costs), record.key)
        try:
            self._batcher.check_admission(tokens, cost, deadline, record.key)
        except LATE_ERRORS as error:
            raise self._word_late(error, sum(costs), deadline, record) from None

    def _with_following(self, tokens: int, cost: float, key: str) -> tuple[int, float]:
        """Add the works that were admitted and wait for the results of others."""
        for owner, more, worth in self._following:
            if owner == key:
                tokens, cost = tokens + more, cost + worth
        return tokens, cost

    def _word_late(self, error: Exception, cost: float, deadline: float, record: Record) -> Refused:
        """Word what the batcher does not admit, or not in time.

        A client may come again with what is late because others wait; what is late by itself
        would be late for ever, and is refused like any other request that cannot be served. That
        is said of all the time it was given, at the best speed, so that neither a slow moment of
        this machine nor what reading it took makes it so.
        """
        most = deadline - record.start
        fewest = self._batcher.fewest_seconds(cost)
        if fewest >= most:
            return Refused(
                "deadline_unreachable",
                estimate_ms=math.ceil(fewest * 1000),
                deadline_ms=math.floor(most * 1000),
            )
        if not isinstance(error, Overloaded):
            return Refused("deadline_exceeded")
        return self._word_overloaded(error, record)

    def _word_overloaded(self, error: Overloaded, record: Record) -> Refused:
        record.shed = error.bound
        return Refused("overloaded", retry_after=1 + int(error.retry_after))
