"""The spine: one class shows every stage of an answer, in order.

`Gateway.encode` is what every route that encodes does: read, plan, price, run, end. Everything
before `admission.run` is refusal without work. It knows no question by name: a request names its
own. The files of this folder, each of which imports only those before it:

    shown  answer                what is answered, and how it is written
    precisions                   vectors in fewer bytes
    worker                       work that no lane does
    names                        which model and adapter a request names
    indices  tasks               what a request names -> numbers, and heads
    reader                       inputs -> sequences
    resolver                     what a request names -> what the model has
    price                        what it costs
    interventions  swept         what it changes, and what follows from that
    admission                    whether it may pass
    selection                    which attention of a sequence is shown
    space                        which vectors may stand in one index
    gateway
"""

import time
from collections.abc import Callable, Mapping, Sequence
from pkgutil import resolve_name
from typing import Any, NamedTuple

from service.core import Ask, Custom, Question, Side, Step
from service.encode.admission import Admission, Estimate, estimate_held
from service.encode.answer import Encoded, Identity
from service.encode.interventions import Interventions
from service.encode.names import Names
from service.encode.price import Price, step_flops
from service.encode.reader import Reader
from service.encode.resolver import Resolver
from service.encode.space import Spaces
from service.encode.worker import THREAD_CHARACTERS, Workers
from service.engine.fair.line import Timing
from service.engine.work import Work
from service.inputs import MOST_SPANS, Item, Texts, numbered_items
from service.observe.record import Record
from service.refusals import Refused
from service.settings import Settings

QuestionMaker = Callable[[Any, Custom, Resolver, Workers], Question]
AS_OUR_OWN = Custom()


class ResolvedRequest(NamedTuple):
    """A request with its question, before any of it is read.

    Args:
        texts: of all sides.
        edited: whether it changes heads.
        space: of the vectors that are answered, if they are of one.
    """

    ask: Ask
    question: Question
    sides: Sequence[Side]
    texts: Texts
    edited: bool
    space: str | None
    deadline: float
    record: Record


class PreparedRequest(NamedTuple):
    """A request that has been read.

    Args:
        works: of its texts; tokens: of these.
        held: bytes of what it asks, in place of the body's.
    """

    works: Sequence[Work]
    tokens: int
    step: Step
    price: Price
    held: int


