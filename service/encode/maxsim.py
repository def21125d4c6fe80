"""How well documents answer a query, token by token: the arithmetic, and what an answer weighs."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch

from model.task_heads import Vectors, match
from service.encode.answer import Array, Item
from service.encode.interventions import Outcome
from service.encode.plan import Plan
from service.encode.price import DOUBLE, SINGLE, Price
from service.encode.request import Request
from service.encode.worker import Steps, Worker
from service.engine.work import Result, Work

INDEX = 4  # bytes of the number of a token
STEP_PRODUCTS = 1 << 21  # between two pauses, of single numbers: some milliseconds
MATCH = 2 * INDEX + SINGLE  # bytes of one: two tokens and a value


class Maxsims:
    """Ends requests with the scores of documents.

    Args:
        worker: where the arithmetic is done.
    """

    def __init__(self, worker: Worker) -> None:
        self._worker = worker

    def check(self, request: Request) -> None:
        """Let every request pass."""

    def price(self, request: Request, plan: Plan) -> Price:
        """Return what the answer will weigh."""
        left, *rights = _counts(plan)
        matches = len(rights) * left * MATCH
        return Price({"matches": matches}, request.layout, plan.held + _hold(plan))

    async def finish(
        self, request: Request, plan: Plan, outcome: Outcome, deadline: float
    ) -> Iterable[Item]:
        """Return what is answered for the query, and for each document, best first.

        Raises:
            Refused: it is not done in time.
        """
        return await self._worker.run(_scored(plan, outcome.inputs), deadline)


def _scored(plan: Plan, results: Sequence[Result]) -> Steps[list[Item]]:
    """Return the query, and the documents by their scores, in steps of some documents."""
    torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
    (query, places), items = _vectors(results[0]), list[Item]()
    mean = _head_of(plan.works[0]).mean
    products = 0  # since the last pause
    for index, result in enumerate(results[1:]):
        vectors, kept = _vectors(result)
        found = match(torch.from_numpy(query), torch.from_numpy(vectors), mean)
        arrays = {
            "matches.query": places,
            "matches.document": kept[found.places.numpy()],
            "matches.values": found.values.float().numpy(),
        }
        items.append(_item(plan, index + 1, {"index": index, "score": found.score}, arrays))
        products += query.size * len(vectors)
        if products >= STEP_PRODUCTS:
            products = 0
            yield
    # of equal scores the first document stays first
    return [_item(plan, 0, {}, {}), *sorted(items, key=lambda item: -item.facts["score"])]


def _vectors(result: Result) -> tuple[Array, Array]:
    """Return a sequence's vectors, and the places of their tokens."""
    return result.task["vectors"], result.task["kept"].astype(np.int32, copy=False)


def _item(plan: Plan, index: int, score: Mapping[str, Any], arrays: Mapping[str, Array]) -> Item:
    """Return what is answered for one text: its score, its tokens, and what they match."""
    source = plan.works[index]
    cut = {"truncated": source.truncated, "length": source.length}
    return Item(len(source), {**score, **source.facts, **cut}, arrays=arrays)


def _hold(plan: Plan) -> int:
    """Return the bytes of what task heads make, and of the products of two texts' vectors."""
    held = sum(head.bytes(len(work)) for work in plan.works for head in work.outputs.task_heads)
    query, *documents = _counts(plan)
    # of the query and one document in float64, and their products
    size, longest = _head_of(plan.works[0]).size, max(documents)
    return held + DOUBLE * (size * (query + longest) + query * longest)


def _counts(plan: Plan) -> list[int]:
    """Return how many vectors each sequence has."""
    return [_head_of(work).count(len(work)) for work in plan.works]


def _head_of(work: Work) -> Vectors:
    """Return the task head that makes a work's many vectors."""
    return next(head for head in work.outputs.task_heads if isinstance(head, Vectors))
