"""How well documents answer a query, by late interaction (MaxSim): computation and price."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import torch

from model.task_heads import VectorHead, match_vectors
from service.pipeline.cost import DOUBLE, SINGLE
from service.pipeline.find.resolver import Resolver
from service.pipeline.worker import Steps, Workers
from service.questions.compared import by_side
from service.questions.maxsim import MaxsimRequest
from service.shapes.answer import AnswerItem, Array
from service.shapes.ask import Custom
from service.shapes.outputs import MultiVector
from service.shapes.price import Part, Price
from service.shapes.record import Record
from service.shapes.side import Side, place_alone, place_in_list
from service.shapes.step import Plan, Read, Step
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
        self._layout, self._worker = custom.layout, workers.sums
        wanted = (MultiVector(),)
        adapter, tasks = resolver.adapter(ask.model), resolver.tasks(wanted)
        names = by_side(ask.prompt_name, "query", "document")
        query = Side(
            [ask.query],
            replace(resolver.outputs(False), task_heads=tuple([task.head for task in tasks])),
            place_alone("query"),
            cut=resolver.cut(ask.truncate),
            facts=True,
            filled=True,
            prompt_name=names[0],
            adapter=adapter,
            role=resolver.role(wanted, "query"),
            tasks=tasks,
        )
        documents = query._replace(
            inputs=ask.documents,
            at=place_in_list("documents"),
            prompt_name=names[1],
            role=resolver.role(wanted, "document"),
        )
        self.sides: Sequence[Side] = (query, documents)

    async def plan(self, works: list[Work], read: Read, deadline: float, record: Record) -> Plan:
        """Return the only step: the query and all documents; they are answered best first."""
        head = _head_of(works[0])
        query, *documents = [_head_of(work).count_vectors(len(work)) for work in works]
        held, longest = (query + sum(documents)) * head.vector_bytes(), max(documents)
        # of the query and one document in float64, and their products
        held += DOUBLE * (head.size * (query + longest) + query * longest)
        parts: dict[Part, int] = {"matches": len(documents) * query * MATCH_SIZE}
        price = Price(parts, self._layout, held, 3 * len(documents))
        return Plan(Step(works), price, lambda: self._worker.run(_score_documents(works), deadline))


def _score_documents(works: Sequence[Work]) -> Steps[list[AnswerItem]]:
    """Return the query's item, then the documents', best first; some documents per step."""
    torch.set_num_threads(1)  # of this thread, so that it opens no OpenMP region; see lanes.py
    (query, places), items = _kept_vectors(works[0].result), list[AnswerItem]()
    mean, products = _head_of(works[0]).mean, 0  # products since the last pause
    for index, work in enumerate(works[1:]):
        vectors, kept = _kept_vectors(work.result)
        matches = match_vectors(torch.from_numpy(query), torch.from_numpy(vectors), mean)
        arrays = {
            "matches.query": places,
            "matches.document": kept[matches.places.numpy()],
            "matches.values": matches.values.float().numpy(),
        }
        facts = {"index": index, "score": matches.score, **work.shown}
        items.append(AnswerItem(len(work), facts, arrays=arrays))
        products += max(query.size * len(vectors), LEAST_PRODUCTS)
        if products >= STEP_PRODUCTS:
            products = 0
            yield
    # of equal scores the first document stays first
    items.sort(key=lambda item: -item.facts["score"])
    return [AnswerItem(len(works[0]), works[0].shown), *items]


def _kept_vectors(result: Result) -> tuple[Array, Array]:
    """Return a sequence's vectors, (kept, size), and their tokens' indices, (kept,) int32."""
    return result.task["vectors"], result.task["kept"].astype(np.int32, copy=False)


def _head_of(work: Work) -> VectorHead:
    """Return the task head that makes a vector for each token of a work."""
    return next(head for head in work.outputs.task_heads if isinstance(head, VectorHead))
