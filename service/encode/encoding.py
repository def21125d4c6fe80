"""The ending of most requests: what is wanted of each input, as the model makes it."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Any

from model.config import EncoderConfig
from model.maps import price as maps_price
from model.maps.forms import Selection
from model.pooling import Pooling
from model.task_heads import TaskHead, Vectors
from service.encode import answer, maps
from service.encode.answer import Array, Item
from service.encode.interventions import Course, Outcome
from service.encode.plan import Plan
from service.encode.precisions import smaller
from service.encode.price import DOUBLE, HALF, Offer, Price, number
from service.encode.request import Part, Pooled, Request
from service.encode.shown import Shown
from service.encode.swept import moved
from service.engine.work import Result, Work
from service.refusals import Refused

# forms that say less in less, without what they do not read; of the latter a refusal names only
# what the request has to change
CHEAPER: tuple[Mapping[str, Any], ...] = (
    {"form": "stats", "weight": "probability", "rows": ()},
    {"form": "blocks", "size": 32, "weight": "probability", "rows": ()},
    {"form": "top", "k": 8, "rows": ()},
)
LEFT_OUT = frozenset({"weight", "rows"})
NUMBERS = {"top": "k", "blocks": "size"}  # what one form alone reads, and others refuse
REAL = ("values", "vectors")  # of task heads' arrays, those in the format of the request


class Encodings:
    """Ends requests of one model with what is wanted of each input."""

    def __init__(self, config: EncoderConfig) -> None:
        self._config = config

    def check(self, request: Request) -> None:
        """Let every request pass."""

    def price(self, request: Request, plan: Plan) -> Price:
        """Return what the answer will weigh."""
        if plan.alone and not request.layout.padded:
            vectors = len(plan.works) * _numbers(plan.works[0].outputs.pooling, self._config.width)
            parts: dict[Part, int] = {"pooled": number(request) * vectors}
            return Price(parts, request.layout, 0, partial(self._offers, request, plan))
        parts = self._weigh(request, plan.works, number(request))
        held = plan.held + max(map(maps_price.held, plan.attention()), default=0)
        return Price(parts, request.layout, held, partial(self._offers, request, plan))

    def _offers(
        self, request: Request, plan: Plan, parts: Collection[Part], limit: int
    ) -> list[Offer]:
        """Return changes to the request by which it may fit."""
        works, bytes_of = plan.works, partial(self._bytes, request, parts)
        weighed = self._weigh(request, works, number(request))
        whole, shown = bytes_of(works), weighed.get("attention", 0)
        if "attention" in parts and shown > limit:
            selections = _selections(self._padded(request, works))
            return _attention_offers(selections, limit - (whole - shown))
        offers: list[Offer] = []
        if request.layout.half and request.dtype != "float16":
            offers.append({"dtype": "float16", "bytes": bytes_of(works, HALF)})
        states = len(works[0].outputs.hidden)
        if states > 1 and "layers" in parts:
            each = weighed["layers"] // states
            fixed = whole - weighed["layers"]
            most = (limit - fixed) // each
            offers += [{"layers_at_most": most, "bytes": fixed + most * each}] if most > 0 else []
        fewer = range(1, len(works) + 1)
        most = bisect_right(fewer, limit, key=lambda count: bytes_of(works[:count]))
        if most:
            offers.append({"inputs_at_most": most, "bytes": bytes_of(works[:most])})
        return offers

    async def finish(
        self, request: Request, plan: Plan, outcome: Outcome, deadline: float
    ) -> Iterable[Item]:
        """Return what is answered for each input, each made when the answer has come so far."""
        copies = outcome.copies
        heads = plan.course.heads if isinstance(plan.course, Course) else {}
        return (
            _item(request, plan, index, result, moved(heads, result, copies[index]))
            if copies
            else _item(request, plan, index, result)
            for index, result in enumerate(outcome.inputs)
        )

    def _bytes(
        self,
        request: Request,
        parts: Collection[Part],
        works: Sequence[Work],
        size: int | None = None,
    ) -> int:
        """Return the bytes of some parts of some works, by the bytes of a number."""
        weighed = self._weigh(request, works, size or number(request))
        return sum([bytes for part, bytes in weighed.items() if part in parts])

    def _weigh(self, request: Request, works: Sequence[Work], number: int) -> dict[Part, int]:
        """Return the bytes of each part that there is, by the bytes of a number."""
        works, outputs, width = self._padded(request, works), works[0].outputs, self._config.width
        vectors = _numbers(outputs.pooling, width) * len(works)
        for parts in [work.outputs.parts for work in works if work.outputs.parts]:
            vectors += _numbers(parts.pooling, width) * len(parts.tokens)
        rows = number * width * sum(map(len, works))
        return {
            "pooled": number * vectors,
            "tokens": rows * outputs.tokens,
            "layers": rows * len(outputs.hidden),
            "attention": _attention_bytes(_selections(works)),
            "task": sum(
                [_of_task(head, len(w), number) for w in works for head in w.outputs.task_heads]
            ),
            "sweep": DOUBLE * sum(work.outputs.swept for work in works),
        }

    def _padded(self, request: Request, works: Sequence[Work]) -> Sequence[Work]:
        """Return as many like the longest, where an answer pads."""
        return [max(works, key=len)] * len(works) if request.layout.padded else works


def _of_task(head: TaskHead, tokens: int, number: int) -> int:
    """Count the bytes of what a task head makes of this many tokens."""
    return head.bytes(tokens, number) if isinstance(head, Vectors) else head.bytes(tokens)


def _numbers(pooling: Pooling | None, width: int) -> int:
    """Count the numbers of a vector."""
    return (pooling.dimensions or pooling.size(width)) if pooling else 0


def _attention_bytes(selections: Sequence[Selection]) -> int:
    """Count the bytes of attention in an answer, of the raw arrays."""
    return sum(map(maps_price.price, selections))


def _selections(works: Sequence[Work]) -> list[Selection]:
    return [work.outputs.attention for work in works if work.outputs.attention]


def _attention_offers(selections: Sequence[Selection], limit: int) -> list[Offer]:
    """Return other forms of the attention that fit, cheapest first."""
    half = {"dtype": "float16", "bytes": _bytes(selections, {"half": True})}
    offers = [*(_offer(selections, change) for change in CHEAPER), half, *_fewer(selections, limit)]
    return [offer for offer in offers if offer["bytes"] <= limit]


def _offer(selections: Sequence[Selection], change: Mapping[str, Any]) -> dict[str, Any]:
    """Return another form, as the request would name it."""
    offer = {
        name: value
        for name, value in change.items()
        if name not in LEFT_OUT or getattr(selections[0], name) != value
    }
    number = NUMBERS.get(selections[0].form)
    if number and number not in change:
        offer[number] = None
    return {**offer, "bytes": _bytes(selections, change)}


def _fewer(selections: Sequence[Selection], limit: int) -> list[Offer]:
    """Return the same of fewer heads, where the answer is made of heads."""
    heads, fixed = sum(map(len, selections[0].heads.values())), _bytes(selections, {"heads": {}})
    each = (_attention_bytes(selections) - fixed) // heads
    most = (limit - fixed) // each if each else 0
    return [{"heads_at_most": most, "bytes": fixed + most * each}] if most > 0 else []


def _bytes(selections: Sequence[Selection], change: Mapping[str, Any]) -> int:
    return _attention_bytes([replace(one, **change) for one in selections])


def _item(
    request: Request, plan: Plan, index: int, result: Result, sweep: Mapping[str, Any] | None = None
) -> Item:
    """Return one sequence's share of the answer."""

    def cast(array: Array, layer: int = -1) -> Array:
        if request.dtype == "float32":
            return array
        try:
            return answer.cast(array, request.dtype)
        except answer.NotFinite:
            raise Refused("nonfinite_output", layer=layer, dtype=request.dtype) from None

    def written(vectors: Array) -> Array:
        precision = request.pooled.precision if isinstance(request.pooled, Pooled) else None
        return smaller(vectors, precision) if precision else cast(vectors)

    source, selection = plan.works[index], plan.works[index].outputs.attention
    size = len(source)
    facts = {**source.facts, "truncated": size < source.length, "length": source.length}
    if index in plan.spans:
        facts["spans"] = [span.facts() for span in plan.spans[index]]
    if sweep is not None:
        facts["sweep"] = sweep
    tasks: Sequence[Shown] = ()
    if plan.tasks:
        made = {name: cast(array) if name in REAL else array for name, array in result.task.items()}
        tasks = [task.show(source, made) for task in plan.tasks]
    item = Item(
        size,
        facts,
        pooled=None if result.pooled is None else written(result.pooled),
        tokens=None if result.tokens is None else cast(result.tokens),
        layers={layer: cast(array, layer) for layer, array in result.hidden.items()},
        tasks=tasks,
        parts=None if result.parts is None else written(result.parts),
    )
    if selection is None or result.attention is None:
        return item
    return replace(
        item,
        attention=maps.facts(selection, result.attention.path),
        maps=maps.tree(selection, result.attention, request.encoding),
        arrays=dict(maps.tensors(selection, result.attention)),
    )
