"""What POST /v1/encode answers, as JSON Schema."""

from collections.abc import Mapping
from typing import Any

from model.statistics import FIELDS

_ENCODED = {"$ref": "#/components/schemas/EncodedArray"}


def numbers(about: str, axes: int, number: str | list[str] = "number") -> dict[str, Any]:
    """Nested lists, or with base64 the whole array at once."""
    lists: dict[str, Any] = {"type": number}
    for _ in range(axes):
        lists = {"type": "array", "items": lists}
    return {"description": about, "anyOf": [lists, _ENCODED]}


def closed(optional: Mapping[str, Any] | None = None, **fields: Any) -> dict[str, Any]:
    """An object of these fields and no other."""
    return {
        "type": "object",
        "required": list(fields),
        "properties": {**fields, **(optional or {})},
        "additionalProperties": False,
    }


def _form(form: str, **fields: dict[str, Any]) -> dict[str, Any]:
    """An attention answer of one form."""
    units = {"axis": _AXIS, "spans": _SPANS}
    return closed(units, form={"const": form}, path={"enum": ["fused", "exact"]}, **fields)


def _by_head(of_head: dict[str, Any]) -> dict[str, Any]:
    heads = {"type": "object", "additionalProperties": of_head}
    return {
        "type": "object",
        "description": "by layer, then head, both counted from 0",
        "additionalProperties": heads,
    }


_UNITS = {"type": "array", "items": {"type": "integer"}}
_AXIS = {**_UNITS, "description": "the units that rows and columns are, where some are left out"}
_SPANS = {
    "type": "array",
    "items": {"type": "array", "items": {"type": "integer"}, "minItems": 2, "maxItems": 2},
    "description": "the tokens of every unit, [first, last), where some are of several",
}
_EDGES = closed(
    keys=numbers("(units, k) the strongest, strongest first", 2, "integer"),
    values=numbers("(units, k) their weights", 2),
    rest=numbers("(units,) what a row holds beyond them", 1),
)
_RECORD = closed(
    token={"type": "integer"},
    dominant={"type": "integer"},
    share={"type": "number"},
    own={"type": "number"},
)
_RECORDS = {
    "anyOf": [
        {"type": "array", "items": _RECORD},
        closed(**dict.fromkeys(_RECORD["required"], _ENCODED)),
    ],
}
_FIELDS = {"type": "array", "items": {"enum": list(FIELDS)}}
_OF_HEAD = numbers("as many numbers as fields; null where none", 1, ["number", "null"])
ATTENTION = {
    "AttentionFull": _form("full", maps=_by_head(numbers("(query, key) probabilities", 2))),
    "AttentionRows": _form(
        "rows", rows=_UNITS, maps=_by_head(numbers("(rows, key) probabilities", 2))
    ),
    "AttentionTop": _form("top", edges=_by_head(_EDGES)),
    "AttentionBlocks": _form(
        "blocks", maps=_by_head(numbers("(block, block): sums over keys, means over queries", 2))
    ),
    "AttentionStats": _form("stats", stats=closed(fields=_FIELDS, values=_by_head(_OF_HEAD))),
    "AttentionDominance": _form(
        "dominance",
        dominance=_by_head(_RECORDS),
        wins=numbers("(units,) how many others each dominates, over all heads", 1, "integer"),
    ),
    "AttentionRollout": _form("rollout", map=numbers("(query, key) through all layers asked", 2)),
}
TOLD = {
    "tokens": {"type": ["array", "null"], "items": {"type": ["string", "null"]}},
    "token_ids": {"type": ["array", "null"], "items": {"type": "integer"}},
    "offsets": {"type": ["array", "null"], "description": "characters, [start, end)"},
    "words": {"type": ["array", "null"], "items": {"type": ["integer", "null"]}},
    "segments": {"type": "array", "items": {"type": "integer"}},
    "special": {"type": ["array", "null"], "items": {"type": "boolean"}},
    "truncated": {"type": "boolean"},
    "length": {"type": "integer", "description": "tokens before truncation"},
}
ITEM = {
    "type": "object",
    "required": ["truncated", "length"],
    "properties": {
        **TOLD,
        "pooled": numbers("(width,)", 1),
        "token_vectors": numbers("(tokens, width)", 2),
        "layers": {
            "type": "object",
            "description": "by hidden state",
            "additionalProperties": numbers("(tokens, width)", 2),
        },
        "attention": {"oneOf": [{"$ref": f"#/components/schemas/{name}"} for name in ATTENTION]},
    },
}
ANSWER = {
    "type": "object",
    "required": ["model", "weights", "dtype", "numerics", "data", "usage"],
    "properties": {
        "model": {"type": "string"},
        "weights": {"type": "string", "description": "digest of all that decides about a vector"},
        "dtype": {"enum": ["float32", "float16"]},
        "numerics": {"type": "string", "description": "equal weights, numerics, input: equal bits"},
        "data": {"type": "array", "items": ITEM},
        "usage": {
            "type": "object",
            "required": ["tokens", "attention_bytes", "queue_ms", "compute_ms"],
            "properties": {
                "tokens": {"type": "integer"},
                "attention_bytes": {"type": "integer"},
                "queue_ms": {"type": "number"},
                "compute_ms": {"type": "number"},
            },
        },
    },
}
PRICED = closed(
    tokens={"type": "integer"},
    attention_bytes={"type": "integer", "description": "of the raw arrays"},
    flops={"type": "integer", "description": "a product and its sum are two"},
    admitted={"type": "boolean", "description": "whether it would be answered now"},
    code={
        "enum": [
            None,
            "attention_too_large",
            "overloaded",
            "deadline_unreachable",
            "deadline_exceeded",
        ]
    },
    retry_after_s={"type": ["integer", "null"]},
)
ENCODED_ARRAY = closed(
    shape={"type": "array", "items": {"type": "integer"}},
    dtype={"enum": ["float32", "float16", "int32"]},
    data={"type": "string", "description": "base64 of the little-endian bytes"},
)
ANSWERS = {"Answer": ANSWER, "Priced": PRICED, **ATTENTION, "EncodedArray": ENCODED_ARRAY}
