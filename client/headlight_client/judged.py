"""JSON answers of task heads -> typed values.

POST /v1/rerank      Ranked, with a Rank for each document
POST /v1/classify    Classified, with a Judged for each text
POST /v1/entities    Searched, with a Found for each text
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

from headlight_client.answers import ORIGIN, Answer, Usage
from headlight_client.errors import NoAnswer


@dataclass(frozen=True, slots=True)
class Rank:
    """How well one document answers a query.

    Args:
        index: its place among the documents.
        parts: of a model of three scores, each by its name; of others empty.
    """

    index: int
    score: float
    parts: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Ranked:
    """The documents by their scores, best first.

    Args:
        tokens: that were computed.
    """

    model: str
    results: list[Rank]
    tokens: int


class Fit(NamedTuple):
    """How well one label fits a text, 0 to 1."""

    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Judged:
    """The labels of one text.

    Args:
        classes: all of them, best first.
        truncated: whether the text was cut for any label.
        length: tokens before that, with the longest label and the template.
    """

    classes: list[Fit]
    truncated: bool
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Classified(Answer):
    """The labels of some texts, in the order of the texts."""

    texts: list[Judged]


class Entity(NamedTuple):
    """A span of a text that a label fits.

    Args:
        span: where it stands in the text, characters, [start, end).
    """

    span: tuple[int, int]
    text: str
    label: str
    score: float


@dataclass(frozen=True, slots=True)
class Found:
    """The entities of one text, in the order of their first words.

    Args:
        truncated: whether the text was cut.
        length: tokens before that, with those of the labels.
    """

    entities: list[Entity]
    truncated: bool
    length: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched(Answer):
    """The entities of some texts, in the order of the texts."""

    texts: list[Found]


def ranked(told: Any) -> Ranked:
    """Read an answer of POST /v1/rerank.

    Raises:
        NoAnswer: it is none.
    """
    try:
        results = [
            Rank(one["index"], one["relevance_score"], one.get("parts", {}))
            for one in told["results"]
        ]
        return Ranked(told["model"], results, told["usage"]["total_tokens"])
    except (LookupError, TypeError) as error:
        raise NoAnswer("the answer is not in Headlight's format") from error


def classified(told: Any) -> Classified:
    """Read an answer of POST /v1/classify.

    Raises:
        NoAnswer: it is none.
    """
    try:
        texts = [
            Judged([Fit(**one) for one in text["classes"]], text["truncated"], text["length"])
            for text in told["data"]
        ]
        made = {name: told[name] for name in ORIGIN}
        return Classified(**made, usage=Usage(**told["usage"]), texts=texts)
    except (LookupError, TypeError) as error:
        raise NoAnswer("the answer is not in Headlight's format") from error


def searched(told: Any) -> Searched:
    """Read an answer of POST /v1/entities.

    Raises:
        NoAnswer: it is none.
    """
    try:
        texts = [
            Found([_entity(one) for one in text["entities"]], text["truncated"], text["length"])
            for text in told["data"]
        ]
        made = {name: told[name] for name in ORIGIN}
        return Searched(**made, usage=Usage(**told["usage"]), texts=texts)
    except (LookupError, TypeError, ValueError) as error:
        raise NoAnswer("the answer is not in Headlight's format") from error


def _entity(told: Any) -> Entity:
    start, end = told["span"]
    return Entity((start, end), told["text"], told["label"], told["score"])
