"""A request -> what the model is to do for each of its sequences, or a refusal."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial

from model.config import Side
from model.loading.checkpoint import Model
from model.maps.choices import Level, Specials
from model.maps.forms import Selection
from model.maps.units import Units, divide
from model.pooling import Pooling
from model.text.tokenizer import Cut
from service.encode import tasks
from service.encode.evidence import Evidence, evidence, linear_of
from service.encode.indices import (
    Span,
    heads_by_layer,
    hidden_states,
    locate,
)
from service.encode.inputs import Reader
from service.encode.interventions import Course, Edits, Interventions
from service.encode.names import Names
from service.encode.occlusion import Occlusion
from service.encode.request import (
    MOST_SPANS,
    Attention,
    Documents,
    Highlight,
    Input,
    LabelTokens,
    Likeness,
    MultiVector,
    Pooled,
    Request,
)
from service.encode.tasks import Task
from service.engine.work import Outputs, Parts, Work
from service.observe.record import Record
from service.refusals import Refused
from service.settings import Settings
from service.wording.words import Loc

SHOWING = (LabelTokens, MultiVector)  # answers that show the tokens
MOST_KEYS, MOST_BLOCKS = 8, 32  # where a request does not say

FIRST = (
    'expected a pooling that a part can have: "cls" takes the first token, which is a special one; '
    '"pooled": {"mode": "mean"} goes with spans'
)

Heads = Mapping[int, tuple[int, ...]]  # by layer


@dataclass(frozen=True, slots=True)
class Plan:
    """The sequences of a request and what is wanted of each, in its order.

    Args:
        tokens: of all works.
        alone: whether one vector of each is all that is wanted, as of most requests.
        units: of a comparison that shows what they add or are worth, those of each.
        spans: those that get a vector of their own, by sequence.
        course: how the works follow from each other, where they do.
        adapter: that its works have; not the first one's, where that is another side.
    """

    works: Sequence[Work]
    tokens: int
    alone: bool = False
    units: Sequence[Units] = ()
    spans: Mapping[int, Sequence[Span]] = field(default_factory=dict)
    tasks: Sequence[Task] = ()
    course: Course | Occlusion | Evidence | None = None
    adapter: str | None = None

    @property
    def held(self) -> int:
        """Count the bytes that it keeps in addition to the answer."""
        return self.course.held if self.course else 0

    @property
    def every(self) -> Sequence[Work]:
        """Return all that it runs."""
        return self.course.every if self.course else self.works

    @property
    def lengths(self) -> list[int]:
        """Return the tokens of each."""
        return list(map(len, self.works))

    def attention(self) -> list[Selection]:
        """Return what is to be shown of each."""
        return [work.outputs.attention for work in self.works if work.outputs.attention]


class Planner:
    """Plans requests for one model.

    Args:
        name: what clients call it.
    """

    def __init__(self, name: str, model: Model, reader: Reader, settings: Settings) -> None:
        self.names = Names(name, [*model.adapters])
        self._model, self._reader, self._settings = model, reader, settings
        self._own, self._linear = Outputs(model.pooling), linear_of(model.pooling)

    @property
    def longest(self) -> int:
        """Return the tokens of a sequence, at most."""
        return self._reader.max_tokens

    def prompt(self, name: str | None, adapter: str | None = None) -> str:
        """Return what goes before a text; raises as Reader.prompt."""
        return self._reader.prompt(name, adapter)

    def adapter(self, request: Request) -> str | None:
        """Return the adapter that a request asks for; raises as Names.adapter."""
        return self.names.adapter(request.model, request.task)

    def cut(self, request: Request) -> Cut:
        """Return what happens to a sequence of a request that is too long."""
        return request.truncate or self._settings.truncate or request.usual

    async def plan(self, request: Request, deadline: float, record: Record) -> Plan:
        """Read the inputs, and resolve what is asked of each.

        Args:
            deadline: when the answer must be there, on time.monotonic's clock.

        Raises:
            Refused: what is asked for does not exist, or an input cannot be read.
        """
        try:
            return await self._plan(request, deadline, record)
        except Refused as refused:
            _place(refused, request.place)
            raise

    async def _plan(self, request: Request, deadline: float, record: Record) -> Plan:
        adapter, outputs = self.adapter(request), self._outputs(request)
        heads = self._heads(request.attention) if request.attention else {}
        wanted: Sequence[Task] = ()
        changes = None
        if request.tasks:
            wanted = tasks.find(request, self._model)
            outputs = replace(outputs, task_heads=tuple([task.head for task in wanted]))
        edited: object = request.gates or request.sweep
        spanned: object = None
        for one in request.inputs:
            edited, spanned = edited or one.gates or one.patch, spanned or one.spans
        if edited:
            changes = Interventions.of(request, outputs, self._model.config)
        start = time.monotonic()
        try:
            works = await self._read(request, outputs, deadline, record)
        finally:
            record.end_stage("tokenize", start)
        if adapter:
            record.weights = self._model.adapters[adapter].digest
        for task in wanted:
            task.check(works)
        if changes:
            changes.check(works, self.check_tokens)
        spans = self._spans(request, works) if spanned else {}
        if request.attention:
            alike = dict[object, Outputs]()
            for index, work in enumerate(works):
                kind = self._kind(request.attention, work)
                if kind not in alike:
                    selection = self._selection(request.attention, heads, index, work)
                    alike[kind] = replace(outputs, attention=selection)
                work.outputs = alike[kind]
        for index, located in spans.items():
            parts = self._parts(request.pooled, located)
            works[index].outputs = replace(works[index].outputs, parts=parts)
        _fit(works, wanted)
        units = _units_of(request, works) if request.axes else ()
        course: Course | Occlusion | Evidence | None = None
        if changes:
            changes.apply(works)
            course = changes.course(works)
        if isinstance(request.ending, Likeness) and request.ending.form == "occlusion":
            width = self._model.config.width
            course = Occlusion.of(works, units, width, self.check_tokens)
        if isinstance(request.ending, Highlight):
            edits = changes.edits[-1] if changes else Edits()  # of a document
            course = await self._evidence(
                request, adapter, works, outputs, wanted, edits, deadline, record
            )
        tokens, own = sum(map(len, works)), (request.tokens, request.layers, request.attention)
        alone = not (wanted or spans or changes or any(own))
        plan = Plan(works, tokens, alone, units, spans, wanted, course, adapter)
        record.sequences, record.tokens = len(works), tokens
        if course:
            record.sequences, record.tokens = len(plan.every), sum(map(len, plan.every))
        return plan

    def check_tokens(self, tokens: int, holds: str = "it holds") -> None:
        """Refuse more tokens than a request may hold."""
        limit = self._settings.max_request_tokens
        if tokens > limit:
            detail = f"{holds} {tokens:,}, and the limit is {limit:,}"
            raise Refused("too_many_tokens", detail=detail, tokens=tokens, limit=limit)

    def _outputs(self, request: Request) -> Outputs:
        """Return what the lanes return of each sequence."""
        layers, pooling = self._model.config.layers, self.pooling(request.pooled)
        if not (request.tokens or request.layers):
            return self._own if pooling is self._own.pooling else Outputs(pooling)
        try:
            hidden = hidden_states(request.layers, layers)
        except IndexError as error:
            detail = str(error)
            raise Refused.at("index_out_of_range", "layers", detail=detail, limit=layers) from None
        return Outputs(pooling, request.tokens, hidden)

    def pooling(self, pooled: bool | Pooled) -> Pooling | None:
        """Return how one vector is made of a sequence; None where there is none.

        Raises:
            Refused: the model's vectors have fewer numbers.
        """
        own = self._model.pooling
        if isinstance(pooled, bool):
            return own if pooled else None
        normalize = own.normalize if pooled.normalize is None else pooled.normalize
        # the checkpoint's Dense layers are made for its own reduction and for no other
        pooling = own if pooled.mode == "model" else Pooling((pooled.mode,), normalize)
        size = pooling.size(self._model.config.width)
        if pooled.dimensions is not None and pooled.dimensions > size:
            detail = f"expected at most {size}, the size of this model's vectors"
            raise Refused.at("out_of_range", "pooled", "dimensions", detail=detail, limit=size)
        dimensions = pooled.dimensions or pooling.dimensions
        if (normalize, dimensions) == (pooling.normalize, pooling.dimensions):
            return pooling
        return replace(pooling, normalize=normalize, dimensions=dimensions)

    def _spans(self, request: Request, inputs: Sequence[Work]) -> dict[int, list[Span]]:
        """Return the spans of each input that has some."""
        pooling, found = self.pooling(request.pooled) or self._model.pooling, {}
        for index, (item, source) in enumerate(zip(request.inputs, inputs, strict=True)):
            if item.spans and item.text is not None:
                if "cls" in pooling.modes:
                    raise Refused.at("out_of_range", "inputs", index, "spans", detail=FIRST)
                facts = source.facts
                found[index] = locate(
                    item.spans, item.text, facts["offsets"], facts["special"], index
                )
        spanned = (last - first for spans in found.values() for first, last in _places(spans))
        self.check_tokens(sum(spanned), "its spans hold")
        return found

    def _parts(self, pooled: bool | Pooled, spans: Sequence[Span]) -> Parts:
        pooling = self.pooling(pooled) or self._model.pooling
        return Parts(_places(spans), pooling)

    def _heads(self, attention: Attention) -> Heads:
        """Return the heads to show."""
        limits = {"layers": self._model.config.layers, "heads": self._model.config.heads}
        try:
            return heads_by_layer(attention, **limits)
        except IndexError as error:
            detail = str(error)
            raise Refused.at("index_out_of_range", "attention", detail=detail, **limits) from None

    async def _read(
        self, request: Request, outputs: Outputs, deadline: float, record: Record
    ) -> list[Work]:
        """Return the inputs as sequences, within the limits of a request."""
        if not request.inputs:
            raise Refused.at("batch_empty", "inputs", detail="expected one input or more")
        if len(request.inputs) > (limit := self._settings.max_sequences):
            detail = f"it holds {len(request.inputs):,}, and the limit is {limit:,}"
            raise Refused("batch_too_large", detail=detail, limit=limit)
        # before any is looked at, whatever is cut of them
        ids, spans = 0, 0
        for one in request.inputs:
            ids += len(one.token_ids or ())
            spans += len(one.spans or ())
        self.check_tokens(ids)
        if spans > MOST_SPANS:
            detail = f"they hold {spans:,} spans, and the limit is {MOST_SPANS:,}"
            raise Refused.at("out_of_range", "inputs", detail=detail, limit=MOST_SPANS)
        facts = bool(spans or request.tokens or request.layers or request.attention or request.axes)
        facts = facts or isinstance(request.ending, Highlight)
        facts = facts or any([isinstance(one, SHOWING) for one in request.tasks])
        works: list[Work] = []
        for start, some, prompt_name, side, task in _sides(request):
            try:
                works += await self._reader.read(
                    some,
                    self.cut(request),
                    deadline,
                    facts=facts,
                    outputs=outputs,
                    record=record,
                    most=request.most,
                    counted=request.counted,
                    prompt_name=prompt_name,
                    instruction=request.instruction,
                    adapter=self.names.adapter(request.model, task),
                    role=tasks.role(request, side, self._model) if side or request.tasks else None,
                    documents=request.documents,
                )
            except Refused as refused:
                _place(refused, partial(_behind, start=start))
                raise
        self.check_tokens(sum(map(len, works)))
        return works

    async def _evidence(
        self,
        request: Request,
        adapter: str | None,
        works: Sequence[Work],
        outputs: Outputs,
        wanted: Sequence[Task],
        edits: Edits,
        deadline: float,
        record: Record,
    ) -> Evidence:
        """Return what follows from works where evidence is asked for."""
        asked = request.ending
        if not isinstance(asked, Highlight):
            raise RuntimeError("another ending's request: this is a bug")

        async def read(inputs: Sequence[Input], sources: Sequence[int]) -> list[Work]:
            """Return documents that lack units as works."""
            try:
                made = await self._reader.read(
                    inputs,
                    self.cut(request),
                    deadline,
                    facts=False,
                    outputs=outputs,
                    record=record,
                    counted=False,
                    prompt_name=request.prompt_name,
                    adapter=adapter,
                    role=tasks.role(request, request.role, self._model) if wanted else None,
                    documents=Documents(),
                )
            except Refused as refused:
                _place(refused, lambda loc: request.place(_from(loc, sources)))
                raise
            for work in made:
                edits.apply(work)
            _fit(made, wanted)
            return made

        return await evidence(
            asked,
            request,
            works,
            self._linear,
            self._model.config.width,
            read,
            self._reader.worker,
            deadline,
            record,
            self._settings.max_sequences,
            self.check_tokens,
        )

    def _kind(self, attention: Attention, source: Work) -> object:
        """Return what of a sequence its selection depends on."""
        names: Sequence[str] = ()
        if attention.level == "word":
            names = ("special", "words", "segments")
        elif attention.specials != "keep" or attention.form == "stats":
            names = ("special",)
        parts = [tuple(source.facts.get(name) or ()) for name in names]
        return len(source), *parts, self._separators(attention, source)

    def _separators(self, attention: Attention, source: Work) -> tuple[int, ...]:
        """Return the tokens that separate, where they matter."""
        ids = source.facts["token_ids"] if attention.form == "stats" else None
        separator = self._model.tokenizer.separator
        return tuple([i for i, id in enumerate(ids or ()) if id == separator])

    def _selection(self, attention: Attention, heads: Heads, index: int, source: Work) -> Selection:
        """Return what is to be shown of one sequence's attention."""
        facts = source.facts
        units = _units(attention.level, attention.specials, index, source)
        if not set(attention.rows) <= set(units.axis):
            detail = _missing_row(attention, index, units)
            raise Refused.at("index_out_of_range", "attention", "rows", detail=detail)
        special = facts["special"] or []
        return Selection(
            heads,
            units,
            attention.form,
            attention.weight or ("value_norm" if attention.form == "dominance" else "probability"),
            tuple(attention.rows),
            attention.k or MOST_KEYS,
            attention.size or MOST_BLOCKS,
            attention.dtype == "float16",
            special.index(True) if True in special else None,
            self._separators(attention, source),
        )


