"""How well documents answer a query, token by token: the arithmetic, and what an answer weighs."""

from bisect import bisect_right
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import partial
from typing import Any

import numpy as np
import torch

from model.task_heads import Vectors, match
from service.encode.answer import Array, Item
from service.encode.interventions import Outcome
from service.encode.plan import Plan
from service.encode.price import DOUBLE, SINGLE, Offer, Price
from service.encode.request import Part, Request
from service.encode.worker import Steps, Worker
from service.engine.work import Result

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
        counts = _counts(plan)
        query, *documents = counts
        held = sum(
            work.outputs.task_head.bytes(len(work)) for work in plan.works if work.outputs.task_head
        )
        heads = [work.outputs.task_head for work in plan.works]
        sizes = [head.size for head in heads if isinstance(head, Vectors)]
        # of the query and one document in float64, and their products
        held += DOUBLE * (max(sizes) * (query + max(documents)) + query * max(documents))
        matches = _weigh(counts, len(documents))

        def offers(parts: Collection[Part], limit: int) -> list[Offer]:
            weigh = partial(_weigh, counts)
            most = bisect_right(range(1, len(counts)), limit, key=weigh)
            return [{"documents_at_most": most, "bytes": weigh(most)}] if most else []

        return Price({"matches": matches}, request.layout, plan.held + held, offers)

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
    products = 0  # since the last pause
    for index, result in enumerate(results[1:]):
        vectors, kept = _vectors(result)
        found = match(torch.from_numpy(query), torch.from_numpy(vectors))
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


def _weigh(counts: Sequence[int], documents: int) -> int:
    """Return the bytes of the matches of this many documents."""
    return documents * counts[0] * MATCH


def _counts(plan: Plan) -> list[int]:
    """Return how many vectors each sequence has."""
    return [
        head.count(len(work)) if isinstance(head := work.outputs.task_head, Vectors) else 0
        for work in plan.works
    ]
