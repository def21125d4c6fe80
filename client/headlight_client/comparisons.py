"""A safetensors answer of POST /v1/similarity -> typed arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from headlight_client.answers import ENTRY, Head, Usage, by_head, same
from headlight_client.errors import NoAnswer
from headlight_client.formats import Array, load, loads


class Pairs(NamedTuple):
    """The strongest pairs: (pairs,) each; rows of the left text, columns of the right one."""

    left: Array
    right: Array
    shares: Array


@dataclass(frozen=True, slots=True)
class Similar:
    """One text that the left one was compared with; what its form does not have is None.

    Args:
        score: the cosine.
        facts: what else the service says: tokens, rest, axis, spans and more.
        matrix: (left, right).
        left_share: (left,).
        right_share: (right,).
        change: of the score by head of a sweep.
    """

    score: float
    facts: Mapping[str, Any]
    matrix: Array | None
    pairs: Pairs | None
    left_share: Array | None
    right_share: Array | None
    change: dict[Head, float]


@dataclass(frozen=True, slots=True)
class Compared:
    """What came for a left text and those on the right, in their order.

    Args:
        left: what the service says of the left text.
    """

    model: str
    weights: str
    numerics: str
    dtype: str
    left: Mapping[str, Any]
    right: list[Similar]
    usage: Usage

    @property
    def head(self) -> dict[str, str]:
        """What made the answer."""
        return {"model": self.model, "weights": self.weights, "numerics": self.numerics}


def read(body: bytes) -> Compared:
    """Read an answer.

    Raises:
        NoAnswer: it is none.
    """
    try:
        arrays, metadata = load(body)
        answer = loads(metadata[ENTRY])
        by_text: list[dict[str, Array]] = [{} for _ in answer["right"]]
        for name, array in arrays.items():
            index, _, own = name.partition(".")
            by_text[int(index)][own] = array
        right = [_similar(facts, own) for facts, own in zip(answer["right"], by_text, strict=True)]
        head = {name: answer[name] for name in ("model", "weights", "numerics", "dtype")}
        return Compared(**head, left=answer["left"], right=right, usage=Usage(**answer["usage"]))
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise NoAnswer("the answer is not in Headlight's format") from error


def join(parts: Sequence[Compared]) -> Compared:
    """One answer of several with the same left text, in their order.

    Raises:
        ModelChanged: they do not come from one model.
    """
    first = parts[0]
    for part in parts:
        same(part.head, first.head)
    usage = Usage(*map(sum, zip(*(part.usage for part in parts), strict=True)))
    right = [text for part in parts for text in part.right]
    return Compared(**first.head, dtype=first.dtype, left=first.left, right=right, usage=usage)


def _similar(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Similar:
    rest = {name: value for name, value in facts.items() if name not in ("score", "sweep")}
    pairs = None
    if "pairs.shares" in arrays:
        pairs = Pairs(arrays["pairs.left"], arrays["pairs.right"], arrays["pairs.shares"])
    change = by_head(facts["sweep"]["change"]) if "sweep" in facts else {}
    return Similar(
        score=facts["score"],
        facts=rest,
        matrix=arrays.get("matrix"),
        pairs=pairs,
        left_share=arrays.get("left_share"),
        right_share=arrays.get("right_share"),
        change=change,
    )
