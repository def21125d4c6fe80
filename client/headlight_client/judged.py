"""JSON answers of task heads -> typed values.

POST /v1/rerank      Ranked, with a Rank for each document
POST /v1/classify    Classified, with a Judged for each text
"""

from dataclasses import dataclass
from typing import Any, NamedTuple

from headlight_client.answers import Answer
from headlight_client.errors import expect_format
from headlight_client.reprs import with_short_repr


@dataclass(frozen=True, slots=True)
class Rank:
    """How well one document answers a query, by a reranker's score.

    Args:
        index: its place among the documents.
    """

    index: int
    score: float


@with_short_repr
@dataclass(frozen=True, slots=True)
class Ranked:
    """The documents by their scores, best first.

    Args:
        tokens: how many were computed.
    """

    model: str
    results: list[Rank]
    tokens: int


class Fit(NamedTuple):
    """How well one label fits a text, 0 to 1."""

    label: str
    score: float


@with_short_repr
@dataclass(frozen=True, slots=True)
class Judged:
    """The labels of one text.

    Args:
        classes: all of them, best first.
        truncated: whether the text was cut for any label.
        length: tokens before the cut, with the longest label and the template.
    """

    classes: list[Fit]
    truncated: bool
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Classified(Answer):
    """The labels of some texts, in the order of the texts."""

    texts: list[Judged]


@expect_format()
def read_ranked(answer: Any) -> Ranked:
    """Read the JSON answer of POST /v1/rerank.

    Raises:
        NoAnswer: it is not in that format.
    """
    results = [Rank(one["index"], one["relevance_score"]) for one in answer["results"]]
    return Ranked(answer["model"], results, answer["usage"]["total_tokens"])


@expect_format()
def read_classified(answer: Any) -> Classified:
    """Read the JSON answer of POST /v1/classify.

    Raises:
        NoAnswer: it is not in that format.
    """
    texts = [
        Judged([Fit(**one) for one in text["classes"]], text["truncated"], text["length"])
        for text in answer["data"]
    ]
    return Classified(**Answer.read_fields(answer), texts=texts)
