"""A safetensors answer of POST /v1/encode -> typed arrays."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from headlight_client.errors import ModelChanged, NoAnswer
from headlight_client.formats import Array, load, loads

ENTRY = "headlight"  # of the metadata: all that is no array
Head = tuple[int, int]  # layer and head, both counted from 0


class Edges(NamedTuple):
    """The strongest keys of every row: (units, k) keys and values, (units,) rest."""

    keys: Array
    values: Array
    rest: Array


class Dominance(NamedTuple):
    """Who dominates each token: (units,) each."""

    tokens: Array
    dominant: Array
    share: Array
    own: Array


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one input, in the form asked for; what is of another form is empty.

    Args:
        form, path: which form, and how it was computed.
        facts: what else the service says: axis, spans, rows, stats.
        maps: (query, key) by head, of full, rows and blocks.
        edges: of top, by head.
        stats: (heads, fields) by layer.
        dominance: by head.
        wins: (units,) of dominance.
        rollout: (query, key).
    """

    form: str
    path: str
    facts: Mapping[str, Any]
    maps: dict[Head, Array] = field(default_factory=dict)
    edges: dict[Head, Edges] = field(default_factory=dict)
    stats: dict[int, Array] = field(default_factory=dict)
    dominance: dict[Head, Dominance] = field(default_factory=dict)
    wins: Array | None = None
    rollout: Array | None = None


class Sparse(NamedTuple):
    """Weights over the vocabulary: (ids,) ascending indices, (ids,) values, and their tokens."""

    indices: Array
    values: Array
    tokens: list[str | None]


class Vectors(NamedTuple):
    """Many vectors: (kept, size), and the places of their tokens, (kept,)."""

    vectors: Array
    kept: Array


class Span(NamedTuple):
    """One span of a text, with its vector: (width or dimensions,).

    characters is the span as it was sent, tokens are its tokens, extent the characters of these;
    each [first, last).
    """

    characters: tuple[int, int]
    tokens: tuple[int, int]
    extent: tuple[int, int]
    pooled: Array


@dataclass(frozen=True, slots=True)
class Item:
    """What came for one input.

    Args:
        length: tokens before truncation.
        tokens, token_ids, offsets, words, special, segments: one entry per token, where token
            vectors, layers or attention were asked for; None where not known.
        token_vectors: (tokens, width) where asked for.
        layers: (tokens, width) by hidden state.
        classes: label, score and logit of each class, in the checkpoint's order.
        labels: label and score of each token or word; None for a special token.
        sparse: a sparse vector.
        vectors: many vectors.
        spans: those of the input, in their order.
        cosine: of a sweep, by head: the vector with the head scaled and the untouched one.
        logits: of a sweep, by head: how each class's logit changes.
    """

    truncated: bool
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


class Usage(NamedTuple):
    """What a job took, summed over its requests."""

    tokens: int
    attention_bytes: int
    answer_bytes: int
    queue_ms: float
    compute_ms: float


@dataclass(frozen=True, slots=True)
class Encoded:
    """What came for some inputs, in their order.

    Args:
        weights, numerics: equal ones and equal input mean equal bits.
        dtype: of pooled, token vectors and layers.
        items: one for each input.
        pooled: (inputs, width), or None where it was not asked for.
    """

    model: str
    weights: str
    numerics: str
    dtype: str
    items: list[Item]
    usage: Usage
    pooled: Array | None

    @property
    def head(self) -> dict[str, str]:
        """What made the answer."""
        return {"model": self.model, "weights": self.weights, "numerics": self.numerics}


def read(body: bytes) -> Encoded:
    """Read an answer.

    Raises:
        NoAnswer: it is none.
    """
    try:
        arrays, metadata = load(body)
        answer = loads(metadata[ENTRY])
        by_item: list[dict[str, Array]] = [{} for _ in answer["data"]]
        for name, array in arrays.items():
            index, _, own = name.partition(".")
            by_item[int(index)][own] = array
        items = [item(facts, own) for facts, own in zip(answer["data"], by_item, strict=True)]
        pooled = [own["pooled"] for own in by_item if "pooled" in own]
        head = {name: answer[name] for name in ("model", "weights", "numerics", "dtype")}
        return Encoded(
            **head,
            items=items,
            usage=Usage(**answer["usage"]),
            pooled=np.stack(pooled) if pooled else None,
        )
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise NoAnswer("the answer is not in Headlight's format") from error


