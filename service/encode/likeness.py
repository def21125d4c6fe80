"""Why one text is like others: the arithmetic behind the model's, and what an answer weighs."""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from model.maps.units import Units
from model.pooling import Pooling
from model.similarity import BLOCK_CELLS, Linear, NotLinear, Side, Strongest
from service.encode.answer import Array, Item
from service.encode.interventions import Course, Outcome
from service.encode.plan import Plan
from service.encode.price import DOUBLE, SINGLE, Price, number
from service.encode.request import Likeness, Part, Request
from service.encode.swept import by_head, changed
from service.encode.worker import Steps, Worker
from service.engine.work import Result, cosine
from service.refusals import Refused

STEP_CELLS = 1 << 14  # of matrices between two pauses, some milliseconds with those around them
ANSWERED = (
    '"form": "occlusion" is answered, which tells what each token or word is worth by leaving it '
    'out, and "form": "score"'
)
EXPLAINED = ("full", "top")  # forms that are sums of shares
MOST_PAIRS = 16  # where a request does not say
INDEX = 4  # bytes of the number of a row or a column
KINDS = {"float16": torch.float16, "float32": torch.float32}


class Likenesses:
    """Ends requests of one model with similarities, and explains them.

    Args:
        pooling: the checkpoint's own.
        width: of a token's vector.
        worker: where the arithmetic is done.
    """

    def __init__(self, pooling: Pooling, width: int, worker: Worker) -> None:
        self._width, self._worker, self._reason = width, worker, ""
        self._linear: Linear | None = None
        try:
            self._linear = Linear(pooling)
        except NotLinear as error:
            self._reason = str(error)

    def check(self, request: Request) -> None:
        """Refuse to explain what is no sum over tokens.

        Raises:
            Refused: with what is answered instead.
        """
        if self._linear is None and _asked(request).form in EXPLAINED:
            detail = f"this model has {self._reason}; {ANSWERED}"
            raise Refused.at("similarity_not_explainable", "form", detail=detail)

    def _check_pair(self, request: Request, plan: Plan) -> None:
        """Refuse a pair that a matrix does not have."""
        if (pair := _asked(request).pair) is None:
            return
        for index, units in enumerate(plan.units):
            place, size = pair[index > 0], len(units.axis)
            if place >= size:
                side = "column" if index else "row"
                detail = f"there is no {side} {place}: they are 0 to {size - 1}"
                raise Refused.at("index_out_of_range", "sweep_pair", index > 0, detail=detail)

    def price(self, request: Request, plan: Plan) -> Price:
        """Return what the answer will weigh."""
        self._check_pair(request, plan)
        how, held = _asked(request), plan.held
        sizes = [len(units.axis) for units in plan.units]
        if how.form in EXPLAINED:
            held += _hold(self._width, sizes, *plan.lengths)
        swept = DOUBLE * sum(work.outputs.swept for work in plan.works[1:])
        shares = _weigh(how.form, how.k, number(request), sizes)
        parts: dict[Part, int] = {"shares": shares, "sweep": swept}
        return Price(parts, request.layout, held)

    async def finish(
        self, request: Request, plan: Plan, outcome: Outcome, deadline: float
    ) -> Iterable[Item]:
        """Return what is answered for the left text, and for each on the right.

        Raises:
            Refused: it is not done in time, or float16 cannot hold a share.
        """
        (results, copies), how = outcome, _asked(request)
        if how.form == "occlusion":
            return await self._worker.run(_occluded(request, plan, outcome), deadline)
        if how.form == "score":
            steps = _scores(plan, results)
        elif self._linear is not None:
            steps = _explained(self._linear, request, plan, results)
        else:
            raise RuntimeError("a comparison that was refused: this is a bug")
        left, *right = await self._worker.run(steps, deadline)
        if not copies or not isinstance(plan.course, Course):
            return [left, *right]
        heads = plan.course.heads
        swept = [
            changed(heads, results[0], results[index], copies[0], copies[index])
            for index in range(1, len(results))
        ]
        if self._linear is not None and (pair := how.pair):
            steps_of_pair = _pair_shares(self._linear, pair, plan, outcome)
            shares = await self._worker.run(steps_of_pair, deadline)
            for told, (whole, *each) in zip(swept, shares, strict=True):
                told["share"] = by_head(heads, [share - whole for share in each])
        return [left, *(_with(item, more) for item, more in zip(right, swept, strict=True))]


