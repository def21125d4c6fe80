"""Why one text is like others: the arithmetic behind the model's."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import torch

from model.maps.units import Units
from model.pooling import Pooling
from model.shares.similarity import Linear, NotLinear, Side
from service.api.native.request import EncodeRequest
from service.api.questions.comparison import Comparison, ComparisonRequest
from service.encode.answer import Array, Item
from service.encode.aside import Aside, Steps
from service.encode.plan import Plan
from service.encode.questions.table import Table
from service.engine.work import Result
from service.refusals import Refused

STEP_CELLS = 1 << 14  # of matrices between two pauses, some milliseconds with those around them
ANSWERED = '"form": "score" is answered, and a model pooled by the mean is explained'


class Comparer:
    """Explains similarities of one model.

    Args:
        pooling: the checkpoint's own.
        most: comparisons that may wait for their arithmetic; beyond it they are refused.
    """

    def __init__(self, pooling: Pooling, most: int) -> None:
        self._aside, self._reason = Aside(most), ""
        self._linear: Linear | None = None
        try:
            self._linear = Linear(pooling)
        except NotLinear as error:
            self._reason = str(error)

    def check(self, request: EncodeRequest) -> None:
        """Refuse to explain what is no sum over tokens.

        Raises:
            Refused: with what is answered instead.
        """
        if self._linear is None and isinstance(request, Comparison) and request.tokens:
            detail = f"this model has {self._reason}; {ANSWERED}"
            raise Refused.at("similarity_not_explainable", "form", detail=detail)

    async def compare(
        self, request: ComparisonRequest, plan: Plan, results: Sequence[Result], deadline: float
    ) -> list[Item]:
        """What is answered of the left text, and of each on the right.

        Args:
            results: of the plan's works.
            deadline: when the answer must be there, on time.monotonic's clock.

        Raises:
            Refused: it is not done in time, or float16 cannot hold a share.
        """
        if request.form == "score":
            steps = _scores(plan, results)
        elif self._linear is not None:
            steps = _explained(self._linear, request, plan, results)
        else:
            raise RuntimeError("a comparison that was refused: this is a bug")
        return await self._aside.run(steps, deadline)


def _scores(plan: Plan, results: Sequence[Result]) -> Steps[list[Item]]:
    """Scores alone, in one step."""
    left = _pooled(results[0])
    scores = [{"score": _cosine(left, _pooled(result))} for result in results[1:]]
    yield
    return [_item(plan, index, told) for index, told in enumerate([{}, *scores])]


def _explained(
    linear: Linear, request: ComparisonRequest, plan: Plan, results: Sequence[Result]
) -> Steps[list[Item]]:
    """Scores and what makes them, in steps of some texts on the right, or of rows of one."""
    torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
    cells = 0  # since the last pause
    left, items = _side(linear, plan, results, 0), [_item(plan, 0, _axes(plan.units[0]))]
    pooled = _pooled(results[0])
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
            "score": _cosine(pooled, _pooled(results[index])),
            "rest": shares.dropped + shares.bias + unlisted,
        }
        if linear.bias is not None:
            facts["bias"] = shares.bias
        items.append(_item(plan, index, facts, arrays))
    return items


def _axes(units: Units) -> dict[str, Any]:
    """What rows or columns are, where they are not all tokens in order; as in maps.facts."""
    axes: dict[str, Any] = {}
    if len(units.axis) < len(units.spans):
        axes["axis"] = units.axis
    if len(units.spans) < units.tokens:
        axes["spans"] = units.spans
    return axes


def _side(linear: Linear, plan: Plan, results: Sequence[Result], index: int) -> Side:
    tokens = results[index].tokens
    if tokens is None:
        raise RuntimeError("token vectors that were asked for are missing: this is a bug")
    return linear.side(torch.from_numpy(tokens), plan.units[index])


def _pooled(result: Result) -> Array:
    if result.pooled is None:
        raise RuntimeError("a vector that was asked for is missing: this is a bug")
    return result.pooled.astype(np.float64)


def _cosine(left: Array, right: Array) -> float:
    """Of two vectors, float64; 0 where one has no length."""
    length = np.linalg.norm(left) * np.linalg.norm(right)
    return float(left @ right / length) if length else 0.0


def _item(
    plan: Plan, index: int, more: dict[str, Any], arrays: dict[str, Array] | None = None
) -> Item:
    """What is answered of one text: its tokens, and what it has to do with the left one."""
    source = plan.inputs[index]
    cut = {"truncated": source.truncated, "length": source.length}
    return Item(len(source.sequence), {**source.facts, **cut, **more}, arrays=arrays or {})