class Gateway:
    """Answers requests for encodings, whichever API they come through.

    Args:
        identities: what every answer says about the model with each adapter; None: with none.
        spaces: of the vectors that are answered.
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
        self._admission, self._spaces = admission, spaces
        self._config = resolver.model.config
        self._workers = Workers(reader.worker, admission.endings)
        self._estimate = Estimate(reader.max_tokens, settings.max_request_tokens)
        names = [one.question for one in Ask.__subclasses__()]
        self._makes: dict[str, QuestionMaker] = {name: resolve_name(name) for name in names}

    @property
    def names(self) -> Names:
        """Return what clients may call the model."""
        return self.resolver.names

    def question(self, ask: Ask, custom: Custom = AS_OUR_OWN) -> Question:
        """Return the question of a request."""
        return self._makes[ask.question](ask, custom, self.resolver, self._workers)

    async def encode(
        self,
        ask: Ask,
        deadline: float,
        record: Record,
        custom: Custom = AS_OUR_OWN,
        expected: str | None = None,
    ) -> Encoded:
        """Answer a request.

        Args:
            deadline: when the answer must be ready, on time.monotonic's clock.
            custom: how the API that it came through reads and answers.
            expected: the space of its vectors, if the client says so.

        Raises:
            Refused: says why it cannot be answered.
        """
        asked = self._resolve(ask, deadline, record, custom, expected)
        tokens, characters = self._estimate.tokens(asked.texts)
        queued = characters >= THREAD_CHARACTERS
        before = estimate_held(asked.texts) if queued else 0
        with self._admission.reading(tokens, queued, before, deadline, record):
            works, tokens, step, price, kept = await self._prepare(asked)
        timing = await self._admission.run(step, deadline, record, price, inputs=kept)
        items = await asked.question.make_items(deadline)
        preamble = self._identities[asked.sides[-1].adapter].preamble(ask.number_format)
        if asked.space is not None:
            preamble["space"] = asked.space
        return Encoded(preamble, items, _request_usage(tokens, price, timing, works, asked.sides))

    async def dry_run(
        self,
        ask: Ask,
        deadline: float,
        record: Record,
        custom: Custom = AS_OUR_OWN,
        expected: str | None = None,
    ) -> dict[str, Any]:
        """Return what a request would cost and whether it would be admitted now; compute nothing.

        Args, Raises: as `encode`, but for what would only be refused now.
        """
        asked = self._resolve(ask, deadline, record, custom, expected)
        _, tokens, step, price, _ = await self._prepare(asked)
        cost = {
            "tokens": tokens,
            "attention_bytes": price.parts.get("attention", 0),
            "answer_bytes": price.total,
            "flops": step_flops(self._config, self.resolver.model.adapters, step),
        }
        try:
            self._admission.check(step, price, deadline, record)
        except Refused as refused:
            after = refused.retry_after
            return {**cost, "admitted": False, "code": refused.code, "retry_after_s": after}
        return {**cost, "admitted": True, "code": None, "retry_after_s": None}

    def _resolve(
        self, ask: Ask, deadline: float, record: Record, custom: Custom, expected: str | None
    ) -> ResolvedRequest:
        """Resolve what a request asks of this model.

        Raises:
            Refused: the model lacks it, it is more than a request may hold, or of another space.
        """
        record.input, question = _input_kind(ask.texts()), self.question(ask, custom)
        sides = question.sides()
        side = sides[-1]
        texts = side.inputs if len(sides) == 1 else [one for each in sides for one in each.inputs]
        more = numbered_items(texts)
        self._check_sizes(texts, more)
        edited = bool(ask.gates) or any([one.gates or one.patch for _, one in more])
        if expected is not None:
            self._spaces.check(side, edited, expected)
        space = self._spaces.of(side, edited) if side.vectors else None
        if side.adapter:
            record.weights = self.resolver.model.adapters[side.adapter].digest
        return ResolvedRequest(ask, question, sides, texts, edited, space, deadline, record)

    def _check_sizes(self, texts: Texts, more: Sequence[tuple[int, Item]]) -> None:
        """Refuse more than a request may hold, before any of it is looked at.

        Args:
            more: those that are more than texts.
        """
        if not texts:
            raise Refused.at("batch_empty", "inputs", detail="expected one input or more")
        if len(texts) > (limit := self.resolver.most_sequences):
            detail = f"it holds {len(texts):,}, and the limit is {limit:,}"
            raise Refused("batch_too_large", detail=detail, limit=limit)
        ids = spans = 0
        for _, one in more:
            ids += len(one.token_ids or ())
            spans += len(one.spans or ())
        self.resolver.check_tokens(ids)
        if spans > MOST_SPANS:
            detail = f"they hold {spans:,} spans, and the limit is {MOST_SPANS:,}"
            raise Refused.at("out_of_range", "inputs", detail=detail, limit=MOST_SPANS)

    async def _prepare(self, asked: ResolvedRequest) -> PreparedRequest:
        """Read and plan a request.

        Raises:
            Refused: a text cannot be read, or it takes more than a request may.
        """
        ask, question, sides, texts, edited, _, deadline, record = asked
        changes = Interventions(self._config)
        if edited:
            changes = Interventions.of(ask.gates, sides, self._config)
        works, start = list[Work](), time.monotonic()
        try:
            for side in sides:
                works += await self._reader.read(side, deadline, record)
        finally:
            record.end_stage("tokenize", start)
        tokens = sum(map(len, works))
        self.resolver.check_tokens(tokens)
        changes.apply(works, sides)

        async def read_gated(side: Side) -> list[Work]:
            made = await self._reader.read(side, deadline, record)
            for work in made:
                changes.common.apply(work)
            return made

        step = changes.ordered(
            await question.plan(works, read_gated, deadline, record), self.resolver
        )
        record.sequences, record.tokens = step.sequences, step.tokens
        self._estimate.learn(texts, works)
        return PreparedRequest(
            works, tokens, step, question.price(step), estimate_held(texts, works)
        )


def _input_kind(texts: Texts) -> str:
    """Return the kind of a request's inputs, as the metrics' label."""
    kinds = {one.kind if type(one) is Item else "text" for one in texts}
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"


def _request_usage(
    tokens: int, price: Price, timing: Timing, works: Sequence[Work], sides: Sequence[Side]
) -> dict[str, Any]:
    usage = {
        "tokens": tokens,
        "attention_bytes": price.parts.get("attention", 0),
        "answer_bytes": price.total,
        "queue_ms": round(timing.queued * 1000, 3),
        "compute_ms": round(timing.computed * 1000, 3),
    }
    # a text that is read with each of some labels is one
    each = sides[0].each
    if truncated := len({place // each for place, work in enumerate(works) if work.truncated}):
        usage["truncated"] = truncated
    return usage
