"""What most requests ask for: vectors, attention and tasks of each input, as the model has them."""

import itertools
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from model.config import EncoderConfig
from model.pooling import Pooling
from model.probes import Maps, Parts
from service.engine.fair.turns import give_turn, in_turns
from service.pipeline.cost import DOUBLE, SINGLE, number_bytes
from service.pipeline.edit.sweep import Copies
from service.pipeline.find.heads import Heads, Span, locate_spans
from service.pipeline.find.resolver import Resolver
from service.pipeline.find.selection import select_attention
from service.pipeline.worker import Workers
from service.pipeline.write.precisions import quantize
from service.questions.encode import EncodeRequest, maps, why
from service.questions.encode.reason import InputReasons, check_reason, choose_every_unit
from service.questions.reasons import weigh_reason
from service.shapes.answer import AnswerItem, Array
from service.shapes.ask import Custom
from service.shapes.inputs import Floats, numbered_items, sweep_of
from service.shapes.outputs import Rerank, Wanted
from service.shapes.price import Layout, Part, Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.step import Plan, Read, Step
from service.shapes.task import Task
from service.shapes.work import Work
from service.tables.refusals import Refused

INPUT_ARRAYS = 3  # arrays of an input, besides hidden states: its vector, its tokens', its spans'
REAL_ARRAYS = ("values", "vectors")  # arrays of task heads that are cast to the request's dtype

# Details of refusals
NOT_WITH_WHY = (
    '"form": "why" explains the pass of the inputs as they are: without "sweep", and without '
    '"patch", which takes values from another pass'
)
SPAN_POOLING = (
    'expected a pooling that a part can have: "cls" takes the first token, which is a special one; '
    '"pooled": {"mode": "mean"} goes with spans'
)