def _asked(request: Request) -> Likeness:
    """Return how a comparison ends."""
    if not isinstance(request.ending, Likeness):
        raise RuntimeError("another ending's request: this is a bug")
    return request.ending


def _with(item: Item, sweep: Mapping[str, Any]) -> Item:
    """Return what is answered for one text with what its heads are worth."""
    return replace(item, facts={**item.facts, "sweep": sweep})


def _scores(plan: Plan, results: Sequence[Result]) -> Steps[list[Item]]:
    """Return scores alone, in one step."""
    left = results[0].vector
    scores = [{"score": cosine(left, result.vector)} for result in results[1:]]
    yield
    return [_item(plan, index, told) for index, told in enumerate([{}, *scores])]


def _occluded(request: Request, plan: Plan, outcome: Outcome) -> Steps[list[Item]]:
    """Score, and tell what each unit is worth, one text on the right a step."""
    left, *rights = [result.vector for result in outcome.inputs]
    left_copies, *copies = [[copy.vector for copy in own] for own in outcome.copies]
    items, kind = [_item(plan, 0, _axes(plan.units[0]))], request.dtype
    for index, (right, own) in enumerate(zip(rights, copies, strict=True), 1):
        score = cosine(left, right)
        worth = {
            "left_worth": [score - cosine(copy, right) for copy in left_copies],
            "right_worth": [score - cosine(left, copy) for copy in own],
        }
        facts = {**_axes(plan.units[index]), "score": score, "method": "occlusion"}
        arrays = {name: np.array(each, kind) for name, each in worth.items()}
        items.append(_item(plan, index, facts, arrays))
        yield
    return items


def _explained(
    linear: Linear, request: Request, plan: Plan, results: Sequence[Result]
) -> Steps[list[Item]]:
    """Score, and show what makes the scores, some texts on the right or rows of one a step."""
    torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
    cells = 0  # since the last pause
    left, items = _side(linear, plan, results, 0), [_item(plan, 0, _axes(plan.units[0]))]
    pooled = results[0].vector
    for index in range(1, len(results)):
        shares = linear.shares(left, _side(linear, plan, results, index))
        table = Table(request, plan.units[0], plan.units[index])
        for block in shares.blocks():
            table.add(block)
            cells += block.numel()
            if cells >= STEP_CELLS:
                cells = 0
                yield
        arrays, unlisted = table.arrays()
        facts = {
            **_axes(plan.units[index]),
            "score": cosine(pooled, results[index].vector),
            "rest": shares.dropped + shares.bias + unlisted,
        }
        if linear.bias is not None:
            facts["bias"] = shares.bias
        items.append(_item(plan, index, facts, arrays))
    return items


def _pair_shares(
    linear: Linear, pair: tuple[int, int], plan: Plan, outcome: Outcome
) -> Steps[list[list[float]]]:
    """Return a pair's share of the untouched texts, then with each head scaled, for each right."""
    torch.set_num_threads(1)  # as in _explained
    sides = list[list[tuple[Tensor, float]]]()
    for index, (result, copies) in enumerate(zip(*outcome, strict=True)):
        sides.append([])
        for one in (result, *copies):
            side = _side_of(linear, plan, one, index)
            sides[-1].append((side.shown[pair[index > 0]].clone(), side.length))
            yield
    left, *rights = sides
    return [
        [
            float(row @ column) / (length * other or math.inf)
            for (row, length), (column, other) in zip(left, right, strict=True)
        ]
        for right in rights
    ]


def _axes(units: Units) -> dict[str, Any]:
    """Say what rows or columns are, where not all tokens in order; as in maps.facts."""
    axes: dict[str, Any] = {}
    if len(units.axis) < len(units.spans):
        axes["axis"] = units.axis
    if len(units.spans) < units.tokens:
        axes["spans"] = units.spans
    return axes


def _side(linear: Linear, plan: Plan, results: Sequence[Result], index: int) -> Side:
    return _side_of(linear, plan, results[index], index)


