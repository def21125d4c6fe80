"""Answers as typed arrays; reading.py makes them of what the service sends.

POST /v1/encode      Encoded, with an Item for each input
POST /v1/similarity  Compared, with a Similar for each text on the right
POST /v1/maxsim      Scored, with a Score for each document
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, Literal, NamedTuple, Self, TypeVar

import numpy as np

from headlight_client.errors import ModelChanged
from headlight_client.formats import Array
from headlight_client.pictures import Picture, draw_map, label_units
from headlight_client.reprs import with_short_repr

Head = tuple[int, int]  # layer and head, both counted from 0
Shown = tuple[int, int | Literal["mean"]]  # a head, or the mean over all heads of a layer
Arrays = Mapping[str, Array]  # of one input, by name


@with_short_repr
class Edges(NamedTuple):
    """Each row's strongest keys and their weights, (units, k), and all others' sum, (units,)."""

    keys: Array
    values: Array
    rest: Array


@with_short_repr
class Dominance(NamedTuple):
    """Which unit dominates each unit, (units,) each.

    Args:
        tokens, dominant: the unit of the row, and that of its strongest key.
        share, own: the shares of that key and of the row's own unit.
    """

    tokens: Array
    dominant: Array
    share: Array
    own: Array


@with_short_repr
class Why(NamedTuple):
    """The parts of query and key that a head's scores come from.

    Args:
        parts: their names: in layer 0 those of both sides, above it the key's.
        rows: the queries shown.
        share: of how all rows' scores vary, (query part, key part) in layer 0, (key part,) above;
            NaN where they vary by rounding alone.
        shuffled: the same of the head with its weights shuffled, the mean of five orders.
        deviation: the standard deviation of all rows' scores, which the shares are of, ().
        scores: less their row's mean, (row, query part, key part, key) or (row, key part, key);
            NaN for a key that the row may not see.
    """

    parts: list[str | None]
    rows: list[int]
    share: Array
    shuffled: Array
    deviation: Array
    scores: Array


@with_short_repr
@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one input, in the requested form; the fields of other forms are empty.

    Args:
        form: full, rows, blocks, top, mean, stats, dominance, rollout or why.
        path: how maps were computed, "fused" or "exact".
        facts: other fields of the answer: axis, spans, rows, segments.
        maps: of full, rows, blocks and mean: (query, key) by head, or by (layer, "mean").
        edges: of top, likewise.
        mean: of mean: the mean of all its maps, (segment, segment); row 1, column 0 is how much the
            second segment looks at the first.
        stats: of stats, by head: each statistic by its name; NaN with nothing to average over.
        dominance: of dominance, by head.
        wins: of dominance: how many rows each unit dominates, (units,).
        rollout: of rollout: (query, key).
        why: of why, by head.
    """

    form: str
    path: str
    facts: Mapping[str, Any]
    maps: dict[Shown, Array] = field(default_factory=dict)
    edges: dict[Shown, Edges] = field(default_factory=dict)
    mean: Array | None = None
    stats: dict[Head, dict[str, float]] = field(default_factory=dict)
    dominance: dict[Head, Dominance] = field(default_factory=dict)
    wins: Array | None = None
    rollout: Array | None = None
    why: dict[Head, Why] = field(default_factory=dict)


@with_short_repr
class Sparse(NamedTuple):
    """A sparse vector: ascending token ids and their weights, (ids,) each, and their tokens."""

    indices: Array
    values: Array
    tokens: list[str | None]


@with_short_repr
class Vectors(NamedTuple):
    """A vector for each token kept, (kept, size), and the tokens' places, (kept,)."""

    vectors: Array
    kept: Array


@with_short_repr
class Span(NamedTuple):
    """One span of a text, with its vector: (width or dimensions,).

    Args:
        characters, tokens: the span as it was sent, and its tokens, [first, last).
        extent: the characters of these tokens, [first, last).
    """

    characters: tuple[int, int]
    tokens: tuple[int, int]
    extent: tuple[int, int]
    pooled: Array  # the vector


