"""A query and texts -> pairs for a reranker, and the texts back, best first; whatever the API."""

import copy
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import ClassVar, NamedTuple

import numpy as np

from model.task_heads import Task
from service.api.native.request import Documents, EncodeRequest, Item, Side
from service.encode.answer import Array
from service.encode.answer import Item as Answered
from service.encode.tasks.shown import Classes, numbers
from service.refusals import Refused
from service.wording.fault import Loc


class Ranking(EncodeRequest):
    """A request whose pairs are to be ranked."""

    counted: ClassVar[bool] = False

    max_tokens_per_doc: int | None = None
    """The tokens of a document that are read, the first ones; null: all."""

    @property
    def tasks(self) -> tuple[Task, ...]:
        return ("rerank",)

    @property
    def sides(self) -> tuple[Side, ...]:
        documents = Documents(self.max_tokens_per_doc)
        return (Side(self.items, self.prompt_name, documents=documents),)


PLAIN = Ranking.model_construct(inputs=[])  # a copy takes less time than another


class Rank(NamedTuple):
    """A text's place among those it came with, its logit and the score by the checkpoint."""

    place: int
    logit: float
    score: float


def pairs(query: str, texts: Sequence[str], name: str, most: int) -> list[Item]:
    """The query with each text.

    Args:
        name: of the texts, in the request.
        most: characters of the query, as often as there are texts: each is tokenized with it.

    Raises:
        Refused: there is no query or no text, or the query is too long for so many.
    """
    if not texts:
        raise Refused.at("batch_empty", name, detail="expected one text or more, received none")
    if len(query) * len(texts) > most:
        limit = most // len(texts)
        raise Refused.at("text_too_long", "query", length=len(query), limit=limit)
    return [Item.model_construct(text=query, pair=text) for text in texts]


def ranked(items: Iterable[Answered]) -> list[Rank]:
    """The texts, best first; of equal ones the first."""
    ranks = [
        Rank(place, float(item.task.logits[0]), float(item.task.scores[0]))
        for place, item in enumerate(items)
        if isinstance(item.task, Classes)
    ]
    return sorted(ranks, key=lambda rank: -rank.logit)


def best(items: Iterable[Answered], most: int | None, raw: bool) -> list[tuple[int, float]]:
    """The place and the score of the best texts, as TEI and Infinity score them.

    Args:
        most: of them; None: all.
        raw: whether scores are logits, not their sigmoid.
    """
    ranks = ranked(items)[:most]
    logits = np.array([rank.logit for rank in ranks], dtype=np.float32)
    scores = numbers(logits if raw else sigmoid(logits))
    return [(rank.place, score) for rank, score in zip(ranks, scores, strict=True)]


def sigmoid(logits: Array) -> Array:
    """Between 0 and 1, float32."""
    # of a large negative logit exp overflows; tanh does not
    exact: Array = (np.tanh(logits.astype(np.float64) / 2) + 1) / 2
    return exact.astype(np.float32)


def located(refused: Refused, name: str) -> Refused:
    """A refusal of a pair at the place that the text, or the query, has in the request.

    Args:
        name: of the texts, in the request.
    """
    other = copy.copy(refused)
    other.faults = [replace(f, loc=_place(f.loc, name)) for f in refused.faults]
    return other


def _place(loc: Loc, name: str) -> Loc:
    match loc:
        case ("inputs", _, "text"):
            return ("query",)
        case ("inputs", index, *_):
            return (name, index)
        case _:
            return loc
