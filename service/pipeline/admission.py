"""The second gate: admits an answer only if there is memory, room in the queue and time for it."""

import asyncio
import math
import time
from collections.abc import Sequence
from dataclasses import replace
from sys import getsizeof
from typing import Protocol

import numpy as np

from service.engine.arrays import NonFiniteOutput
from service.engine.batcher import SURE_SHARE, Batcher
from service.engine.fair.turns import PIECE_ENTRIES, cut, next_turn
from service.engine.lanes import ProcessBroken
from service.observe.metrics import Metrics
from service.pipeline.worker import Worker
from service.shapes.inputs import Base64Array, InputItem, Text, Texts, text_and_pair
from service.shapes.job import Timing
from service.shapes.record import Record
from service.shapes.step import Step
from service.shapes.work import Result, Work
from service.tables.refusals import Refused
from service.tables.settings import Settings

ESTIMATE_MARGIN = 2  # special tokens that the tokenizer adds to a text
MOST_CHARACTERS = 8 << 20  # characters that may wait for the tokenizer: of 32 longest texts
ESTIMATE_MEMORY = 0.9  # weight that all earlier texts keep when those of a request are added
USUAL_CHARACTERS = 4.0  # characters per token until one is measured

# Bytes as tests/service/pipeline/test_held.py measures them
REQUEST_BYTES = 11 * 1024  # of a waiting request besides its inputs: tasks, headers, records
INPUT_BYTES = 600  # of an input, and of the sequence and the work made of it
ID_BYTES, TYPE_BYTES = 40, 8  # of a token id, and of a token type, in a list
TOKEN_BYTES, COPY_BYTES = 54, 16  # of a token read from a text, and of one that came as an id
FACT_BYTES = 250  # more for a token that the answer shows


class Estimate:
    """Estimates the tokens of texts by their characters, from the texts tokenized lately.

    Args:
        longest: most tokens of a sequence.
        most: most tokens of a request.
    """

    def __init__(self, longest: int, most: int) -> None:
        self._longest, self._most = longest, most
        self._tokens, self._characters = 1.0, USUAL_CHARACTERS  # decayed sums

    def tokens(self, texts: Texts) -> tuple[int, int]:
        """Return about how many tokens these inputs have, and exactly how many characters.

        An input of embeddings counts as ESTIMATE_MARGIN tokens.
        """
        ratio, longest = self._tokens / self._characters, self._longest
        tokens, characters = 0, 0
        for text in texts:
            if type(text) is str:
                size, ids = len(text), None
            else:
                size = _count_characters(text)
                ids = text.token_ids if type(text) is InputItem else None
            tokens += min(int(size * ratio) + ESTIMATE_MARGIN if ids is None else len(ids), longest)
            characters += size
        return min(tokens, self._most), characters

    def learn(self, texts: Texts, works: Sequence[Work]) -> None:
        """Add texts, and the works that they were tokenized to, to the average."""
        tokens, characters = 0, 0
        for text, work in zip(texts, works, strict=True):
            size = len(text) if type(text) is str else _count_characters(text)
            if size and len(work) >= work.length:  # not truncated
                tokens, characters = tokens + work.length - ESTIMATE_MARGIN, characters + size
        if characters:
            self._characters = ESTIMATE_MEMORY * self._characters + characters
            self._tokens = ESTIMATE_MEMORY * self._tokens + max(1, tokens)


def _count_characters(item: Text) -> int:
    """Return the number of characters of a text, or of a pair of texts."""
    text, pair = text_and_pair(item)
    return len(text or "") + (len(pair) if pair else 0)


def estimate_held(texts: Texts, works: Sequence[Work] = ()) -> int:
    """Return about how many bytes of memory a request's inputs and works take.

    Args:
        texts: the inputs: texts, token ids or embeddings.
        works: those made of the inputs, in their order; empty before they are read.
    """
    size = REQUEST_BYTES + INPUT_BYTES * len(texts)
    for item in texts:
        if type(item) is str:
            size += getsizeof(item)
            continue
        size += sum(getsizeof(text) for text in text_and_pair(item) if text is not None)
        if type(item) is InputItem and item.text is None:
            size += _count_held(item)
    for item, work in zip(texts, works, strict=False):
        copied = type(item) is InputItem and item.text is None
        token = COPY_BYTES if copied else TOKEN_BYTES
        size += len(work) * (token + FACT_BYTES if work.facts else token)
    return size


