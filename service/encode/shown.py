"""What a head made of one sequence -> how an answer shows it, in JSON and in safetensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

Array = NDArray[np.generic]
JSONRow = dict[str, Any]


class Shown(Protocol):
    """What is shown of one sequence."""

    def to_json(self) -> dict[str, Any]:
        """Return all of it, as JSON nests it, with arrays as leaves."""

    def facts(self) -> dict[str, Any]:
        """Return what of it is no array."""

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Return its arrays by the names they have in a safetensors answer."""


Made = TypeVar("Made", bound=Shown)


def of_kind(tasks: Sequence[Shown], kind: type[Made]) -> Made:
    """Return what a task head made, which is what was asked for."""
    for shown in tasks:
        if isinstance(shown, kind):
            return shown
    raise RuntimeError("what a head makes was not asked for: this is a bug")


@dataclass(frozen=True, slots=True)
class Classes:
    """The classes of a sequence.

    Args:
        labels: in the checkpoint's order.
        logits, scores: (classes,) each.
    """

    labels: Sequence[str]
    logits: Array
    scores: Array

    def to_json(self) -> dict[str, Any]:
        columns = zip(
            self.labels, short_numbers(self.scores), short_numbers(self.logits), strict=True
        )
        return {"classes": [{"label": a, "score": b, "logit": c} for a, b, c in columns]}

    def facts(self) -> dict[str, Any]:
        return self.to_json()

    def arrays(self) -> Iterator[tuple[str, Array]]:
        return iter(())


@dataclass(frozen=True, slots=True)
class Labels:
    """A label and its probability for each token or word; None for a special token."""

    rows: Sequence[JSONRow | None]

    def to_json(self) -> dict[str, Any]:
        return {"labels": self.rows}

    def facts(self) -> dict[str, Any]:
        return self.to_json()

    def arrays(self) -> Iterator[tuple[str, Array]]:
        return iter(())


@dataclass(frozen=True, slots=True)
class SparseWeights:
    """A sparse vector.

    Args:
        indices: ids of the vocabulary, ascending, (ids,) int32.
        values: their weights, (ids,).
        tokens: what the vocabulary writes for them.
    """

    indices: Array
    values: Array
    tokens: Sequence[str | None]

    def to_json(self) -> dict[str, Any]:
        return {"sparse": {**dict(self._arrays()), "tokens": self.tokens}}

    def facts(self) -> dict[str, Any]:
        return {"sparse": {"tokens": self.tokens}}

    def arrays(self) -> Iterator[tuple[str, Array]]:
        return ((f"sparse.{name}", array) for name, array in self._arrays())

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        yield "indices", self.indices
        yield "values", self.values


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """Many vectors of a sequence.

    Args:
        vectors: of the tokens kept, (kept, size).
        kept: their places, (kept,) int32.
    """

    vectors: Array
    kept: Array

    def to_json(self) -> dict[str, Any]:
        return dict(self.arrays())

    def facts(self) -> dict[str, Any]:
        return {}

    def arrays(self) -> Iterator[tuple[str, Array]]:
        yield "vectors", self.vectors
        yield "kept", self.kept


def best_labels(
    names: Sequence[str], facts: Mapping[str, Any], arrays: Mapping[str, Array], level: str
) -> Labels:
    """Return what a Tagger made of one sequence.

    Args:
        names: of the labels.
        facts: of the sequence's tokens.
        level: what has a label.
    """
    columns = zip(arrays["labels"].tolist(), short_numbers(arrays["scores"]), strict=True)
    rows = [{"label": names[label], "score": score} for label, score in columns]
    if level == "word":
        return Labels([rows[place] for place in _first_tokens(facts)])
    special = facts["special"] or [False] * len(rows)
    return Labels([None if out else row for row, out in zip(rows, special, strict=True)])


def _first_tokens(facts: Mapping[str, Any]) -> list[int]:
    """Return the first token of each word, in order of appearance."""
    words = facts["words"]
    segments = facts.get("segments") or [0] * len(words)
    places: dict[tuple[int, int], int] = {}
    for place, (segment, word) in enumerate(zip(segments, words, strict=True)):
        if word is not None:
            places.setdefault((segment, word), place)
    return list(places.values())


def short_numbers(array: Array) -> list[float]:
    """Return numbers with as many digits as tell them apart as float32."""
    shortest: list[float] = orjson.loads(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))
    return shortest
