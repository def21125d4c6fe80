"""The spine: one class that runs every stage of an answer, in order.

Every route that encodes calls `Gateway.encode`: read, plan, price, run, make the items. A request
that is refused before `admission.run` costs the model nothing. No question is known here by name:
a request names its own. The files of this folder, each of which imports only those before it:

    write/task_answers  write/answer    outputs of task heads, and how answers are written
    write/precisions                    vectors in fewer bytes
    worker                              threads for work other than the model's
    find/names                          names of the model and its adapters
    find/heads  find/tasks              layers, heads, spans and task heads that a request names
    reader                              inputs -> sequences
    find/resolver                       names in a request -> parts of the model
    cost                                memory and computation that a request costs
    edit/interventions  edit/sweep      gates, patches and sweeps of heads
    admission                           whether a request is admitted
    find/selection                      which attention of a sequence is shown
    space                               which vectors may stand in one index
    gateway
    replica                             what has all of these
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any

from service.engine.fair.turns import PIECE_ENTRIES, cut, give_turn, next_turn
from service.pipeline.admission import Admission, Estimate, estimate_held
from service.pipeline.cost import step_flops
from service.pipeline.edit.interventions import Interventions
from service.pipeline.find.resolver import Resolver
from service.pipeline.reader import Reader
from service.pipeline.space import Spaces
from service.pipeline.worker import Workers, is_long
from service.shapes.answer import Answer, Identity
from service.shapes.ask import Ask, Custom
from service.shapes.inputs import Gate, InputItem, Texts, numbered_items
from service.shapes.job import Timing
from service.shapes.price import Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.spans import MOST_SPANS
from service.shapes.step import Plan, Question, Step
from service.shapes.work import Work
from service.tables.refusals import Refused
from service.tables.settings import Settings

# Makes the question of an Ask, the first argument
QuestionMaker = Callable[[Any, Custom, Resolver, Workers], Question]
AS_OUR_OWN = Custom()  # reads and answers as Headlight's own API does


class Gateway:
    """Answers requests for encodings, whichever API they come through.

    Args:
        identities: of the model with each adapter, by its name; None: without one.
        reader: makes works of inputs.
        resolver: finds what requests name in the model.
        spaces: names the spaces of vectors.

    Attributes:
        names: by which clients may call the model.
    """

    def __init__(
        self,
        identities: Mapping[str | None, Identity],
        reader: Reader,
        resolver: Resolver,
        admission: Admission,
        settings: Settings,
        spaces: Spaces,
    ) -> None:
        self._identities, self._reader, self.resolver = identities, reader, resolver
        self._admission, self._spaces, self.names = admission, spaces, resolver.names
        self._config = resolver.model.config
        self._unchanged = Interventions(self._config)
        self._workers = Workers(reader.worker, admission.sums)
        self._estimate = Estimate(reader.max_tokens, settings.max_request_tokens)
        names = [ask.question for ask in Ask.__subclasses__()]
        self._makers: dict[str, QuestionMaker] = {name: resolve_name(name) for name in names}

    def question(self, ask: Ask, custom: Custom = AS_OUR_OWN) -> Question:
        """Return the question that answers a request."""
        return self._makers[ask.question](ask, custom, self.resolver, self._workers)

    async def encode(
        self,
        ask: Ask,
        deadline: float,
        record: Record,
        custom: Custom = AS_OUR_OWN,
        expected: str | None = None,
    ) -> Answer:
        """Answer a request.

        Args:
            deadline: when the answer must be ready, on time.monotonic's clock.
            custom: how the API that it came through reads and answers.
            expected: name of the space that the client expects its vectors to be of, if any.

        Raises:
            Refused: why it cannot be answered.
        """
        question, texts, gates, space = await self._resolve(ask, record, custom, expected)
        if len(texts) > PIECE_ENTRIES:
            await next_turn()
        tokens, characters = self._estimate.tokens(texts)
        queued = is_long(characters, len(texts))
        unread_bytes = estimate_held(texts) if queued else 0
        admission, sides = self._admission, question.sides
        try:
            admission.foresee(tokens, deadline, record, queued=queued, held=unread_bytes)
            works, plan = await self._prepare(question, texts, gates, deadline, record)
            if many := len(works) > PIECE_ENTRIES:
                await next_turn()
            held = estimate_held(texts, works)
            if many:
                await next_turn()
            timing = await admission.run(plan.step, deadline, record, plan.price, inputs=held)
        finally:
            admission.forget(record)
        if many:
            await next_turn()
        items = await plan.make_items()
        preamble = self._identities[sides[-1].adapter].preamble(ask.chosen("dtype", "float32"))
        if space is not None:
            preamble["space"] = space
        usage = _request_usage(plan.price, timing, works, sides)
        if many:
            await next_turn()
        return Answer(preamble, items, usage)

    async def dry_run(
        self,
        ask: Ask,
        deadline: float,
        record: Record,
        custom: Custom = AS_OUR_OWN,
        expected: str | None = None,
    ) -> dict[str, Any]:
        """Return what a request would cost and whether it would be admitted now; compute nothing.

        Args, Raises: as `encode`; a refusal of `admission.run` is returned instead of raised.
        """
        question, texts, gates, _ = await self._resolve(ask, record, custom, expected)
        works, (step, price, _) = await self._prepare(question, texts, gates, deadline, record)
        await give_turn(record.sequences)
        cost = {
            "tokens": sum(map(len, works)),
            "attention_bytes": price.parts.get("attention", 0),
            "answer_bytes": price.total,
            "flops": await self._count_flops(step),
        }
        await give_turn(record.sequences)
        try:
            await self._admission.admit(step, deadline, record, price)
        except Refused as refused:
            seconds = refused.retry_after
            return {**cost, "admitted": False, "code": refused.code, "retry_after_s": seconds}
        return {**cost, "admitted": True, "code": None, "retry_after_s": None}

    async def _count_flops(self, step: Step) -> int:
        """Count the floating-point operations of a step's works and of those that may follow."""
        total, adapters = 0, self.resolver.model.adapters
        for works in cut(step.works):
            total += step_flops(self._config, adapters, Step(works))
            await give_turn(len(step.works))
        for likes in cut(step.follow):
            total += step_flops(self._config, adapters, Step((), follow=likes))
            await give_turn(len(step.follow))
        return total

    async def _resolve(
        self, ask: Ask, record: Record, custom: Custom, expected: str | None
    ) -> tuple[Question, Texts, Sequence[Gate] | None, str | None]:
        """Check a request against this model, before its texts are read.

        Returns:
            What answers it, the inputs of all its sides, the gates of all of them (None if no head
            of any is changed), and the name of the space of its vectors, if they are of one.

        Raises:
            Refused: the model lacks what it names, it is too large, or its vectors are not of the
                expected space.
        """
        record.input = _kind_of(ask.texts())  # also of what is refused now
        question = self.question(ask, custom)
        sides = question.sides
        side = sides[-1]
        texts = side.inputs if len(sides) == 1 else [text for each in sides for text in each.inputs]
        items = numbered_items(texts)
        self._check_sizes(texts, items)
        gates = ask.chosen("gates", ())
        edited = bool(gates or (items and any(item.gates or item.patch for _, item in items)))
        if expected is not None:
            self._spaces.check(side, edited, expected)
        space = self._spaces.of(side, edited) if side.vectors else None
        if side.adapter:
            record.weights = self.resolver.model.adapters[side.adapter].digest
        return question, texts, gates if edited else None, space

    def _check_sizes(self, texts: Texts, items: Sequence[tuple[int, InputItem]]) -> None:
        """Refuse a request with no input, or with too many inputs, token ids or spans.

        Args:
            items: inputs that are objects, not plain texts, with their numbers.
        """
        if not texts:
            raise Refused.at(
                "batch_empty", "inputs", detail="expected one input or more, received none"
            )
        if len(texts) > (limit := self.resolver.most_sequences):
            detail = f"it has {len(texts):,}, and the limit is {limit:,}"
            raise Refused("batch_too_large", detail=detail, limit=limit)
        ids = spans = 0
        for _, item in items:
            ids += len(item.token_ids or ())
            spans += len(item.spans or ())
        if ids:
            self.resolver.check_tokens(ids)
        if spans > MOST_SPANS:
            detail = f"they have {spans:,} spans, and the limit is {MOST_SPANS:,}"
            raise Refused.at("out_of_range", "inputs", detail=detail, limit=MOST_SPANS)

    async def _prepare(
        self,
        question: Question,
        texts: Texts,
        gates: Sequence[Gate] | None,
        deadline: float,
        record: Record,
    ) -> tuple[list[Work], Plan]:
        """Read, plan and price a request; return the works of its inputs, and the plan.

        Args:
            texts, gates: as `_resolve` returns them.

        Raises:
            Refused: an input cannot be read, or the request has too many tokens.
        """
        sides, changes = question.sides, self._unchanged
        if len(texts) > PIECE_ENTRIES:
            await next_turn()
        if gates is not None:
            changes = await Interventions.of(gates, sides, self._config)
        works, start = list[Work](), time.monotonic()
        try:
            for side in sides:
                works += await self._reader.read(side, deadline, record)
        finally:
            record.end_stage("tokenize", start)
        self.resolver.check_tokens(sum(map(len, works)))
        if len(works) > PIECE_ENTRIES:
            await next_turn()
        if gates is not None:
            await changes.apply(works, sides)

        async def read_gated(side: Side) -> list[Work]:
            """Read texts made while planning, and apply the request's gates to their works."""
            gated = await self._reader.read(side, deadline, record)
            for work in gated:
                changes.common.apply(work)
            return gated

        planned = await question.plan(works, read_gated, deadline, record)
        step = planned.step
        if gates is not None or step.follow:
            step = changes.ordered(step, self.resolver)
        planned.price.made += step.held
        record.inputs, record.sequences = len(works), step.sequences
        if record.sequences > PIECE_ENTRIES:
            await next_turn()
        record.tokens = step.tokens
        if record.sequences > PIECE_ENTRIES:
            await next_turn()
        self._estimate.learn(texts, works)
        return works, planned if step is planned.step else planned._replace(step=step)