def _count_held(item: InputItem) -> int:
    """Return the bytes of memory that an input's token ids or embeddings take."""
    size = ID_BYTES * len(item.token_ids or ()) + TYPE_BYTES * len(item.token_type_ids or ())
    if (rows := item.embeddings) is None:
        return size
    if isinstance(rows, np.ndarray):
        size += rows.nbytes
    if isinstance(rows, Base64Array):  # with the float32 array that it is decoded to
        data = getsizeof(rows.data)
        size += data + data * 3 // 4 * (2 if rows.dtype == "float16" else 1)
    return size


class AnswerMemory(Protocol):
    """The memory that an answer takes; see service/pipeline/cost.py."""

    @property
    def made(self) -> int:
        """Return the bytes of its arrays and of all that is held until they are written."""

    @property
    def written(self) -> int:
        """Return about how many bytes the written answer has."""

    def check(self, most_json: int, most: int, /) -> None:
        """Refuse an answer of more than `most` bytes of arrays, or `most_json` as JSON numbers."""


class Admission:
    """The only way to the model, for clients' requests and for the service's own works.

    Its methods, in a request's order, and what they refuse it for:

    foresee         before it is read, by an estimate: no time, or no room in the queue or in memory
    admit           once it is read and planned: too large an answer, no memory, no room, no time
    run             the same, and its works are run: no time
    forget          what it was given is given back: it has run, or failed

    Admission counts, per request, the memory until it ends, and works that are still to come to
    the queue: of what is being read as an estimate, then of steps that follow. The batcher and the
    workers below count what waits for them.

    Args:
        dtype: number format of the model, as a refusal names it.

    Attributes:
        texts: tokenizes long texts.
        sums: computes similarities.
        lessons: computes the attention mechanism without the model.
    """

    def __init__(
        self, batcher: Batcher[Work, Result], metrics: Metrics, settings: Settings, dtype: str
    ) -> None:
        self._batcher, self._metrics, self._dtype = batcher, metrics, dtype
        self._most_json, self._most = settings.max_answer_json_bytes, settings.max_answer_bytes
        self.texts = Worker(MOST_CHARACTERS)
        self.sums, self.lessons = Worker(math.inf), Worker()  # requests of sums were admitted
        # by a request that is read or runs: tokens and cost of its works that are to come, and
        # whether they are being read
        self._coming = dict[Record, tuple[int, float, bool]]()

    def foresee(
        self, tokens: int, deadline: float, record: Record, *, queued: bool, held: int = 0
    ) -> None:
        """Refuse a request before it is read, if it would most likely not be admitted afterwards.

        While no other request waits, none is refused here: a lone request may be long. Of one whose
        texts wait to be tokenized, the tokens count from now on.

        Args:
            tokens: about how many the request has.
            deadline: when its answer must be ready, on time.monotonic's clock.
            queued: whether its texts wait to be tokenized, behind those of other requests that
                count as ahead of it. Texts that are read at once wait for none.
            held: then, bytes of memory of its inputs, which replace those of its body.

        Raises:
            Refused: others wait, and there is no time or no room for this one, or no memory.
        """
        ahead, cost_ahead = self._sum_coming(record.key, read=queued)
        if ahead or self._batcher.waiting_requests:
            self._batcher.check_admission(tokens + ahead, tokens + cost_ahead, deadline, record.key)
        if queued:
            record.hold.take(bodies=held)
            self._coming[record] = tokens, tokens, True

    def forget(self, record: Record) -> None:
        """Give back what a request was given to hold until it has run, in whatever way it ended.

        Were it not held, all that arrive meanwhile would be admitted to the room left for one.
        """
        self._coming.pop(record, None)

    def _sum_coming(self, key: str, *, read: bool) -> tuple[int, float]:
        """Return the tokens and cost of a key's works that are to come.

        Args:
            read: whether those that are being read count, too.
        """
        tokens, cost = 0, 0.0
        for record, (more_tokens, more_cost, is_read) in self._coming.items():
            if record.key == key and (read or not is_read):
                tokens, cost = tokens + more_tokens, cost + more_cost
        return tokens, cost

    def hold(self, price: AnswerMemory, record: Record, inputs: int | None = None) -> None:
        """Reserve the memory that an answer takes until its request ends.

        Args:
            inputs: bytes of the request's inputs and works, which replace those reserved for its
                body; None: leave these as they are.

        Raises:
            Refused: the answer is too large, or there is no memory for it.
        """
        price.check(self._most_json, self._most)
        held = {} if inputs is None else {"bodies": inputs}
        record.hold.take(arrays=price.made, answers=price.written, **held)

    async def admit(
        self,
        step: Step,
        deadline: float,
        record: Record,
        price: AnswerMemory | None = None,
        inputs: int | None = None,
    ) -> tuple[int, list[float]]:
        """Reserve the memory that an answer takes, and refuse works for which there is no room now.

        A request that is late because others wait may be sent again; one that is late by itself
        always would be, and gets deadline_unreachable. That is judged by all the time it was
        given, at the best speed, so that neither a slow moment of this machine nor the time that
        reading took matters. How many sequences would fit is told at the recent speed.

        Args:
            step, deadline, record, price, inputs: as `run` takes them.

        Returns:
            The tokens of all works, and the cost of each of the step, then of each kind of work
            that may follow.

        Raises:
            Refused: the answer is too large, or there is no memory, room or time for it.
        """
        if price is not None:
            self.hold(price, record, inputs)
        self._coming.pop(record, None)  # it has been read
        if len(step.works) + len(step.follow) > PIECE_ENTRIES:
            await next_turn()
        costs, tokens = await self._step_costs(step), step.tokens
        if len(costs) > PIECE_ENTRIES:
            await next_turn()
        cost, given = sum(costs), deadline - record.start
        needed = self._batcher.fewest_seconds(cost)
        if needed >= given:
            share = SURE_SHARE * max(given, 0.0) * self._batcher.speed / max(cost, 1.0)
            raise Refused(
                "deadline_unreachable",
                estimate_ms=math.ceil(needed * 1000),
                deadline_ms=math.floor(given * 1000),
                sequences=int(share * (record.inputs or len(step.works))),
            )
        ahead, cost_ahead = self._sum_coming(record.key, read=False)
        self._batcher.check_admission(tokens + ahead, cost + cost_ahead, deadline, record.key)
        return tokens, costs

    async def run(
        self,
        step: Step,
        deadline: float,
        record: Record,
        price: AnswerMemory | None = None,
        *,
        inputs: int | None = None,
    ) -> Timing:
        """Admit and run a request's works, and set each work's result.

        Args:
            step: the first step; all works that may follow it are admitted with it.
            deadline: when the answer must be ready, on time.monotonic's clock.
            record: of the request, which the works carry.
            price: memory that the answer takes, if a client gets one.
            inputs: bytes of the request's inputs and works; see `hold`.

        Returns:
            The seconds that the works waited and were computed, all steps together.

        Raises:
            Refused: the works are not admitted, not done in time, or their numbers not finite.
        """
        record.batch_start, start = 0.0, time.monotonic()
        try:
            tokens, costs = await self.admit(step, deadline, record, price, inputs)
            timing = await self._run_steps(step, tokens, costs, deadline, record)
        except asyncio.CancelledError:
            self._metrics.cancelled.add("forward" if record.batch_start else "queue")
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
        """Run works of the service itself and return their results; raise as `run` does."""
        record = Record("own")
        own = [replace(work, record=record) for work in works]
        try:
            await self.run(Step(own), deadline, record)
        finally:
            self.forget(record)
        return [work.result for work in own]

    async def _run_steps(
        self, step: Step, tokens: int, costs: Sequence[float], deadline: float, record: Record
    ) -> Timing:
        """Run one step after the other; what follows stays reserved while one runs.

        Args:
            tokens, costs: as `admit` returns them.
        """
        cost, queued, computed = sum(costs), 0.0, 0.0
        costs = costs[: len(step.works)]
        while True:
            if step.then:
                tokens, cost = tokens - sum(map(len, step.works)), cost - sum(costs)
                self._coming[record] = max(tokens, 0), max(cost, 0.0), False
            results, timing = await self._batcher.submit(step.works, deadline, record.key, costs)
            self._coming.pop(record, None)
            for work, result in zip(step.works, results, strict=True):
                work.result = result
            queued, computed = queued + timing.queued, computed + timing.computed
            next_step = await step.then() if step.then else None
            if next_step is None:
                return Timing(queued, computed)
            step, costs = next_step, await self._work_costs(next_step.works)

    async def _step_costs(self, step: Step) -> list[float]:
        """Return the cost of each of a step's works, then of each kind of work that may follow."""
        costs = await self._work_costs(step.works)
        if not step.follow:
            return costs
        likes = await self._work_costs([like for like, _ in step.follow])
        counts = (count for _, count in step.follow)
        return [*costs, *(cost * count for cost, count in zip(likes, counts, strict=True))]

    async def _work_costs(self, works: Sequence[Work]) -> list[float]:
        """Return the cost of each work, counted in turns."""
        if len(works) <= PIECE_ENTRIES:
            return [*self._batcher.costs(works)]
        costs = list[float]()
        for piece in cut(works):
            costs += self._batcher.costs(piece)
            await next_turn()
        return costs