def join(parts: Sequence[Encoded]) -> Encoded:
    """One answer of several, in their order.

    Raises:
        ModelChanged: they do not come from one model.
    """
    first = parts[0]
    for part in parts:
        same(part.head, first.head)
    pooled = [part.pooled for part in parts if part.pooled is not None]
    return Encoded(
        first.model,
        first.weights,
        first.numerics,
        first.dtype,
        [item for part in parts for item in part.items],
        Usage(*map(sum, zip(*(part.usage for part in parts), strict=True))),
        np.concatenate(pooled) if pooled else None,
    )


def same(now: Mapping[str, str], before: Mapping[str, str]) -> None:
    """Check that two answers come from one model; see Encoded.head.

    Raises:
        ModelChanged: they do not.
    """
    for name, value in now.items():
        if before[name] != value:
            raise ModelChanged(f"the service's {name} changed from {before[name]} to {value}")


def item(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Item:
    """One input's share of an answer, of what is no array and of its arrays by name."""
    fields = dict(facts)
    attention, sparse = fields.pop("attention", None), fields.pop("sparse", None)
    sweep = fields.pop("sweep", {})
    spans = [
        Span(_ends(span["characters"]), _ends(span["tokens"]), _ends(span["extent"]), vector)
        for span, vector in zip(fields.pop("spans", ()), arrays.get("spans", ()), strict=True)
    ]
    layers = {
        int(name.removeprefix("layers.")): array
        for name, array in arrays.items()
        if name.startswith("layers.")
    }
    if fields.get("offsets"):
        fields["offsets"] = [(start, end) for start, end in fields["offsets"]]
    return Item(
        **fields,
        cosine=by_head(sweep.get("cosine", {})),
        logits=by_head(sweep.get("logits", {})),
        token_vectors=arrays.get("tokens"),
        layers=dict(sorted(layers.items())),
        attention=None if attention is None else _attention(attention, arrays),
        sparse=None
        if sparse is None
        else Sparse(arrays["sparse.indices"], arrays["sparse.values"], sparse["tokens"]),
        vectors=Vectors(arrays["vectors"], arrays["kept"]) if "vectors" in arrays else None,
        spans=spans,
    )


def by_head(told: Mapping[str, Mapping[str, Any]]) -> dict[Head, Any]:
    """What a sweep says of each head."""
    return {
        (int(layer), int(head)): value
        for layer, heads in told.items()
        for head, value in heads.items()
    }


def _ends(pair: Sequence[int]) -> tuple[int, int]:
    first, last = pair
    return first, last


def _attention(facts: Mapping[str, Any], arrays: Mapping[str, Array]) -> Attention:
    maps: dict[Head, Array] = {}
    stats: dict[int, Array] = {}
    edges: dict[Head, dict[str, Array]] = {}
    dominance: dict[Head, dict[str, Array]] = {}
    for name, array in arrays.items():
        match name.split("."):
            case ["attention", layer, head]:
                maps[int(layer), int(head)] = array
            case ["stats", layer]:
                stats[int(layer)] = array
            case ["attention", layer, head, part]:
                edges.setdefault((int(layer), int(head)), {})[part] = array
            case ["dominance", layer, head, part]:
                dominance.setdefault((int(layer), int(head)), {})[part] = array
    return Attention(
        facts["form"],
        facts["path"],
        {name: value for name, value in facts.items() if name not in ("form", "path")},
        maps=dict(sorted(maps.items())),
        edges={head: Edges(**parts) for head, parts in sorted(edges.items())},
        stats=dict(sorted(stats.items())),
        dominance={head: Dominance(**parts) for head, parts in sorted(dominance.items())},
        wins=arrays.get("dominance.wins"),
        rollout=arrays.get("rollout"),
    )