def _kind_of(texts: Texts) -> str:
    """Return the kind of the inputs of a request, as the label in the metrics."""
    if not (items := numbered_items(texts)):
        return "text" if texts else "none"
    kinds = {item.kind for _, item in items} | ({"text"} if len(items) < len(texts) else set())
    return kinds.pop() if len(kinds) == 1 else "mixed"


def _request_usage(
    price: Price, timing: Timing, works: Sequence[Work], sides: Sequence[Side]
) -> dict[str, Any]:
    """Return the usage fields of an answer: tokens, bytes, milliseconds, inputs cut or blank."""
    lengths = list(map(len, works))
    usage = {
        "tokens": sum(lengths),
        "attention_bytes": price.parts.get("attention", 0),
        "answer_bytes": price.total,
        "queue_ms": round(timing.queued * 1000, 3),
        "compute_ms": round(timing.computed * 1000, 3),
    }
    # an input that is read several times, once with each label, counts once
    works_per_input = sides[0].each
    cut, blank = set[int](), set[int]()
    for index, (work, length) in enumerate(zip(works, lengths, strict=True)):
        if length < work.length:
            cut.add(index // works_per_input)
        if work.blank:
            blank.add(index // works_per_input)
    usage |= {"truncated": len(cut)} if cut else {}
    return usage | ({"blank": len(blank)} if blank else {})