@with_short_repr
@dataclass(frozen=True, slots=True)
class Item:
    """The answer to one input.

    Args:
        length: tokens before truncation.
        tokens, token_ids, offsets, words, special, segments: one entry per token, where token
            vectors, layers or attention were requested; None where not known.
        token_vectors: (tokens, width) where requested.
        layers: (tokens, width) by hidden state.
        classes: label, score and logit of each class, in the checkpoint's order.
        labels: label and score of each token or word; None for a special token.
        sparse: a sparse vector.
        vectors: a vector for each token.
        spans: those of the input, in their order.
        cosine: of a sweep, by head: of the vector with the head scaled and the unchanged one.
        logits: of a sweep, by head: the change of each class's logit.
    """

    truncated: bool  # whether tokens were cut off
    length: int
    tokens: list[str | None] | None = None
    token_ids: list[int] | None = None
    offsets: list[tuple[int, int]] | None = None
    words: list[int | None] | None = None
    special: list[bool] | None = None
    segments: list[int] | None = None
    token_vectors: Array | None = None
    layers: dict[int, Array] = field(default_factory=dict)
    attention: Attention | None = None
    classes: list[dict[str, Any]] | None = None
    labels: list[dict[str, Any] | None] | None = None
    sparse: Sparse | None = None
    vectors: Vectors | None = None
    spans: list[Span] = field(default_factory=list)
    cosine: dict[Head, float] = field(default_factory=dict)
    logits: dict[Head, list[float]] = field(default_factory=dict)

    def plot(self, layer: int, head: int | Literal["mean"], title: str = "") -> Picture:
        """Draw the map of one head, or "mean": a row for each token or word that looks.

        Raises:
            ValueError: the answer has no such map, full or of rows; or no tokens, or too many.
            ImportError: matplotlib is missing.
        """
        drawn = None if self.attention is None else self.attention.maps.get((layer, head))
        if self.attention is None or self.tokens is None or drawn is None:
            of = "the mean" if head == "mean" else f"head {head}"
            raise ValueError(f"the answer has no map of {of} of layer {layer}, or no tokens")
        columns = label_units(self.tokens, self.attention.facts)
        axis = self.attention.facts.get("axis") or range(len(columns))  # numbers of the columns
        rows = [columns[axis.index(row)] for row in self.attention.facts.get("rows", axis)]
        if drawn.shape != (len(rows), len(columns)):
            raise ValueError(f"a map of the form {self.attention.form} cannot be drawn")
        of = f"L{layer}, mean of its heads" if head == "mean" else f"L{layer}H{head}"
        title = title or f"{of}: what each row attends to"
        return draw_map(title, rows, columns, drawn.tolist())


@with_short_repr
class Pairs(NamedTuple):
    """The strongest pairs: units of the left and the right text, and shares, (pairs,) each."""

    left: Array
    right: Array
    shares: Array


@with_short_repr
@dataclass(frozen=True, slots=True)
class Similar:
    """One text that the left one was compared with; the fields of other forms are None.

    Args:
        score: the cosine.
        facts: other fields of the answer: tokens, rest, axis, spans and more.
        matrix: the share of each pair of units in the score, (left, right).
        pairs: those of the largest shares.
        left_share, right_share: of each unit in the score, (left,) and (right,).
        left_bias, right_bias: by input, what each unit adds with the other text's biases.
        left_worth, right_worth: the score less that without each unit, (left,) and (right,).
        left_heads, right_heads: what each head of each text's pass adds, (layers, heads).
        left_rest, right_rest: what else makes the score with a layer's heads, (layers,).
        worth: how fast the score falls as a head is scaled down in both texts, with attention,
            norms and activations kept as they were, (layers, heads).
        change: of a sweep, by head: the change of the score.
        share: of a sweep, by head: the change of the share of its pair (`sweep_pair`).
    """

    score: float
    facts: Mapping[str, Any]
    matrix: Array | None
    pairs: Pairs | None
    left_share: Array | None
    right_share: Array | None
    left_bias: Array | None
    right_bias: Array | None
    left_worth: Array | None
    right_worth: Array | None
    left_heads: Array | None
    right_heads: Array | None
    left_rest: Array | None
    right_rest: Array | None
    worth: Array | None
    change: dict[Head, float]
    share: dict[Head, float]


