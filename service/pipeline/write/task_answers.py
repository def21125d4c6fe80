"""Shows the outputs of task heads in an answer, as JSON and as safetensors."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import numpy as np
import orjson
from numpy.typing import NDArray

from service.shapes.answer import TaskAnswer

Array = NDArray[np.generic]
JSONRow = dict[str, Any]  # an entry of a JSON list


Made = TypeVar("Made", bound=TaskAnswer)


def of_kind(tasks: Sequence[TaskAnswer], kind: type[Made]) -> Made:
    """Return the output of this class among a sequence's; raise RuntimeError if it is missing."""
    for shown in tasks:
        if isinstance(shown, kind):
            return shown
    raise RuntimeError("what a head makes was not asked for: this is a bug")


@dataclass(frozen=True, slots=True)
class Classes(TaskAnswer):
    """The output of a classifier for one sequence."""

    labels: Sequence[str]  # names of the classes, in the checkpoint's order
    logits: Array  # (classes,)
    scores: Array  # the logits after the activation, (classes,)

    def to_json(self) -> dict[str, Any]:
        """Return the label, score and logit of each class."""
        columns = zip(
            self.labels, short_numbers(self.scores), short_numbers(self.logits), strict=True
        )
        rows = [{"label": label, "score": score, "logit": logit} for label, score, logit in columns]
        return {"classes": rows}


@dataclass(frozen=True, slots=True)
class Labels(TaskAnswer):
    """The output of a tagger: a label and its probability for each token or word."""

    rows: Sequence[JSONRow | None]  # None for a special token

    def to_json(self) -> dict[str, Any]:
        """Return the label and score of each token or word."""
        return {"labels": self.rows}


@dataclass(frozen=True, slots=True)
class SparseWeights:
    """A sparse vector over the vocabulary."""

    indices: Array  # token ids with a weight, ascending, (ids,) int32
    values: Array  # their weights, (ids,)
    tokens: Sequence[str | None]  # the vocabulary's string for each id

    def to_json(self) -> dict[str, Any]:
        """Return the ids, their weights and their tokens."""
        return {"sparse": {**dict(self._arrays()), "tokens": self.tokens}}

    def facts(self) -> dict[str, Any]:
        """Return the JSON field without arrays: the ids' tokens."""
        return {"sparse": {"tokens": self.tokens}}

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the arrays with their names in a safetensors answer."""
        return ((f"sparse.{name}", array) for name, array in self._arrays())

    def _arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield its arrays with their names in JSON."""
        yield "indices", self.indices
        yield "values", self.values


@dataclass(frozen=True, slots=True)
class TokenVectors:
    """The vectors of a sequence's tokens, for late interaction."""

    vectors: Array  # of the tokens that have one, (kept, size)
    kept: Array  # positions of these tokens in the sequence, (kept,) int32

    def to_json(self) -> dict[str, Any]:
        """Return the vectors and their tokens' positions."""
        return dict(self.arrays())

    def facts(self) -> dict[str, Any]:
        """Return no JSON fields, since all are arrays."""
        return {}

    def arrays(self) -> Iterator[tuple[str, Array]]:
        """Yield the arrays with their names in a safetensors answer."""
        yield "vectors", self.vectors
        yield "kept", self.kept


def best_labels(
    names: Sequence[str], facts: Mapping[str, Any], arrays: Mapping[str, Array], level: str
) -> Labels:
    """Return the best label of each token or word, from a Tagger's output for one sequence.

    Args:
        names: of all labels.
        facts: fields of the sequence's tokens.
        arrays: output of the Tagger: the number of each token's best label, and its score.
        level: `word` or `token`.
    """
    columns = zip(arrays["labels"].tolist(), short_numbers(arrays["scores"]), strict=True)
    rows = [{"label": names[label], "score": score} for label, score in columns]
    labelled = labelled_tokens(facts, level, len(rows))
    return Labels([None if token is None else rows[token] for token in labelled])


def labelled_tokens(facts: Mapping[str, Any], level: str, tokens: int) -> list[int | None]:
    """Return the token that each label is of: None for a special one, or each word's first.

    Args:
        facts: fields of the sequence's tokens.
        tokens: how many there are.
    """
    if level == "word":
        return [*_first_tokens(facts)]
    special = facts["special"] or [False] * tokens
    return [None if is_special else token for token, is_special in enumerate(special)]


def _first_tokens(facts: Mapping[str, Any]) -> list[int]:
    """Return the position of each word's first token, in order of appearance."""
    words = facts["words"]
    segments = facts.get("segments") or [0] * len(words)
    positions: dict[tuple[int, int], int] = {}
    for position, (segment, word) in enumerate(zip(segments, words, strict=True)):
        if word is not None:
            positions.setdefault((segment, word), position)
    return list(positions.values())


def short_numbers(array: Array) -> list[float]:
    """Return float32 numbers as floats with the fewest digits that tell them apart."""
    shortest: list[float] = orjson.loads(orjson.dumps(array, option=orjson.OPT_SERIALIZE_NUMPY))
    return shortest
