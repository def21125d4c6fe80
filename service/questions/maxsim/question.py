"""How well documents answer a query, by late interaction (MaxSim): computation and price."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from model.task_heads import VectorHead, match_vectors
from service.encode.price import DOUBLE, SINGLE
from service.encode.resolver import Resolver
from service.encode.worker import Steps, Workers
from service.questions.compared import by_side
from service.questions.maxsim import MaxsimRequest
from service.shapes.answer import AnswerItem, Array
from service.shapes.ask import Custom
from service.shapes.outputs import MultiVector
from service.shapes.price import Price
from service.shapes.record import Record
from service.shapes.side import Side, place_alone, place_in_list
from service.shapes.step import ReadSide, Step
from service.shapes.work import Result, Work

INDEX_SIZE = 4  # bytes of a token's index
STEP_PRODUCTS = 1 << 21  # multiplications between two pauses: some milliseconds
LEAST_PRODUCTS = STEP_PRODUCTS // 64  # that even a smaller document counts as
MATCH_SIZE = 2 * INDEX_SIZE + SINGLE  # bytes of a match: the indices of two tokens, and its value


class Maxsim:
    """A request to score documents by late interaction with a query."""

    def __init__(
        self, ask: MaxsimRequest, custom: Custom, resolver: Resolver, workers: Workers
    ) -> None:
        self._ask, self._custom, self._resolver = ask, custom, resolver
        self._worker = workers.sums
        self._works: Sequence[Work] = ()

    def sides(self) -> Sequence[Side]:
        """Return the query and the documents, each to be encoded as many vectors."""
        ask, resolve, wanted = self._ask, self._resolver, (MultiVector(),)
        adapter, tasks = resolve.adapter(ask.model), resolve.tasks(wanted)
        names = by_side(ask.prompt_name, "query", "document")
        both = Side(
            (),
            replace(resolve.outputs(False), task_heads=tuple([task.head for task in tasks])),
            cut=resolve.cut(ask.truncate),
            facts=True,
            filled=True,
            adapter=adapter,
            tasks=tasks,
        )
        query = both._replace(
            inputs=[ask.query],
            at=place_alone("query"),
            prompt_name=names[0],
            role=resolve.role(wanted, "query"),
        )
        documents = both._replace(
            inputs=ask.documents,
            at=place_in_list("documents"),
            prompt_name=names[1],
            role=resolve.role(wanted, "document"),
        )
        return query, documents

    async def plan(
        self, works: list[Work], read: ReadSide, deadline: float, record: Record
    ) -> Step:
        """Return the only step: the query and all documents."""
        self._works = works
        return Step(works)

    def price(self, step: Step) -> Price:
        """Return the bytes of memory of the matches, and of the vectors kept to compute them."""
        works, head = self._works, _head_of(self._works[0])
        query, *documents = [_head_of(work).count_vectors(len(work)) for work in works]
        held, longest = (query + sum(documents)) * head.vector_bytes(), max(documents)
        # of the query and one document in float64, and their products
        held += DOUBLE * (head.size * (query + longest) + query * longest)
        matches = len(documents) * query * MATCH_SIZE
        return Price(
            {"matches": matches}, self._custom.layout, step.held + held, 3 * len(documents)
        )

    async def make_items(self, deadline: float) -> Iterable[AnswerItem]:
        """Return the query's item, then those of the documents, best first."""
        return await self._worker.run(_score_documents(self._works), deadline)


def _score_documents(works: Sequence[Work]) -> Steps[list[AnswerItem]]:
    """Return the query's item, then the documents', best first; some documents per step."""
    torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
    (query, places), items = _kept_vectors(works[0].result), list[AnswerItem]()
    mean = _head_of(works[0]).mean
    products = 0  # since the last pause
    for index, work in enumerate(works[1:]):
        vectors, kept = _kept_vectors(work.result)
        matches = match_vectors(torch.from_numpy(query), torch.from_numpy(vectors), mean)
        arrays = {
            "matches.query": places,
            "matches.document": kept[matches.places.numpy()],
            "matches.values": matches.values.float().numpy(),
        }
        items.append(_make_item(work, {"index": index, "score": matches.score}, arrays))
        products += max(query.size * len(vectors), LEAST_PRODUCTS)
        if products >= STEP_PRODUCTS:
            products = 0
            yield
    # of equal scores the first document stays first
    return [_make_item(works[0], {}, {}), *sorted(items, key=lambda item: -item.facts["score"])]


def _kept_vectors(result: Result) -> tuple[Array, Array]:
    """Return a sequence's vectors, (kept, size), and their tokens' indices, (kept,) int32."""
    return result.task["vectors"], result.task["kept"].astype(np.int32, copy=False)


def _make_item(work: Work, score: Mapping[str, Any], arrays: Mapping[str, Array]) -> AnswerItem:
    """Return the item of one text: its score, its tokens, and their matches."""
    cut = {"truncated": work.truncated, "length": work.length}
    return AnswerItem(len(work), {**score, **work.facts, **cut}, arrays=arrays)


def _head_of(work: Work) -> VectorHead:
    """Return the task head that makes a vector for each token of a work."""
    return next(head for head in work.outputs.task_heads if isinstance(head, VectorHead))