@with_short_repr
@dataclass(frozen=True, slots=True)
class Score:
    """How well one document answers a query.

    Args:
        index: its place among the documents.
        score: MaxSim of the query's and the document's vectors.
        query, document: the places of the tokens that match, (matches,).
        values: the products of their vectors, (matches,).
        text: the document's tokens.
    """

    index: int
    score: float
    query: Array
    document: Array
    values: Array
    text: Item


class Usage(NamedTuple):
    """The tokens, bytes and time of a job, summed over its requests."""

    tokens: int
    attention_bytes: int  # of attention maps
    answer_bytes: int
    queue_ms: float  # waited in queues
    compute_ms: float  # computed
    truncated: int = 0  # inputs that were cut
    blank: int = 0  # texts without a token of their own, which are encoded alike


@with_short_repr
@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """The fields of all answers: the model and the usage.

    Args:
        weights, numerics: digest and arithmetic; equal ones and equal input mean equal bits.
    """

    model: str
    weights: str
    numerics: str
    usage: Usage

    @staticmethod
    def read_fields(answer: Mapping[str, Any]) -> dict[str, Any]:
        """Return these fields of an answer's JSON."""
        origin = {name: answer[name] for name in ("model", "weights", "numerics")}
        return {**origin, "usage": Usage(**answer["usage"])}

    @property
    def origin(self) -> dict[str, str]:
        """Return the model, weights and numerics that computed the answer."""
        return {"model": self.model, "weights": self.weights, "numerics": self.numerics}

    @classmethod
    def join(cls, parts: Sequence[Self]) -> Self:
        """Join answers in their order.

        Raises:
            ModelChanged: they do not come from one model.
        """
        for part in parts:
            check_origin(part.origin, parts[0].origin)
        usage = Usage(*map(sum, zip(*(part.usage for part in parts), strict=True)))
        joined = {
            column.name: _join_values([getattr(part, column.name) for part in parts])
            for column in fields(cls)
        }
        return cls(**{**joined, "usage": usage})


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Encoded(Answer):
    """The answers to some inputs, in their order.

    Args:
        dtype: of pooled, token vectors and layers.
        items: one for each input.
        pooled: (inputs, width), or None where it was not requested.
        space: name of the space of the vectors, None where they are of none.
    """

    dtype: str
    items: list[Item]
    pooled: Array | None
    space: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Compared(Answer):
    """The comparison of a left text with those on the right, in their order.

    Args:
        dtype: of the arrays.
        left: the answer's fields about the left text.
        right: one for each text on the right.
    """

    dtype: str
    left: Mapping[str, Any]
    right: list[Similar]

    def plot(self, index: int = 0) -> Picture:
        """Draw the shares of the score of one text on the right: a row for each unit on the left.

        Raises:
            ValueError: the answer has no matrix of shares, or too many tokens.
            ImportError: matplotlib is missing.
        """
        similar = self.right[index]
        if similar.matrix is None:
            raise ValueError('the answer has no matrix of shares, as of form="full"')
        rows, columns = (
            label_units(facts["tokens"], facts) for facts in (self.left, similar.facts)
        )
        title = f"what makes the score of {similar.score:.2f}"
        if (rest := f"{similar.facts['rest']:+.2f}")[1:] != "0.00":
            title += f"; {rest} lies outside"
        largest = float(np.abs(similar.matrix).max()) or 1.0
        return draw_map(title, rows, columns, similar.matrix.tolist(), largest)


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Scored(Answer):
    """The documents, best first, and the query's tokens."""

    query: Item
    results: list[Score]


Kind = TypeVar("Kind", bound=Answer)  # of answer


def check_origin(now: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Check that two answers come from one model; see Answer.origin.

    Raises:
        ModelChanged: they do not.
    """
    for name, value in now.items():
        if before[name] != value:
            raise ModelChanged(f"the service's {name} changed from {before[name]} to {value}")


def _join_values(values: Sequence[Any]) -> Any:
    """Join lists and arrays, which have an entry for each input; else return the first value."""
    if isinstance(values[0], list):
        return list(chain.from_iterable(values))
    return np.concatenate(values) if isinstance(values[0], np.ndarray) else values[0]