def _fit(works: Sequence[Work], wanted: Sequence[Task]) -> None:
    """Give works the task heads that depend on their tokens."""
    if any([task.fit for task in wanted]):
        for work in works:
            fitted = tuple([task.fitted(work) for task in wanted])
            work.outputs = replace(work.outputs, task_heads=fitted)


def _from(loc: Loc, sources: Sequence[int]) -> Loc:
    """Return the place of the input that another was made of."""
    return ("inputs", sources[int(loc[1])], *loc[2:]) if loc[:1] == ("inputs",) else loc


def _place(refused: Refused, place: Callable[[Loc], Loc]) -> None:
    """Say where in the request stands what is refused."""
    refused.faults = [replace(fault, loc=place(fault.loc)) for fault in refused.faults]


def _sides(
    request: Request,
) -> Sequence[tuple[int, Sequence[Input], str | None, Side | None, str | None]]:
    """Return the inputs that are read alike: where they start, their prompt, role and task."""
    inputs, rest = request.inputs, (request.prompt_name, request.role, request.task)
    if (first := request.first) is None:
        return ((0, inputs, *rest),)
    return (0, inputs[:1], first.prompt_name, first.role, first.task), (1, inputs[1:], *rest)


def _behind(loc: Loc, start: int) -> Loc:
    """Return the place of a fault among all inputs, of its place among those from one on."""
    return ("inputs", int(loc[1]) + start, *loc[2:]) if loc[:1] == ("inputs",) and loc[1:] else loc


