"""Why one text is like others: cosines, the shares or parts that make them, and the price."""

import math
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.maps.units import Units
from model.probes import Sources
from model.similarity import BLOCK_CELLS, ComparedText, LinearPooling, NotLinear
from service.engine.fair.turns import in_turns
from service.pipeline.cost import DOUBLE, SINGLE, number_bytes
from service.pipeline.edit.sweep import Copies
from service.pipeline.find.resolver import Resolver
from service.pipeline.find.selection import choose_units, describe_units
from service.pipeline.worker import Steps, Workers
from service.questions.carried import carry_works, number_sources, weigh_probes
from service.questions.compared import by_side
from service.questions.similarity import EXPLAINED_FORMS, ComparisonRequest
from service.questions.similarity.heads import HeadShares, weigh_shares
from service.questions.similarity.occlusion import occlude_works
from service.questions.similarity.table import ShareTable, cast_arrays, weigh_tables
from service.shapes.answer import AnswerItem, Array
from service.shapes.ask import Custom
from service.shapes.inputs import sweep_of
from service.shapes.price import Part, Price
from service.shapes.record import Record
from service.shapes.side import Side, place_alone, place_in_list, place_of_work
from service.shapes.step import Plan, Read, Step
from service.shapes.work import Result, Work, cosine
from service.tables.refusals import Refused

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


# What an answer says of a text on the right: fields, and arrays by their names in a file
Explained = tuple[dict[str, Any], dict[str, Array]]