class Encode:
    """A request for vectors, attention and tasks of each input."""

    def __init__(
        self, ask: EncodeRequest, custom: Custom, resolver: Resolver, workers: Workers
    ) -> None:
        self._ask, self._custom, self._resolver = ask, custom, resolver
        adapter = resolver.adapter(ask.model, ask.task)
        outputs, attention = resolver.outputs(ask.pooled, ask.tokens, ask.layers), ask.attention
        self._heads: Heads = {}
        if attention:
            self._heads = resolver.heads(attention, "attention")
            patched = any(item.patch for _, item in numbered_items(ask.inputs))
            if attention.form == "why" and (ask.sweep or patched):
                raise Refused.at("out_of_range", "attention", "form", detail=NOT_WITH_WHY)
        wanted: Sequence[Wanted] = (Rerank(),) if custom.rerank else ask.wanted
        tasks, role = list[Task](), None
        if wanted:
            tasks, role = resolver.tasks(wanted), resolver.role(wanted, ask.role)
            outputs = replace(outputs, task_heads=tuple([task.head for task in tasks]))
        self._wanted = wanted
        self._explained = check_reason(ask, tasks) if ask.reason else None
        self._copies: Copies | None = None
        if sweep := sweep_of(ask.sweep):
            self._copies = Copies(sweep, outputs, len(ask.inputs), resolver, tokens=False)
        items = numbered_items(ask.inputs)
        located = bool(items) and any(item.spans for _, item in items)
        shows_tokens = bool(located or ask.tokens or ask.layers or attention or ask.reason)
        # vectors alone, which is the usual request, are priced fast
        self._is_plain = not (shows_tokens or tasks or self._copies)
        self._side = Side(
            ask.inputs,
            outputs,
            cut=resolver.cut(custom.truncate or ask.truncate, custom.usual),
            most=custom.most,
            counted=custom.counted,
            facts=shows_tokens or (bool(tasks) and any([task.shows for task in tasks])),
            prompt_name=ask.prompt_name,
            prompt=custom.prompt,
            instruction=custom.instruction,
            adapter=adapter,
            role=role,
            documents=custom.documents,
            tasks=tasks,
            vectors=bool(ask.pooled or ask.tokens),
        )
        self.sides: Sequence[Side] = (self._side,)

    async def plan(self, works: list[Work], read: Read, deadline: float, record: Record) -> Plan:
        """Return the step of all works; a sweep's may follow it. Items are made as they are read.

        Raises:
            Refused: a span or a row is none of its text, or it takes too many tokens.
        """
        resolver, layout, attention = self._resolver, self._custom.layout, self._ask.attention
        if layout.padded:
            resolver.check_tokens(len(works) * max(map(len, works)))
        spans = {} if self._is_plain else await self._locate_spans(works)
        if attention:
            at, tokenizer = self._side.at, resolver.model.tokenizer
            await select_attention(attention, self._heads, works, at, tokenizer)
        step, tiles = Step(works), None
        reasons = await self._explain(works) if self._explained else None
        if attention and attention.form == "why":
            tiles, step = await why.carry_scores(works, resolver)
        elif self._copies:
            step = await self._copies.step(works)
        elif reasons:
            step = await reasons.step()

        async def make_items() -> Iterable[AnswerItem]:
            """Return an item for each input, computed when it is read."""
            return (
                self._make_item(
                    index, work, spans.get(index), tiles[index] if tiles else None, reasons
                )
                for index, work in enumerate(works)
            )

        config, number = resolver.model.config, number_bytes(self._ask.dtype)
        if self._is_plain:
            pooling = self._side.outputs.pooling
            size = number * (pooling.vector_size(config.width) if pooling else 0)
            price = Price({"pooled": size * len(works)}, layout, arrays=len(works))
        else:
            await give_turn(step.sequences)
            shares = sum(map(weigh_reason, works)) if reasons else 0
            price = weigh_answer(works, config, layout, number, shares)
        return Plan(step, price, make_items)

    async def _explain(self, works: Sequence[Work]) -> InputReasons | None:
        """Return what explains the scores of the inputs, where asked for."""
        if self._ask.reason is None or self._explained is None:
            return None
        units = await choose_every_unit(self._ask.reason, works, self._side.at)
        inputs = self._side.inputs
        return InputReasons(self._explained, self._wanted, inputs, works, units, self._resolver)

    @property
    def _span_pooling(self) -> Pooling:
        """Return the pooling of spans: the request's, or the model's own."""
        return self._side.outputs.pooling or self._resolver.model.pooling

    async def _locate_spans(self, works: Sequence[Work]) -> dict[int, list[Span]]:
        """Return the spans of each input that has some, by its index, and have them pooled.

        Raises:
            Refused: a span is none of its text, or they hold too many tokens.
        """
        at, found = self._side.at, dict[int, list[Span]]()
        async for index, item in in_turns(numbered_items(self._ask.inputs)):
            if item.spans and item.text is not None:
                if "cls" in self._span_pooling.modes:
                    raise Refused.at("out_of_range", *at(index, "spans"), detail=SPAN_POOLING)
                facts = works[index].facts
                found[index] = locate_spans(
                    *(item.spans, item.text, facts["offsets"], facts["special"], partial(at, index))
                )
        spans = (span.tokens for located in found.values() for span in located)
        self._resolver.check_tokens(sum(last - first for first, last in spans), "its spans hold")
        async for index, located in in_turns(found.items()):
            parts = Parts([span.tokens for span in located], self._span_pooling)
            works[index].outputs = works[index].outputs.asking(parts)
        return found

    def _quantize(self, vectors: Array | None) -> Array | None:
        """Return pooled vectors in the request's precision or dtype."""
        if vectors is None:
            return None
        pooled = self._ask.pooled
        precision = "float" if isinstance(pooled, bool) else pooled.precision
        return (
            cast_array(vectors, self._ask.dtype)
            if precision == "float"
            else quantize(vectors, precision)
        )

    def _make_item(
        self,
        index: int,
        work: Work,
        spans: Sequence[Span] | None,
        tiles: Sequence[Work] | None,
        reasons: InputReasons | None,
    ) -> AnswerItem:
        """Return the item of one input: its facts, and its arrays in the request's formats.

        Args:
            spans, tiles: its parts, and the works that explain its scores, where asked for.
            reasons: of all inputs.
        """
        result, facts = work.result, work.shown
        if self._is_plain:
            return AnswerItem(len(work), facts, pooled=self._quantize(result.pooled))
        cast = partial(cast_array, dtype=self._ask.dtype)
        if spans:
            facts["spans"] = [span.facts() for span in spans]
        if self._copies:
            facts["sweep"] = self._copies.moved(index, result)
        if reasons:
            facts["reason"] = reasons.tell(index)
        made = {
            name: cast(array) if name in REAL_ARRAYS else array
            for name, array in result.task.items()
        }
        item = AnswerItem(
            len(work),
            facts,
            pooled=self._quantize(result.pooled),
            tokens=None if result.tokens is None else cast(result.tokens),
            layers={layer: cast(array, layer=layer) for layer, array in result.hidden.items()},
            tasks=[task.show(work, made) for task in self._side.tasks],
            parts=self._quantize(result.made.get(Parts.name)),
        )
        if (asked := work.outputs.probe(Maps)) is None:
            return item
        selection, path = asked.selection, self._resolver.model.encoder.kernels.path
        shown = result.made[asked.name]
        if tiles:
            shown, path = why.join_scores(tiles), "exact"
        if self._custom.layout.padded:
            return replace(item, arrays={str(i): made["map"] for i, made in shown["heads"].items()})
        tokens = work.facts["tokens"] or [None] * len(work)
        return replace(
            item,
            attention=maps.describe_maps(selection, path),
            maps=maps.to_json(selection, shown, self._ask.encoding, tokens),
            arrays=dict(maps.named_tensors(selection, shown)),
        )


