"""Safetensors answers of the service -> typed arrays.

POST /v1/encode      Encoded, with an Item for each input
POST /v1/similarity  Compared, with a Similar for each text on the right
POST /v1/maxsim      Scored, with a Score for each document
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from itertools import chain
from typing import Any, NamedTuple, Self, TypeVar

import numpy as np

from headlight_client.errors import ModelChanged, NoAnswer
from headlight_client.formats import Array, read_json, read_safetensors

METADATA_ENTRY = "headlight"  # key of the metadata that holds the answer's JSON
ORIGIN_FIELDS = ("model", "weights", "numerics")  # of an answer: what computed it
# arrays of a Similar
COMPARISON_ARRAYS = (
    *("matrix", "left_share", "right_share", "left_worth", "right_worth"),
    *("left_heads", "right_heads", "left_rest", "right_rest", "worth"),
)
SCORE_PARTS = ("word", "position", "rest")  # of a query and of a key in layer 0
Head = tuple[int, int]  # layer and head, both counted from 0
Arrays = Mapping[str, Array]  # of one input, by name


class Edges(NamedTuple):
    """Each row's strongest keys and their weights, (units, k), and all others' sum, (units,)."""

    keys: Array
    values: Array
    rest: Array


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


class Why(NamedTuple):
    """The parts of query and key that a head's scores come from.

    Args:
        parts: their names: in layer 0 those of both sides, above it the key's.
        rows: the queries shown.
        share: of how all rows' scores vary, (query part, key part) in layer 0, (key part,) above.
        scores: less their row's mean, (row, query part, key part, key) or (row, key part, key);
            NaN for a key that the row may not see.
    """

    parts: list[str | None]
    rows: list[int]
    share: Array
    scores: Array


@dataclass(frozen=True, slots=True)
class Attention:
    """The attention of one input, in the requested form; the fields of other forms are empty.

    Args:
        form: full, rows, blocks, top, stats, dominance, rollout or why.
        path: how maps were computed, "fused" or "exact".
        facts: other fields of the answer: axis, spans, rows.
        maps: of full, rows and blocks: (query, key) by head.
        edges: of top, by head.
        stats: of stats, by head: each statistic by its name; NaN with nothing to average over.
        dominance: of dominance, by head.
        wins: of dominance: how many rows each unit dominates, (units,).
        rollout: of rollout: (query, key).
        why: of why, by head.
    """

    form: str
    path: str
    facts: Mapping[str, Any]
    maps: dict[Head, Array] = field(default_factory=dict)
    edges: dict[Head, Edges] = field(default_factory=dict)
    stats: dict[Head, dict[str, float]] = field(default_factory=dict)
    dominance: dict[Head, Dominance] = field(default_factory=dict)
    wins: Array | None = None
    rollout: Array | None = None
    why: dict[Head, Why] = field(default_factory=dict)


class Sparse(NamedTuple):
    """A sparse vector: ascending token ids and their weights, (ids,) each, and their tokens."""

    indices: Array
    values: Array
    tokens: list[str | None]


class Vectors(NamedTuple):
    """A vector for each token kept, (kept, size), and the tokens' places, (kept,)."""

    vectors: Array
    kept: Array


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


class Pairs(NamedTuple):
    """The strongest pairs: units of the left and the right text, and shares, (pairs,) each."""

    left: Array
    right: Array
    shares: Array


@dataclass(frozen=True, slots=True)
class Similar:
    """One text that the left one was compared with; the fields of other forms are None.

    Args:
        score: the cosine.
        facts: other fields of the answer: tokens, rest, axis, spans and more.
        matrix: the share of each pair of units in the score, (left, right).
        pairs: those of the largest shares.
        left_share, right_share: of each unit in the score, (left,) and (right,).
        left_worth, right_worth: the score less that without each unit, (left,) and (right,).
        left_heads, right_heads: what each head of each text's pass adds, (layers, heads).
        left_rest, right_rest: what else makes the score with a layer's heads, (layers,).
        worth: how fast the score falls as a head is scaled down in both texts, (layers, heads).
        change: of a sweep, by head: the change of the score.
        share: of a sweep, by head: the change of the share of its pair (`sweep_pair`).
    """

    score: float
    facts: Mapping[str, Any]
    matrix: Array | None
    pairs: Pairs | None
    left_share: Array | None
    right_share: Array | None
    left_worth: Array | None
    right_worth: Array | None
    left_heads: Array | None
    right_heads: Array | None
    left_rest: Array | None
    right_rest: Array | None
    worth: Array | None
    change: dict[Head, float]
    share: dict[Head, float]


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Encoded(Answer):
    """The answers to some inputs, in their order.

    Args:
        dtype: of pooled, token vectors and layers.
        items: one for each input.
        pooled: (inputs, width), or None where it was not requested.
    """

    dtype: str
    items: list[Item]
    pooled: Array | None