class Similarity:
    """A request for similarities of a text on the left with others, explained in one of its forms.

    Works, units and items are of the left text, then of each on the right.
    """

    def __init__(
        self, ask: ComparisonRequest, custom: Custom, resolver: Resolver, workers: Workers
    ) -> None:
        self._ask, self._resolver, self._layout = ask, resolver, custom.layout
        self._worker = workers.sums
        self._linear = resolver.linear if ask.by == "layer" else resolver.linear_inputs
        if ask.form in EXPLAINED_FORMS and isinstance(self._linear, NotLinear):
            has_inputs = isinstance(resolver.linear_inputs, LinearPooling)
            hint = (INPUT_HINT if has_inputs else "") + OCCLUSION_HINT
            detail = f"this model has {self._linear}; {hint}"
            raise Refused.at("similarity_not_explainable", "form", detail=detail)
        prompts = by_side(ask.prompt_name, "left", "right")
        left_task, right_task = by_side(ask.task, "left", "right")
        adapter = resolver.adapter(ask.model, right_task)
        outputs = resolver.outputs(True, ask.form in EXPLAINED_FORMS and ask.by == "layer")
        self._copies: Copies | None = None
        if sweep := sweep_of(ask.sweep):
            count, paired = 1 + len(ask.right), ask.sweep_pair is not None
            self._copies = Copies(sweep, outputs, count, resolver, tokens=paired)
        right = Side(
            ask.right,
            outputs,
            place_in_list("right"),
            cut=resolver.cut(ask.truncate),
            facts=ask.form != "score",
            prompt_name=prompts[1],
            adapter=adapter,
        )
        left = right._replace(
            inputs=[ask.left],
            at=place_alone("left"),
            prompt_name=prompts[0],
            adapter=resolver.adapter(ask.model, left_task),
        )
        self.sides: Sequence[Side] = (left, right)

    async def plan(self, works: list[Work], read: Read, deadline: float, record: Record) -> Plan:
        """Return the step of all texts and what explains them; a sweep's copies run after it.

        Raises:
            Refused: a text has no such units, or it takes the work of too many tokens.
        """
        ask, resolver, linear, units = self._ask, self._resolver, self._linear, list[Units]()
        config, number, held = resolver.model.config, number_bytes(ask.dtype), 0
        if ask.form != "score":
            units = [
                choose_units(ask.level, ask.specials, work, place_of_work(self.sides, index))
                async for index, work in in_turns(enumerate(works))
            ]
            self._check_pair(units)
        step, sizes = Step(works), [len(each.axis) for each in units]
        shares = weigh_tables(ask.form, ask.k, number, sizes, ask.by == "input")
        if ask.form == "occlusion":
            occluded, kept = await occlude_works(works, units, resolver, self.sides)
            step = Step([*works, *chain(*occluded)], held=kept)
            explaining = self._score_occluded(works, occluded)
        elif ask.form == "score" or isinstance(linear, NotLinear):
            explaining = _score(works)
        elif ask.by == "head":
            heads = HeadShares(works, resolver, linear)
            step, shares = await heads.step(), weigh_shares(len(ask.right), config, number)
            explaining = self._explain_heads(works, heads)
        elif ask.by == "input":
            owners = [number_sources(each) async for each in in_turns(units)]
            modes = resolver.model.pooling.modes
            carried = await carry_works(
                works, owners, resolver, lambda n, sources: Sources(owners[n], sources, modes)
            )
            every = [*works, *chain(*(of_text[1:] for of_text in carried))]
            step = Step(every, held=await weigh_probes(every, config))
            held = _count_held(config.width * len(modes), sizes, [size + 2 for size in sizes])
            explaining = self._share(works, units, linear, carried)
        else:
            held = _count_held(config.width, sizes, list(map(len, works)))
            explaining = self._share(works, units, linear, [()] * len(works))
        if self._copies:
            step = await self._copies.step(works)
            explaining = self._sweep(works, units, self._copies, explaining)
        swept = DOUBLE * sum(work.outputs.swept for work in works[1:])
        parts: dict[Part, int] = {"shares": shares, "sweep": swept}
        price = Price(parts, self._layout, held, TABLE_ARRAYS * len(ask.right))
        items = _make_items(works, units, explaining)
        return Plan(step, price, lambda: self._worker.run(items, deadline))

    def _check_pair(self, units: Sequence[Units]) -> None:
        """Refuse a `sweep_pair` whose row or column a matrix does not have."""
        if (pair := self._ask.sweep_pair) is None:
            return
        for index, of_text in enumerate(units):
            place, size = min(index, 1), len(of_text.axis)
            if pair[place] >= size:
                detail = f"expected a {('row', 'column')[place]} from 0 to {size - 1}"
                raise Refused.at("index_out_of_range", "sweep_pair", place, detail=detail)

    def _score_occluded(
        self, works: Sequence[Work], occluded: Sequence[Sequence[Work]]
    ) -> Steps[list[Explained]]:
        """Return scores and what each unit is worth, one text on the right per step."""
        left, *rights = [work.result.vector for work in works]
        left_copies, *right_copies = [[c.result.vector for c in copies] for copies in occluded]
        explained, dtype = list[Explained](), self._ask.dtype
        for right, copies in zip(rights, right_copies, strict=True):
            score = cosine(left, right)
            worth = {
                "left_worth": [score - cosine(copy, right) for copy in left_copies],
                "right_worth": [score - cosine(left, copy) for copy in copies],
            }
            arrays = {name: np.array(numbers, dtype) for name, numbers in worth.items()}
            explained.append(({"score": score, "method": "occlusion"}, arrays))
            yield
        return explained

    def _explain_heads(self, works: Sequence[Work], heads: HeadShares) -> Steps[list[Explained]]:
        """Return scores and the shares of heads, one text on the right per step."""
        explained, (left, *rights) = list[Explained](), [work.result.vector for work in works]
        for index, right in enumerate(rights, 1):
            score = cosine(left, right)
            shares, gap = heads.share(index, score)
            arrays = cast_arrays(shares, self._ask.dtype)
            explained.append(({"score": score, "gap": gap}, arrays))
            yield
        return explained

    def _share(
        self,
        works: Sequence[Work],
        units: Sequence[Units],
        linear: LinearPooling,
        carried: Sequence[Sequence[Work]],
    ) -> Steps[list[Explained]]:
        """Return scores and tables of shares, pausing after STEP_CELLS cells."""
        cells, ask, explained = 0, self._ask, list[Explained]()
        first, *results = [work.result for work in works]
        left = _weigh(linear, units[0], first, carried[0])
        for index, result in enumerate(results, 1):
            right = _weigh(linear, units[index], result, carried[index])
            shares = linear.share_cosine(left, right)
            table = ShareTable(ask, units[0], units[index])
            for block in shares.blocks():
                table.add(block)
                cells += max(block.numel(), LEAST_CELLS)  # since the last pause
                if cells >= STEP_CELLS:
                    cells = 0
                    yield
            arrays, unlisted = table.arrays()
            score, rest = cosine(first.vector, result.vector), shares.dropped + shares.bias
            facts = {"score": score, "rest": rest + unlisted}
            if linear.bias is not None or ask.by == "input":
                facts["bias"] = shares.bias
            if ask.by == "input":
                # what units have with the other text's biases stands apart from the rest; `gap` is
                # what the score has beyond all shares: the rounding of the pass that serves
                biases = {"left_bias": shares.left_bias, "right_bias": shares.right_bias}
                facts["rest"] -= sum(float(each.sum()) for each in biases.values())
                facts["gap"] = score - shares.total
                arrays |= cast_arrays(biases, ask.dtype)
            explained.append((facts, arrays))
        return explained

    def _sweep(
        self,
        works: Sequence[Work],
        units: Sequence[Units],
        copies: Copies,
        explaining: Steps[list[Explained]],
    ) -> Steps[list[Explained]]:
        """Add how a sweep changes each score to what explains it, and the share of a pair."""
        explained, pair = (yield from explaining), self._ask.sweep_pair
        left, *rights = [work.result for work in works]
        for index, right in enumerate(rights, 1):
            explained[index - 1][0]["sweep"] = copies.changed(left, right, index)
            yield
        if pair and isinstance(self._linear, LinearPooling):
            shares = yield from _share_pair(works, pair, copies.made, self._linear, units)
            for (facts, _), (untouched, *scaled) in zip(explained, shares, strict=True):
                facts["sweep"]["share"] = copies.by_head([share - untouched for share in scaled])
        return explained


