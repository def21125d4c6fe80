"""The spine: one function shows every stage of an answer, in order.

`Gateway.encode` is what every route that encodes does: plan, price, run, answer. Everything
before `admission.run` is refusal without work.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from model.config import EncoderConfig
from service.api.native.request import EncodeRequest
from service.api.questions.comparison import Comparison
from service.api.questions.matching import Matching
from service.encode import answer, maps
from service.encode.admission import Admission
from service.encode.answer import Encoded, Identity
from service.encode.estimate import Estimate, characters, held, waits
from service.encode.interventions import worth
from service.encode.interventions.course import Course
from service.encode.layout import Layout
from service.encode.plan import Plan, Planner
from service.encode.price import HALF, SINGLE, Price, copy_flops, flops, head_flops
from service.encode.questions.comparison import Comparer
from service.encode.questions.matches import Matcher, MatchPrice
from service.encode.questions.price import ComparisonPrice
from service.engine.fair.line import Timing
from service.engine.work import Result
from service.observe.metrics import Metrics
from service.observe.record import Record
from service.refusals import Refused
from service.settings import Settings

AnyPrice = Price | ComparisonPrice | MatchPrice
REAL = ("values", "vectors")  # of a head's arrays, those in the format of the request


class Gateway:
    """Answers requests for encodings, whichever API they come through.

    Args:
        identity: what every answer says about the model.
    """

    def __init__(
        self,
        identity: Identity,
        config: EncoderConfig,
        planner: Planner,
        admission: Admission,
        settings: Settings,
        metrics: Metrics,
        comparer: Comparer,
        matcher: Matcher,
    ) -> None:
        self._identity, self._config, self._settings = identity, config, settings
        self._planner, self._admission, self._metrics = planner, admission, metrics
        self._comparer, self._matcher = comparer, matcher
        self._estimate = Estimate(planner.longest, settings.max_request_tokens)

    async def encode(
        self,
        request: EncodeRequest,
        deadline: float,
        record: Record,
        layout: Layout,
    ) -> Encoded:
        """Answer a request.

        Args:
            deadline: when the answer must be ready, on time.monotonic's clock.
            layout: how the answer's arrays are written; padding counts as tokens.

        Raises:
            Refused: says why it cannot be answered.
        """
        record.input = _kind(request)
        self._comparer.check(request)
        sizes = characters(request.inputs)
        tokens, aside = self._estimate.tokens(request.inputs, sizes), waits(sizes)
        with self._admission.foreseen(tokens, deadline, record, aside=aside):
            if aside:
                self._admission.settle(record, held(request.inputs))
            plan = await self._planner.plan(request, deadline, record)
        self._estimate.learn(sizes, plan.inputs)
        if layout.padded:
            self._planner.check_tokens(len(plan.works) * max(plan.lengths))
        price = self._price(request, plan, layout)
        price.check(self._settings)
        asked = held(request.inputs, plan.inputs) - record.hold.bytes["bodies"]
        made, written = price.made + plan.held, price.written
        self._admission.reserve(record, bodies=asked, arrays=made, answers=written)
        course, copies = plan.course, list[list[Result]]()
        if course is None:
            results, timing = await self._admission.run(plan.works, deadline, record)
        else:
            (results, copies), timing = await self._admission.follow(course, deadline, record)
        if request.attention:
            heads = sum(len(h) for one in plan.attention() for h in one.heads.values())
            self._metrics.shown(request.attention.form, heads, price.parts["attention"])
        usage = _usage(plan, price, timing)
        items: Iterable[answer.Item] = (
            _item(request, plan, index, result) for index, result in enumerate(results)
        )
        if isinstance(request, Comparison):
            items = await self._comparer.compare(request.compared, plan, results, deadline)
        if isinstance(request, Matching):
            items = await self._matcher.match(plan, results, deadline)
        if copies and course:
            swept = _swept(request, course, results, copies)
            items = (_with(item, more) for item, more in zip(items, swept, strict=True))
        return Encoded(self._identity.head(request.dtype), items, usage)

    async def dry_run(
        self, request: EncodeRequest, deadline: float, record: Record, layout: Layout
    ) -> dict[str, Any]:
        """Return what a request would cost and whether it would be admitted now; compute nothing.

        Raises:
            Refused: the request would never be answered.
        """
        record.input = _kind(request)
        self._comparer.check(request)
        plan = await self._planner.plan(request, deadline, record)
        price = self._price(request, plan, layout)
        cost = {
            "tokens": sum(plan.lengths),
            "attention_bytes": price.parts["attention"],
            "answer_bytes": price.total,
            "flops": flops(self._config, plan.lengths, plan.attention()) + head_flops(plan.works),
        }
        if plan.course:
            cost["flops"] += copy_flops(self._config, plan.course.copies)
        try:
            price.check(self._settings)
            self._admission.reserve(record, arrays=price.made + plan.held, answers=price.written)
            self._admission.check(plan.every, deadline, record)
        except Refused as refused:
            after = refused.retry_after
            return {**cost, "admitted": False, "code": refused.code, "retry_after_s": after}
        return {**cost, "admitted": True, "code": None, "retry_after_s": None}

    def _price(self, request: EncodeRequest, plan: Plan, layout: Layout) -> AnyPrice:
        number = HALF if request.dtype == "float16" else SINGLE
        if isinstance(request, Comparison):
            return ComparisonPrice(request.compared, plan, self._config.width, number, layout)
        if isinstance(request, Matching):
            return MatchPrice(plan.works, layout)
        return Price(plan.works, self._config, number, layout)


def _kind(request: EncodeRequest) -> str:
    """The kind of a request's inputs, as the metrics' label."""
    kinds = {"text" if isinstance(one, str) else one.kind for one in request.inputs}
    return kinds.pop() if len(kinds) == 1 else "mixed" if kinds else "none"


def _item(request: EncodeRequest, plan: Plan, index: int, result: Result) -> answer.Item:
    """One sequence's share of the answer."""

    def cast(array: answer.Array, layer: int = -1) -> answer.Array:
        try:
            return answer.cast(array, request.dtype)
        except answer.NotFinite:
            raise Refused("nonfinite_output", layer=layer, dtype=request.dtype) from None

    spans = [span.facts() for span in plan.spans.get(index, ())]
    source, selection = plan.inputs[index], plan.works[index].outputs.attention
    item = answer.Item(
        len(source.sequence),
        facts={**source.facts, "truncated": source.truncated, "length": source.length}
        | ({"spans": spans} if spans else {}),
        pooled=None if result.pooled is None else cast(result.pooled),
        tokens=None if result.tokens is None else cast(result.tokens),
        layers={layer: cast(array, layer) for layer, array in result.hidden.items()},
        parts=None if result.parts is None else cast(result.parts),
    )
    if plan.task:
        made = {name: cast(array) if name in REAL else array for name, array in result.task.items()}
        item = replace(item, task=plan.task.show(source.facts, made))
    if selection is None or result.attention is None:
        return item
    return replace(
        item,
        attention=maps.facts(selection, result.attention.path),
        maps=maps.tree(selection, result.attention, request.encoding),
        arrays=dict(maps.tensors(selection, result.attention)),
    )


def _swept(
    request: EncodeRequest, course: Course, results: Sequence[Result], copies: Sequence[Any]
) -> Iterator[dict[str, Any]]:
    """What each item says of a sweep; the left text of a comparison says nothing."""
    if isinstance(request, Comparison):
        yield {}
        left = results[0]
        for index in range(1, len(results)):
            change = worth.changed(course.heads, left, results[index], copies[0], copies[index])
            yield {"sweep": change}
    else:
        for result, own in zip(results, copies, strict=True):
            yield {"sweep": worth.moved(course.heads, result, own)}


def _with(item: answer.Item, more: Mapping[str, Any]) -> answer.Item:
    return replace(item, facts={**item.facts, **more})


def _usage(plan: Plan, price: AnyPrice, timing: Timing) -> Mapping[str, Any]:
    return {
        "tokens": sum(plan.lengths),
        "attention_bytes": price.parts["attention"],
        "answer_bytes": price.total,
        "queue_ms": round(timing.queued * 1000, 3),
        "compute_ms": round(timing.computed * 1000, 3),
    }
