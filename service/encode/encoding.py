"""The ending of most requests: what is wanted of each input, as the model makes it."""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from model.config import EncoderConfig
from model.maps import price as maps_price
from model.pooling import Pooling
from model.task_heads import TaskHead, Vectors
from service.encode import answer, maps
from service.encode.answer import Array, Item
from service.encode.interventions import Course, Outcome
from service.encode.plan import Plan
from service.encode.precisions import smaller
from service.encode.price import DOUBLE, Price, number
from service.encode.request import Part, Pooled, Request
from service.encode.shown import Shown
from service.encode.swept import moved
from service.engine.work import Result, Work
from service.refusals import Refused

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
            return Price(parts, request.layout)
        parts = self._weigh(request, plan.works, number(request))
        held = plan.held + max(map(maps_price.held, set(plan.attention())), default=0)
        return Price(parts, request.layout, held)

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

    def _weigh(self, request: Request, works: Sequence[Work], number: int) -> dict[Part, int]:
        """Return the bytes of each part that there is, by the bytes of a number."""
        works, outputs, width = self._padded(request, works), works[0].outputs, self._config.width
        vectors = _numbers(outputs.pooling, width) * len(works)
        for parts in [work.outputs.parts for work in works if work.outputs.parts]:
            vectors += _numbers(parts.pooling, width) * len(parts.tokens)
        rows = number * width * sum(map(len, works))
        shown = Counter([work.outputs.attention for work in works if work.outputs.attention])
        return {
            "pooled": number * vectors,
            "tokens": rows * outputs.tokens,
            "layers": rows * len(outputs.hidden),
            "attention": sum(count * maps_price.price(one) for one, count in shown.items()),
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
    return pooling.numbers(width) if pooling else 0


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
    if request.layout.padded:
        return replace(item, arrays=dict(maps.layers(result.attention)))
    return replace(
        item,
        attention=maps.facts(selection, result.attention.path),
        maps=maps.tree(selection, result.attention, request.encoding),
        arrays=dict(maps.tensors(selection, result.attention)),
    )