def _places(spans: Sequence[Span]) -> list[tuple[int, int]]:
    """Return the tokens of each span, [first, last)."""
    return [span.tokens for span in spans]


def _units_of(request: Request, inputs: Sequence[Work]) -> list[Units]:
    """Return what the tokens of each text are gathered to, where they make a table."""
    axes = request.axes
    return [_units(*axes, index, one) for index, one in enumerate(inputs)] if axes else []


def _units(level: Level, specials: Specials, index: int, source: Work) -> Units:
    """Return the rows and columns of one sequence's maps."""
    facts = source.facts
    if level == "word" and facts["words"] is None:
        detail = '"level": "word" needs a text, and this input is not one'
        raise Refused.at("words_unknown", "inputs", index, detail=detail)
    if specials != "keep" and facts["special"] is None:
        detail = 'embeddings take "specials": "keep" alone'
        raise Refused.at("specials_unknown", "inputs", index, detail=detail)
    units = divide(
        len(source.sequence),
        level=level,
        specials=specials,
        words=facts["words"] or (),
        segments=facts.get("segments", ()),
        special=facts["special"] or (),
    )
    if not units.axis:
        detail = f'"specials": "{specials}" leaves nothing of its special tokens'
        raise Refused.at("nothing_left", "inputs", index, detail=detail)
    return units


def _missing_row(attention: Attention, index: int, units: Units) -> str:
    """Say which row an input does not have."""
    number = next(at for at, row in enumerate(attention.rows) if row not in units.axis)
    rows = f"{attention.level}s 0 to {len(units.spans) - 1}"
    left = "" if attention.specials == "keep" else ", without special tokens"
    return f"entry {number} is not a row of inputs[{index}], which has the {rows}{left}"