def _make_items(
    works: Sequence[Work], units: Sequence[Units], explaining: Steps[list[Explained]]
) -> Steps[list[AnswerItem]]:
    """Return the items of all texts, explained first; form score shows no units."""
    torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
    explained = [({}, {}), *(yield from explaining)]
    units_shown = map(describe_units, units) if units else repeat({})
    return [
        AnswerItem(len(work), {**work.shown, **shown, **facts}, arrays=arrays)
        for work, shown, (facts, arrays) in zip(works, units_shown, explained, strict=False)
    ]


def _score(works: Sequence[Work]) -> Steps[list[Explained]]:
    """Return scores alone, in one step."""
    left, *rights = [work.result.vector for work in works]
    yield
    return [({"score": cosine(left, right)}, {}) for right in rights]


def _share_pair(
    works: Sequence[Work],
    pair: Sequence[int],
    copies: Sequence[Sequence[Work]],
    linear: LinearPooling,
    units: Sequence[Units],
) -> Steps[list[list[float]]]:
    """Return a pair's shares for each text on the right: untouched, then by scaled head."""
    # of each text and its copies: the vector of the pair's unit, and the length of the whole
    sides = list[list[tuple[Tensor, float]]]()
    for index, (work, work_copies) in enumerate(zip(works, copies, strict=True)):
        sides.append([])
        for copy in (work, *work_copies):
            side = _weigh(linear, units[index], copy.result)
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


def _weigh(
    linear: LinearPooling, units: Units, result: Result, carrying: Sequence[Work] = ()
) -> ComparedText:
    """Return a text as one side of a cosine, from its result or a copy's.

    Args:
        carrying: what carries its tokens through the model; empty: those of the last layer count.
    """
    if carrying:
        made = [torch.from_numpy(work.result.made[Sources.name]) for work in carrying]
        return linear.weigh_sources(torch.cat(made), len(units.axis))
    if result.tokens is None:
        raise RuntimeError("token vectors that were asked for are missing: this is a bug")
    return linear.weigh_text(torch.from_numpy(result.tokens), units)


def _count_held(width: int, sizes: Sequence[int], lengths: Sequence[int]) -> int:
    """Return the bytes kept besides the answer: token vectors, and a step's arrays in float64.

    Those are the left text's vectors; twice those of one on the right, for their weighted copy;
    and twice a block of shares.

    Args:
        width: numbers in a token's vector.
        sizes: units shown of the left text, then of each on the right.
        lengths: tokens of each text.
    """
    (left, *rights), (units, *others) = lengths, sizes
    longest = max(rights)
    tokens = SINGLE * (left + sum(rights)) + DOUBLE * (left + 2 * longest)
    return width * tokens + 2 * DOUBLE * min(units * max(others), BLOCK_CELLS)