def cast_array(array: Array, dtype: Floats, layer: int = -1) -> Array:
    """Return a float32 array of hidden state `layer` in a dtype; refuse what float16 overflows."""
    if dtype == "float32":
        return array
    with np.errstate(over="ignore"):  # too large a number becomes infinity
        half = array.astype(np.float16)
    if np.isinf(half).any():
        raise Refused("nonfinite_output", layer=layer, dtype=dtype)
    return half


def weigh_answer(
    works: Sequence[Work],
    config: EncoderConfig,
    layout: Layout,
    number: int = SINGLE,
    shares: int = 0,
) -> Price:
    """Return the bytes of memory that the answer to a request for these works takes.

    Args:
        layout: how the arrays are written.
        number: bytes of a number, outside attention.
        shares: bytes of what scores rest on.
    """
    outputs, width = works[0].outputs, config.width
    lengths = list(map(len, works))  # counted once: there may be thousands
    read = zip(works, lengths, strict=True)
    probes = Counter([(probe, tokens) for work, tokens in read for probe in work.outputs.probes])
    scratch = max([probe.scratch_bytes(config, tokens) for probe, tokens in probes], default=0)
    if layout.padded:  # all are as long as the longest
        longest = max(works, key=len)
        works, lengths = [longest] * len(works), [len(longest)] * len(works)
        probes = Counter([(probe, len(longest)) for probe in longest.outputs.probes] * len(works))
    heads = [work.outputs.task_heads for work in works]
    tasks = Counter(itertools.chain(*map(zip, heads, map(itertools.repeat, lengths))))
    pooling = outputs.pooling
    vectors = (pooling.vector_size(width) if pooling else 0) * len(works)
    rows = number * width * sum(lengths)
    parts: dict[Part, int] = {
        "pooled": number * vectors,
        "tokens": rows * outputs.tokens,
        "layers": rows * len(outputs.hidden),
        "task": sum([n * head.count_bytes(tokens, number) for (head, tokens), n in tasks.items()]),
        "sweep": DOUBLE * sum(work.outputs.swept for work in works),
        "shares": shares,
    }
    arrays = len(works) * (INPUT_ARRAYS + len(outputs.hidden) + 2 * len(outputs.task_heads))
    for (probe, tokens), count in probes.items():
        for part, size in probe.bytes(config, tokens, number).items():
            parts[part] = parts.get(part, 0) + count * size
        if layout.named and isinstance(probe, Maps):
            arrays += count * maps.count_tensors(probe.selection)
    return Price(parts, layout, scratch, arrays)
