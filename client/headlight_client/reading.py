"""Safetensors answers of the service -> typed arrays: the classes of answers.py."""

from collections import defaultdict
from collections.abc import Mapping
from typing import Any

import numpy as np

from headlight_client.answers import (
    Answer,
    Arrays,
    Attention,
    Compared,
    Dominance,
    Edges,
    Encoded,
    Head,
    Item,
    Kind,
    Pairs,
    Score,
    Scored,
    Shown,
    Similar,
    Span,
    Sparse,
    Vectors,
    Why,
)
from headlight_client.errors import expect_format
from headlight_client.formats import Array, read_json, read_safetensors, to_pair

METADATA_ENTRY = "headlight"  # key of the metadata that holds the answer's JSON
# arrays of a Similar
COMPARISON_ARRAYS = (
    *("matrix", "left_share", "right_share", "left_bias", "right_bias"),
    *("left_worth", "right_worth"),
    *("left_heads", "right_heads", "left_rest", "right_rest", "worth"),
)
SCORE_PARTS = ("word", "position", "rest")  # of a query and of a key in layer 0


@expect_format()
def read_answer(kind: type[Kind], body: bytes) -> Kind:
    """Read a safetensors answer as Encoded, Compared or Scored.

    Raises:
        NoAnswer: the body is not in that format.
    """
    arrays, metadata = read_safetensors(body)
    by_input: dict[int, dict[str, Array]] = defaultdict(dict)
    for name, array in arrays.items():
        index, _, own = name.partition(".")
        by_input[int(index)][own] = array
    answer = read_json(metadata[METADATA_ENTRY])
    return kind(**Answer.read_fields(answer), **READERS[kind](answer, by_input))


def _read_encoded(answer: Mapping[str, Any], arrays: Mapping[int, Arrays]) -> dict[str, Any]:
    """Return the fields of Encoded, from the answer's JSON and the arrays by input."""
    items = [_read_item(facts, arrays[index]) for index, facts in enumerate(answer["data"])]
    pooled = [own["pooled"] for _, own in sorted(arrays.items()) if "pooled" in own]
    return {
        "dtype": answer["dtype"],
        "items": items,
        "pooled": np.stack(pooled) if pooled else None,
        "space": answer.get("space"),
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
        Span(to_pair(span["characters"]), to_pair(span["tokens"]), to_pair(span["extent"]), vector)
        for span, vector in zip(own.pop("spans", ()), arrays.get("spans", ()), strict=True)
    ]
    layers = {
        int(name.removeprefix("layers.")): array
        for name, array in arrays.items()
        if name.startswith("layers.")
    }
    if own.get("offsets"):
        own["offsets"] = [*map(to_pair, own["offsets"])]
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
    maps: dict[Shown, Array] = {}
    stats: dict[Head, dict[str, float]] = {}
    edges: dict[Shown, dict[str, Array]] = defaultdict(dict)
    # by name, then head: the arrays of each head that has several
    parts: dict[str, dict[Head, dict[str, Array]]] = defaultdict(lambda: defaultdict(dict))
    for name, array in arrays.items():
        match name.split("."):
            case ["attention", layer, head]:
                maps[_read_place(layer, head)] = array
            case ["attention", layer, head, part]:
                edges[_read_place(layer, head)][part] = array
            case ["stats", layer]:
                names = facts["stats"]
                for head, row in zip(names["heads"][layer], array.tolist(), strict=True):
                    stats[int(layer), head] = dict(zip(names["fields"], row, strict=True))
            case [kind, layer, head, part]:
                parts[kind][int(layer), int(head)][part] = array
    return Attention(
        facts["form"],
        facts["path"],
        {name: value for name, value in facts.items() if name not in ("form", "path", "stats")},
        maps=dict(sorted(maps.items())),
        edges={head: Edges(**own) for head, own in sorted(edges.items())},
        mean=arrays.get("mean"),
        stats=dict(sorted(stats.items())),
        dominance={head: Dominance(**own) for head, own in sorted(parts["dominance"].items())},
        wins=arrays.get("dominance.wins"),
        rollout=arrays.get("rollout"),
        why={
            head: Why(_name_parts(head[0], tokens, own["share"]), facts["rows"], **own)
            for head, own in sorted(parts["why"].items())
        },
    )


def _read_place(layer: str, head: str) -> Shown:
    """Return which map of which layer an array is of."""
    return int(layer), "mean" if head == "mean" else int(head)


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