def _side_of(linear: Linear, plan: Plan, result: Result, index: int) -> Side:
    tokens = result.tokens
    if tokens is None:
        raise RuntimeError("token vectors that were asked for are missing: this is a bug")
    return linear.side(torch.from_numpy(tokens), plan.units[index])


def _item(
    plan: Plan, index: int, more: dict[str, Any], arrays: dict[str, Array] | None = None
) -> Item:
    """Return what is answered for one text: its tokens, and what it has to do with the left one."""
    source = plan.works[index]
    cut = {"truncated": source.truncated, "length": source.length}
    return Item(len(source), {**source.facts, **cut, **more}, arrays=arrays or {})


class Table:
    """The matrix or its strongest pairs, and the sums of its rows and columns.

    Args:
        left: rows of the matrix, and right: its columns.
    """

    def __init__(self, request: Request, left: Units, right: Units) -> None:
        how, self._left, self._right = _asked(request), left, right
        self._full, self._dtype = how.form == "full", request.dtype
        self._kind = KINDS[request.dtype]
        full = (len(left.axis), len(right.axis)) if self._full else (0,)
        self._matrix = torch.empty(full, dtype=self._kind)
        self._strongest = Strongest(how.k or MOST_PAIRS)
        self._rows, self._columns = list[Tensor](), torch.zeros((), dtype=torch.float64)
        self._filled, self._total = 0, 0.0

    def add(self, block: Tensor) -> None:
        """Take further rows, (rows, right) float64."""
        if self._full:
            self._matrix[self._filled : self._filled + len(block)] = block
        else:
            self._strongest.add(block)
        self._rows.append(block.sum(1))
        self._columns = self._columns + block.sum(0)
        self._filled, self._total = self._filled + len(block), self._total + float(block.sum())

    def arrays(self) -> tuple[dict[str, Array], float]:
        """Return arrays by their names in a safetensors answer, and the share of pairs left out.

        Raises:
            Refused: float16 cannot hold a share.
        """
        sums = {"left_share": torch.cat(self._rows), "right_share": self._columns}
        if self._full:
            return self._cast({"matrix": self._matrix, **sums}), 0.0
        rows, columns, shares = self._strongest.pairs()
        pairs = {
            "pairs.left": torch.tensor(self._left.axis, dtype=torch.int32)[rows],
            "pairs.right": torch.tensor(self._right.axis, dtype=torch.int32)[columns],
            "pairs.shares": shares,
        }
        return self._cast({**pairs, **sums}), self._total - float(shares.sum())

    def _cast(self, arrays: dict[str, Tensor]) -> dict[str, Array]:
        """Return the arrays in the format of the answer; float32 holds every share.

        Here and not in numpy, which takes many times as long where numbers are near float16's
        least.
        """
        cast = {
            name: one.to(self._kind) if one.is_floating_point() else one
            for name, one in arrays.items()
        }
        half = self._kind is torch.float16
        if half and not all(bool(one.isfinite().all()) for one in cast.values()):
            raise Refused("nonfinite_output", layer=-1, dtype=self._dtype)
        return {name: one.numpy() for name, one in cast.items()}


def _hold(width: int, sizes: Sequence[int], left: int, *rights: int) -> int:
    """Return the bytes without the answer: token vectors, and what a step makes of them in float64.

    That is those of the left text; of one on the right twice, as they are weighted; and a
    block of shares twice.
    """
    longest, (units, *others) = max(rights), sizes
    tokens = SINGLE * (left + sum(rights)) + DOUBLE * (left + 2 * longest)
    return width * tokens + 2 * DOUBLE * min(units * max(others), BLOCK_CELLS)


def _weigh(form: str, k: int | None, number: int, sizes: Sequence[int]) -> int:
    """Return the bytes of the raw arrays."""
    if form == "score":
        return 0
    left, *rights = sizes
    return sum(_bytes(left, right, form, k, number) for right in rights)


def _bytes(left: int, right: int, form: str, k: int | None, number: int) -> int:
    """Count the bytes of the arrays of two texts of this many units."""
    cells = left * right * number
    if form == "occlusion":
        cells = 0
    elif form == "top":
        cells = min(k or MOST_PAIRS, left * right) * (number + 2 * INDEX)
    return cells + (left + right) * number
