"""The answer of POST /v1/maxsim -> typed arrays."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from headlight_client.answers import ENTRY, Item, Usage, item
from headlight_client.errors import NoAnswer
from headlight_client.formats import Array, load, loads


@dataclass(frozen=True, slots=True)
class Score:
    """How well one document answers a query.

    Args:
        index: its place among the documents.
        query, document: the tokens that match, (matches,); values: their products, (matches,).
        text: its tokens.
    """

    index: int
    score: float
    query: Array
    document: Array
    values: Array
    text: Item


@dataclass(frozen=True, slots=True)
class Scored:
    """The documents, best first, and the query's tokens."""

    model: str
    weights: str
    numerics: str
    query: Item
    results: list[Score]
    usage: Usage


def read(body: bytes) -> Scored:
    """Read an answer.

    Raises:
        NoAnswer: it is none.
    """
    try:
        arrays, metadata = load(body)
        answer = loads(metadata[ENTRY])
        head = {name: answer[name] for name in ("model", "weights", "numerics")}
        return Scored(
            **head,
            query=item(answer["query"], {}),
            results=[_score(dict(facts), arrays) for facts in answer["results"]],
            usage=Usage(**answer["usage"]),
        )
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise NoAnswer("the answer is not in Headlight's format") from error


def _score(facts: dict[str, Any], arrays: Mapping[str, Array]) -> Score:
    index, score = facts.pop("index"), facts.pop("score")
    parts = {name: arrays[f"{index}.matches.{name}"] for name in ("query", "document", "values")}
    return Score(index, score, **parts, text=item(facts, {}))
