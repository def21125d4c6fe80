"""Why one text is like others: cosines, the shares or parts that make them, and the price."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from itertools import chain
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model import similarity
from model.maps.units import Units
from model.probes import Sources
from model.similarity import BLOCK_CELLS, CosineShares, LinearPooling, NotLinear
from service.encode.price import DOUBLE, SINGLE, number_bytes
from service.encode.resolver import Resolver
from service.encode.selection import choose_units, describe_units
from service.encode.swept import Copies
from service.encode.worker import Steps, Workers
from service.engine.fair.turns import in_turns
from service.questions.carried import carry_works, number_sources, weigh_probes
from service.questions.compared import by_side
from service.questions.similarity import EXPLAINED_FORMS, ComparisonRequest
from service.questions.similarity.heads import HeadShares, weigh_shares
from service.questions.similarity.occlusion import occlude_works
from service.questions.similarity.table import ShareTable, cast_arrays, weigh_tables
from service.refusals import Refused
from service.shapes.answer import AnswerItem, Array
from service.shapes.ask import Custom
from service.shapes.inputs import sweep_of
from service.shapes.price import Part, Price
from service.shapes.record import Record
from service.shapes.side import Side, place_alone, place_in_list, place_of_work
from service.shapes.step import ReadSide, Step
from service.shapes.work import Result, Work, cosine

TABLE_ARRAYS = 5  # arrays of a text on the right
STEP_CELLS = 1 << 14  # cells of matrices computed between two pauses: some milliseconds
LEAST_CELLS = STEP_CELLS // 16  # that even a smaller matrix counts as, since it takes as long
OCCLUSION_HINT = (
    '"form": "occlusion" is answered, which tells what each token or word is worth by leaving it '
    'out, and "form": "score"'
)
INPUT_HINT = (
    '"by": "input" is answered, with shares of the tokens that enter the model, and "by": "head"; '
)


class Similarity:
    """A request for similarities of a text on the left with others, explained in one of its forms.

    Works, units and items are of the left text, then of each on the right.
    """

    def __init__(
        self, ask: ComparisonRequest, custom: Custom, resolver: Resolver, workers: Workers
    ) -> None:
        self._ask, self._custom, self._resolver = ask, custom, resolver
        self._worker = workers.sums
        self._works: Sequence[Work] = ()
        self._units: Sequence[Units] = ()
        self._occluded: Sequence[Sequence[Work]] = ()
        self._carried: Sequence[Sequence[Work]] = ()  # of each text, what carries its tokens
        self._heads: HeadShares | None = None
        self._copies: Copies | None = None

    def sides(self) -> Sequence[Side]:
        """Return the left text and those on the right; refuse shares of a pooling not linear."""
        ask, resolve, linear = self._ask, self._resolver, self._linear
        if ask.form in EXPLAINED_FORMS and isinstance(linear, NotLinear):
            has_inputs = isinstance(resolve.linear_inputs, LinearPooling)
            hint = (INPUT_HINT if has_inputs else "") + OCCLUSION_HINT
            detail = f"this model has {linear}; {hint}"
            raise Refused.at("similarity_not_explainable", "form", detail=detail)
        prompts = by_side(ask.prompt_name, "left", "right")
        left_task, right_task = by_side(ask.task, "left", "right")
        adapter = resolve.adapter(ask.model, right_task)
        outputs = resolve.outputs(True, ask.form in EXPLAINED_FORMS and ask.by == "layer")
        if sweep := sweep_of(ask.sweep):
            count, paired = 1 + len(ask.right), ask.sweep_pair is not None
            self._copies = Copies(sweep, outputs, count, resolve, tokens=paired)
        right = Side(
            ask.right,
            outputs,
            place_in_list("right"),
            cut=resolve.cut(ask.truncate),
            facts=ask.form != "score",
            prompt_name=prompts[1],
            adapter=adapter,
        )
        left = right._replace(
            inputs=[ask.left],
            at=place_alone("left"),
            prompt_name=prompts[0],
            adapter=resolve.adapter(ask.model, left_task),
        )
        self._sides = left, right
        return self._sides

    async def plan(
        self, works: list[Work], read: ReadSide, deadline: float, record: Record
    ) -> Step:
        """Return the step of all texts and any occluded copies; a sweep's copies run after it."""
        self._works, axes = works, (self._ask.level, self._ask.specials)
        if self._ask.by == "head":
            self._heads = HeadShares(works, self._resolver, self._linear_pooling)
            return self._heads.step()
        if self._ask.form != "score":
            self._units = [
                choose_units(*axes, work, place_of_work(self._sides, index))
                async for index, work in in_turns(enumerate(works))
            ]
        self._check_pair()
        if self._ask.form == "occlusion":
            occluded = await occlude_works(works, self._units, self._resolver, self._sides)
            self._occluded, held = occluded
            return Step([*works, *chain.from_iterable(self._occluded)], held=held)
        if self._ask.by == "input":
            owners = [number_sources(units) async for units in in_turns(self._units)]
            modes = self._resolver.model.pooling.modes
            self._carried = await carry_works(
                works, owners, self._resolver, lambda n, sources: Sources(owners[n], sources, modes)
            )
            others = chain.from_iterable(of_text[1:] for of_text in self._carried)
            every = [*works, *others]
            return Step(every, held=weigh_probes(every, self._resolver.model.config))
        return await self._copies.step(works) if self._copies else Step(works)

    def _check_pair(self) -> None:
        """Refuse a `sweep_pair` whose row or column a matrix does not have."""
        if (pair := self._ask.sweep_pair) is None:
            return
        for index, units in enumerate(self._units):
            place, size = min(index, 1), len(units.axis)
            if pair[place] >= size:
                detail = f"expected a {('row', 'column')[place]} from 0 to {size - 1}"
                raise Refused.at("index_out_of_range", "sweep_pair", place, detail=detail)

    def price(self, step: Step) -> Price:
        """Return the bytes of memory of shares and a sweep's changes, and of what makes them."""
        ask, held, works = self._ask, step.held, self._works
        config, number = self._resolver.model.config, number_bytes(ask.dtype)
        if self._heads:
            shares = weigh_shares(len(ask.right), config.layers, config.heads, number)
            return Price(
                {"shares": shares}, self._custom.layout, held, TABLE_ARRAYS * len(ask.right)
            )
        sizes = [len(units.axis) for units in self._units]
        if ask.form in EXPLAINED_FORMS:
            width, lengths = config.width, list(map(len, works))
            if ask.by == "input":
                width *= len(self._resolver.model.pooling.modes)
                lengths = [size + 2 for size in sizes]
            held += _count_held(width, sizes, *lengths)
        swept = DOUBLE * sum(work.outputs.swept for work in works[1:])
        shares = weigh_tables(ask.form, ask.k, number, sizes, ask.by == "input")
        parts: dict[Part, int] = {"shares": shares, "sweep": swept}
        return Price(parts, self._custom.layout, held, TABLE_ARRAYS * len(ask.right))

    async def make_items(self, deadline: float) -> Iterable[AnswerItem]:
        """Return the items of the left text and of each on the right.

        Raises:
            Refused: the deadline has passed, or float16 cannot hold a share.
        """
        by_form = {"score": self._score, "occlusion": self._score_occluded}
        explain = self._explain_heads if self._heads else self._explain
        steps = by_form.get(self._ask.form, explain)()
        left, *right = await self._worker.run(steps, deadline)
        copies = self._copies
        if copies is None:
            return [left, *right]
        swept = await self._worker.run(self._sweep(copies), deadline)
        if pair := self._ask.sweep_pair:
            shares = await self._worker.run(self._pair_shares(pair, copies.made), deadline)
            for changes, (untouched, *scaled) in zip(swept, shares, strict=True):
                changes["share"] = copies.by_head([share - untouched for share in scaled])
        return [
            left,
            *(
                replace(item, facts={**item.facts, "sweep": sweep})
                for item, sweep in zip(right, swept, strict=True)
            ),
        ]

    def _score(self) -> Steps[list[AnswerItem]]:
        """Return items with scores alone, in one step."""
        left, *rights = [work.result.vector for work in self._works]
        scores = [{"score": cosine(left, right)} for right in rights]
        yield
        return [self._make_item(index, facts) for index, facts in enumerate([{}, *scores])]

    def _sweep(self, copies: Copies) -> Steps[list[dict[str, Any]]]:
        """Return how a sweep changes each score, one text on the right per step."""
        left, *rights = [work.result for work in self._works]
        swept = list[dict[str, Any]]()
        for index, right in enumerate(rights, 1):
            swept.append(copies.changed(left, right, index))
            yield
        return swept

    def _score_occluded(self) -> Steps[list[AnswerItem]]:
        """Return items with scores and what each unit is worth, one text on the right per step."""
        left, *rights = [work.result.vector for work in self._works]
        left_copies, *right_copies = [[c.result.vector for c in works] for works in self._occluded]
        items, dtype = [self._make_item(0, describe_units(self._units[0]))], self._ask.dtype
        for index, (right, copies) in enumerate(zip(rights, right_copies, strict=True), 1):
            score = cosine(left, right)
            worth = {
                "left_worth": [score - cosine(copy, right) for copy in left_copies],
                "right_worth": [score - cosine(left, copy) for copy in copies],
            }
            facts = {**describe_units(self._units[index]), "score": score, "method": "occlusion"}
            arrays = {name: np.array(numbers, dtype) for name, numbers in worth.items()}
            items.append(self._make_item(index, facts, arrays))
            yield
        return items

    def _explain_heads(self) -> Steps[list[AnswerItem]]:
        """Return items with scores and the shares of heads, one text on the right per step."""
        torch.set_num_threads(1)  # as in _explain
        left, *rights = [work.result.vector for work in self._works]
        items, heads = [self._make_item(0, {})], self._heads
        for index, right in enumerate(rights, 1):
            score = cosine(left, right)
            shares, gap = heads.share(index, score) if heads else ({}, 0.0)
            arrays = cast_arrays(shares, self._ask.dtype)
            items.append(self._make_item(index, {"score": score, "gap": gap}, arrays))
            yield
        return items

    def _explain(self) -> Steps[list[AnswerItem]]:
        """Return items with scores and tables of shares, pausing after STEP_CELLS cells."""
        torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
        cells, linear, results = 0, self._linear_pooling, [work.result for work in self._works]
        left, items = (
            self._side(results[0], 0),
            [self._make_item(0, describe_units(self._units[0]))],
        )
        for index, result in enumerate(results[1:], 1):
            shares = linear.share_cosine(left, self._side(result, index))
            table = ShareTable(self._ask, self._units[0], self._units[index])
            for block in shares.blocks():
                table.add(block)
                cells += max(block.numel(), LEAST_CELLS)  # since the last pause
                if cells >= STEP_CELLS:
                    cells = 0
                    yield
            arrays, unlisted = table.arrays()
            facts = {
                **describe_units(self._units[index]),
                "score": cosine(results[0].vector, result.vector),
                "rest": shares.dropped + shares.bias + unlisted,
            }
            if linear.bias is not None or self._ask.by == "input":
                facts["bias"] = shares.bias
            if self._ask.by == "input":
                arrays |= self._show_biases(shares, facts)
            items.append(self._make_item(index, facts, arrays))
        return items

    def _show_biases(self, shares: CosineShares, facts: dict[str, Any]) -> dict[str, Array]:
        """Return what units have with the other text's biases; take it out of the rest.

        `gap` is what the score has beyond all shares: the rounding of the pass that serves.
        """
        biases = {"left_bias": shares.left_bias, "right_bias": shares.right_bias}
        facts["rest"] -= sum(float(each.sum()) for each in biases.values())
        facts["gap"] = facts["score"] - shares.total
        return cast_arrays(biases, self._ask.dtype)

    def _pair_shares(
        self, pair: Sequence[int], copies: Sequence[Sequence[Work]]
    ) -> Steps[list[list[float]]]:
        """Return a pair's shares for each text on the right: untouched, then by scaled head."""
        torch.set_num_threads(1)  # as in _explain
        # of each text and its copies: the vector of the pair's unit, and the length of the whole
        sides = list[list[tuple[Tensor, float]]]()
        for index, (work, work_copies) in enumerate(zip(self._works, copies, strict=True)):
            sides.append([])
            for copy in (work, *work_copies):
                side = self._side(copy.result, index)
                sides[-1].append((side.shown[pair[index > 0]].clone(), side.length))
                yield
        left, *rights = sides
        return [
            [
                float(row @ column) / (row_length * column_length or math.inf)
                for (row, row_length), (column, column_length) in zip(left, right, strict=True)
            ]
            for right in rights
        ]

    @property
    def _linear(self) -> LinearPooling | NotLinear:
        """Return the model's pooling as a sum over what is asked for, or why it is none."""
        resolve = self._resolver
        return resolve.linear if self._ask.by == "layer" else resolve.linear_inputs

    @property
    def _linear_pooling(self) -> LinearPooling:
        """Return the model's pooling as a sum over tokens, which `sides` has checked."""
        linear = self._linear
        if isinstance(linear, NotLinear):
            raise RuntimeError("a comparison that was refused: this is a bug") from linear
        return linear

    def _side(self, result: Result, index: int) -> similarity.ComparedText:
        """Return the `index`-th text as one side of a cosine, from its result or a copy's."""
        linear, units = self._linear_pooling, self._units[index]
        if self._carried:
            made = [work.result.made[Sources.name] for work in self._carried[index]]
            arrays = torch.cat(list(map(torch.from_numpy, made)))
            return linear.weigh_sources(arrays, len(units.axis))
        tokens = result.tokens
        if tokens is None:
            raise RuntimeError("token vectors that were asked for are missing: this is a bug")
        return linear.weigh_text(torch.from_numpy(tokens), units)

    def _make_item(
        self, index: int, facts: dict[str, Any], arrays: dict[str, Array] | None = None
    ) -> AnswerItem:
        """Return the item of the `index`-th text: its tokens, then these facts and arrays."""
        work = self._works[index]
        cut = {"truncated": work.truncated, "length": work.length}
        return AnswerItem(len(work), {**work.facts, **cut, **facts}, arrays=arrays or {})


def _count_held(width: int, sizes: Sequence[int], left: int, *rights: int) -> int:
    """Return the bytes kept besides the answer: token vectors, and a step's arrays in float64.

    Those are the left text's vectors; twice those of one on the right, for their weighted copy;
    and twice a block of shares.

    Args:
        width: numbers in a token's vector.
        sizes: units shown of the left text, then of each on the right.
        left, rights: tokens of each text.
    """
    longest, (units, *others) = max(rights), sizes
    tokens = SINGLE * (left + sum(rights)) + DOUBLE * (left + 2 * longest)
    return width * tokens + 2 * DOUBLE * min(units * max(others), BLOCK_CELLS)
