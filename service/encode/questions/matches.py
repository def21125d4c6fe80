"""How well documents answer a query, token by token: the arithmetic, and what an answer weighs."""

from bisect import bisect_right
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from model.task_heads import Vectors, match
from service.encode.answer import Array, Item
from service.encode.aside import Aside, Steps
from service.encode.layout import Layout
from service.encode.plan import Plan
from service.encode.price import DOUBLE, SINGLE, TEXT_BYTES
from service.encode.questions.price import INDEX
from service.engine.work import Result, Work
from service.refusals import Refused
from service.settings import Settings

STEP_PRODUCTS = 1 << 21  # between two pauses, of single numbers: some milliseconds
MATCH = 2 * INDEX + SINGLE  # bytes of one: two tokens and a value


class Matcher:
    """Scores documents.

    Args:
        most: requests that may wait for their arithmetic; beyond it they are refused.
    """

    def __init__(self, most: int) -> None:
        self._aside = Aside(most)

    async def match(self, plan: Plan, results: Sequence[Result], deadline: float) -> list[Item]:
        """What is answered of the query, and of each document, best first.

        Args:
            results: of the plan's works.
            deadline: when the answer must be there, on time.monotonic's clock.

        Raises:
            Refused: it is not done in time.
        """
        return await self._aside.run(_scored(plan, results), deadline)


def _scored(plan: Plan, results: Sequence[Result]) -> Steps[list[Item]]:
    """The query, and the documents by their scores, in steps of some documents."""
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
    """A sequence's vectors, and the places of their tokens."""
    return result.task["vectors"], result.task["kept"].astype(np.int32, copy=False)


def _item(plan: Plan, index: int, score: Mapping[str, Any], arrays: Mapping[str, Array]) -> Item:
    """What is answered of one text: its score, its tokens, and what they match."""
    source = plan.inputs[index]
    cut = {"truncated": source.truncated, "length": source.length}
    return Item(len(source.sequence), {**score, **source.facts, **cut}, arrays=arrays)


class MatchPrice:
    """What the answer of scores will weigh; see price.Price.

    Args:
        works: of the query first.
    """

    def __init__(self, works: Sequence[Work], layout: Layout) -> None:
        self.layout, self._counts = layout, [_count(work) for work in works]
        self._held = sum(work.outputs.head.bytes(len(work)) for work in works if work.outputs.head)
        sizes = [head.size for work in works if isinstance(head := work.outputs.head, Vectors)]
        query, *documents = self._counts
        # of the query and one document in float64, and their products
        self._step = DOUBLE * (max(sizes) * (query + max(documents)) + query * max(documents))
        self.parts = {"attention": 0}
        self.total = self._weigh(len(documents))

    @property
    def made(self) -> int:
        """Bytes of the arrays that it holds until the answer is written, and while it is made."""
        return self.total + self._held + self._step

    @property
    def written(self) -> int:
        """About how many bytes the arrays are as they are written."""
        return TEXT_BYTES * self.total if self.layout.numbers else self.total * 4 // 3

    def check(self, settings: Settings) -> None:
        """Refuse an answer that is too large, before any of it is computed.

        Raises:
            Refused: with the bytes, the limit, and changes to the request each of which would fit.
        """
        most_json, most = settings.max_answer_json_bytes, settings.max_answer_bytes
        limit = most_json if self.layout.numbers else most
        if self.total <= limit:
            return
        first = bisect_right(range(1, len(self._counts)), limit, key=self._weigh)
        fits: list[dict[str, Any]] = []
        fits += [{"documents_at_most": first, "bytes": self._weigh(first)}] if first else []
        if self.layout.numbers and self.total <= most:
            fits += map(dict, self.layout.compact)
        raise Refused("answer_too_large", bytes=self.total, limit=limit, fits=fits)

    def _weigh(self, documents: int) -> int:
        """Bytes of the matches of so many documents."""
        return documents * self._counts[0] * MATCH


def _count(work: Work) -> int:
    """How many vectors a sequence has."""
    head = work.outputs.head
    return head.count(len(work)) if isinstance(head, Vectors) else 0
