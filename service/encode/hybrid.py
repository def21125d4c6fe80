"""How well documents answer a query by three scores at once: dense, sparse and many vectors.

    dense          the product of the pooled vectors
    sparse         the sum, over the ids that both have, of the products of their weights
    multi_vector   as in maxsim.py, the mean over the query's vectors
    score          the weighted mean of the three

All are summed in float64. Source: FlagEmbedding 1.4, inference/embedder/encoder_only/m3.py,
`compute_score_single_device`, where the weights are 1 by default.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import torch

from model.task_heads import match
from service.encode.answer import Item
from service.encode.interventions import Outcome
from service.encode.maxsim import STEP_PRODUCTS, head_of, hold
from service.encode.plan import Plan
from service.encode.price import DOUBLE, SINGLE, Price
from service.encode.request import Hybrid, Request
from service.encode.worker import Steps, Worker
from service.engine.work import Result

NUMBERS = 4  # of a document: its parts and its score


class Hybrids:
    """Ends requests with three scores of each document, and their weighted mean.

    Args:
        width: of a pooled vector.
        worker: where the arithmetic is done.
    """

    def __init__(self, width: int, worker: Worker) -> None:
        self._width, self._worker = width, worker

    def check(self, request: Request) -> None:
        """Let every request pass."""

    def price(self, request: Request, plan: Plan) -> Price:
        """Return what the answer will weigh."""
        scores = DOUBLE * NUMBERS * (len(plan.works) - 1)
        pooled = SINGLE * self._width * len(plan.works)
        return Price({"task": scores}, request.layout, plan.held + hold(plan) + pooled)

    async def finish(
        self, request: Request, plan: Plan, outcome: Outcome, deadline: float
    ) -> Iterable[Item]:
        """Return what is answered of each document, in the order of the request.

        Raises:
            Refused: it is not done in time.
        """
        if not isinstance(request.ending, Hybrid):
            raise RuntimeError("another ending's request: this is a bug")
        return await self._worker.run(_scored(plan, outcome.inputs, request.ending), deadline)


def _scored(plan: Plan, results: Sequence[Result], weights: Hybrid) -> Steps[list[Item]]:
    """Return the documents with their scores, in steps of some documents."""
    torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
    query, items, products = results[0], list[Item](), 0  # products since the last pause
    mean = head_of(plan.works[0]).mean
    for work, result in zip(plan.works[1:], results[1:], strict=True):
        parts = _parts(query, result, mean)
        total = sum(weight * parts[name] for name, weight in weights._asdict().items())
        items.append(Item(len(work), {"score": total / sum(weights), "parts": parts}))
        products += query.task["vectors"].size * len(result.task["vectors"])
        if products >= STEP_PRODUCTS:
            products = 0
            yield
    return items


def _parts(query: Result, document: Result, mean: bool) -> dict[str, float]:
    """Return the three scores of a document by their names."""
    own, other = query.task, document.task
    rows, columns = torch.from_numpy(own["vectors"]), torch.from_numpy(other["vectors"])
    return {
        "dense": _product(query.pooled, document.pooled),
        "sparse": _shared(own, other),
        "multi_vector": match(rows, columns, mean).score,
    }


def _shared(query: dict[str, Any], document: dict[str, Any]) -> float:
    """Return the sum of the products of the weights that two texts share."""
    ids = query["indices"], document["indices"]
    _, first, second = np.intersect1d(*ids, assume_unique=True, return_indices=True)
    return _product(query["values"][first], document["values"][second])


def _product(one: Any, other: Any) -> float:
    """Return the inner product of two vectors in float64."""
    return float(one.astype(np.float64) @ other.astype(np.float64))