@dataclass(frozen=True, slots=True, kw_only=True)
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Scored(Answer):
    """The documents, best first, and the query's tokens."""

    query: Item
    results: list[Score]


Kind = TypeVar("Kind", bound=Answer)  # of answer


def read_answer(kind: type[Kind], body: bytes) -> Kind:
    """Read a safetensors answer as Encoded, Compared or Scored.

    Raises:
        NoAnswer: the body is not in that format.
    """
    try:
        arrays, metadata = read_safetensors(body)
        by_input: dict[int, dict[str, Array]] = defaultdict(dict)
        for name, array in arrays.items():
            index, _, own = name.partition(".")
            by_input[int(index)][own] = array
        answer = read_json(metadata[METADATA_ENTRY])
        made = {name: answer[name] for name in ORIGIN_FIELDS}
        return kind(**made, usage=Usage(**answer["usage"]), **READERS[kind](answer, by_input))
    except (LookupError, OverflowError, TypeError, ValueError) as error:
        raise NoAnswer("the answer is not in Headlight's format") from error


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


def _read_encoded(answer: Mapping[str, Any], arrays: Mapping[int, Arrays]) -> dict[str, Any]:
    """Return the fields of Encoded, from the answer's JSON and the arrays by input."""
    items = [_read_item(facts, arrays[index]) for index, facts in enumerate(answer["data"])]
    pooled = [own["pooled"] for _, own in sorted(arrays.items()) if "pooled" in own]
    return {
        "dtype": answer["dtype"],
        "items": items,
        "pooled": np.stack(pooled) if pooled else None,
    }


def _read_compared(answer: Mapping[str, Any], arrays: Mapping[int, Arrays]) -> dict[str, Any]:
    """Return the fields of Compared; as `_read_encoded`."""
    right = [_read_similar(facts, arrays[index]) for index, facts in enumerate(answer["right"])]
    return {"dtype": answer["dtype"], "left": answer["left"], "right": right}


def _read_scored(answer: Mapping[str, Any], arrays: Mapping[int, Arrays]) -> dict[str, Any]:
    """Return the fields of Scored; as `_read_encoded`."""
    results = [_read_score(facts, arrays[facts["index"]]) for facts in answer["results"]]
    return {"query": _read_item(answer["query"], {}), "results": results}


# kind of answer -> the function that reads its fields
READERS = {Encoded: _read_encoded, Compared: _read_compared, Scored: _read_scored}


def _read_item(facts: Mapping[str, Any], arrays: Arrays) -> Item:
    """Read one input's part of an answer, from its JSON and its arrays."""
    own = dict(facts)
    attention, sparse = own.pop("attention", None), own.pop("sparse", None)
    sweep = own.pop("sweep", {})
    spans = [
        Span(
            _to_pair(span["characters"]), _to_pair(span["tokens"]), _to_pair(span["extent"]), vector
        )
        for span, vector in zip(own.pop("spans", ()), arrays.get("spans", ()), strict=True)
    ]
    layers = {
        int(name.removeprefix("layers.")): array
        for name, array in arrays.items()
        if name.startswith("layers.")
    }
    if own.get("offsets"):
        own["offsets"] = [*map(_to_pair, own["offsets"])]
    if attention:
        own["attention"] = _read_attention(attention, arrays, own.get("tokens"))
    if sparse:
        columns = arrays["sparse.indices"], arrays["sparse.values"]
        own["sparse"] = Sparse(*columns, sparse["tokens"])
    if "vectors" in arrays:
        own["vectors"] = Vectors(arrays["vectors"], arrays["kept"])
    return Item(
        **own,
        cosine=_by_head(sweep.get("cosine", {})),
        logits=_by_head(sweep.get("logits", {})),
        token_vectors=arrays.get("tokens"),
        layers=dict(sorted(layers.items())),
        spans=spans,
    )


def _read_similar(facts: Mapping[str, Any], arrays: Arrays) -> Similar:
    """Read the part of one text on the right, from its JSON and its arrays."""
    pairs = [array for name, array in arrays.items() if name.startswith("pairs.")]
    return Similar(
        score=facts["score"],
        facts={name: value for name, value in facts.items() if name not in ("score", "sweep")},
        pairs=Pairs(*(arrays[f"pairs.{name}"] for name in Pairs._fields)) if pairs else None,
        change=_by_head(facts.get("sweep", {}).get("change", {})),
        share=_by_head(facts.get("sweep", {}).get("share", {})),
        **{name: arrays.get(name) for name in COMPARISON_ARRAYS},
    )


def _read_score(facts: Mapping[str, Any], arrays: Arrays) -> Score:
    """Read one document's part of an answer, from its JSON and its arrays."""
    own = dict(facts)
    index, score = own.pop("index"), own.pop("score")
    parts = {name: arrays[f"matches.{name}"] for name in ("query", "document", "values")}
    return Score(index, score, **parts, text=_read_item(own, {}))


def _read_attention(
    facts: Mapping[str, Any], arrays: Arrays, tokens: list[str | None] | None
) -> Attention:
    """Read one input's attention, from its JSON and all arrays of the input, by their names."""
    maps: dict[Head, Array] = {}
    stats: dict[Head, dict[str, float]] = {}
    edges: dict[Head, dict[str, Array]] = defaultdict(dict)
    dominance: dict[Head, dict[str, Array]] = defaultdict(dict)
    why: dict[Head, dict[str, Array]] = defaultdict(dict)
    for name, array in arrays.items():
        match name.split("."):
            case ["attention", layer, head]:
                maps[int(layer), int(head)] = array
            case ["stats", layer]:
                names = facts["stats"]
                for head, row in zip(names["heads"][layer], array.tolist(), strict=True):
                    stats[int(layer), head] = dict(zip(names["fields"], row, strict=True))
            case ["attention", layer, head, part]:
                edges[int(layer), int(head)][part] = array
            case ["dominance", layer, head, part]:
                dominance[int(layer), int(head)][part] = array
            case ["why", layer, head, part]:
                why[int(layer), int(head)][part] = array
    return Attention(
        facts["form"],
        facts["path"],
        {name: value for name, value in facts.items() if name not in ("form", "path", "stats")},
        maps=dict(sorted(maps.items())),
        edges={head: Edges(**parts) for head, parts in sorted(edges.items())},
        stats=dict(sorted(stats.items())),
        dominance={head: Dominance(**parts) for head, parts in sorted(dominance.items())},
        wins=arrays.get("dominance.wins"),
        rollout=arrays.get("rollout"),
        why={
            head: Why(_name_parts(head[0], tokens, parts["share"]), facts["rows"], **parts)
            for head, parts in sorted(why.items())
        },
    )


def _name_parts(layer: int, tokens: list[str | None] | None, share: Array) -> list[str | None]:
    """Return the names of the parts of scores in a layer; None for tokens of embeddings."""
    if layer == 0:
        return [*SCORE_PARTS]
    return [*(tokens or [None] * (len(share) - 1)), "bias"]


def _by_head(nested: Mapping[str, Mapping[str, Any]]) -> dict[Head, Any]:
    """Return values by (layer, head) from those nested by layer and head."""
    return {
        (int(layer), int(head)): value
        for layer, heads in nested.items()
        for head, value in heads.items()
    }


def _to_pair(ends: Iterable[int]) -> tuple[int, int]:
    """Return a JSON list of two numbers as a tuple."""
    first, last = ends
    return first, last
