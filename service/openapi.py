"""GET /openapi.json: the API as a document, made from the wire's own models."""

from functools import cache
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from service.answer import JSON, SAFETENSORS
from service.refusals import MEDIA_TYPE, REFUSALS
from service.schema import EncodeRequest

EXAMPLE = {"inputs": ["All is well"], "attention": {"layers": [0], "heads": [5]}}

NUMBERS = {"type": "array", "description": "nested lists of numbers, or with encoding base64"}
ITEM = {
    "type": "object",
    "required": ["truncated", "length"],
    "properties": {
        "tokens": {"type": ["array", "null"], "items": {"type": ["string", "null"]}},
        "token_ids": {"type": ["array", "null"], "items": {"type": "integer"}},
        "offsets": {"type": ["array", "null"], "description": "characters, [start, end)"},
        "words": {"type": ["array", "null"], "items": {"type": ["integer", "null"]}},
        "segments": {"type": "array", "items": {"type": "integer"}},
        "special": {"type": ["array", "null"], "items": {"type": "boolean"}},
        "truncated": {"type": "boolean"},
        "length": {"type": "integer", "description": "tokens before truncation"},
        "pooled": {"description": "(width,) numbers"},
        "token_vectors": {"description": "(tokens, width) numbers"},
        "layers": {"type": "object", "description": "(tokens, width) numbers by hidden state"},
        "attention": {
            "type": "object",
            "required": ["form", "path", "maps"],
            "properties": {
                "form": {"const": "full"},
                "path": {"enum": ["fused", "exact"]},
                "maps": {
                    "type": "object",
                    "description": "(query, key) probabilities by layer, then head",
                },
            },
        },
    },
}
ANSWER = {
    "type": "object",
    "required": ["model", "weights", "dtype", "numerics", "data", "usage"],
    "properties": {
        "model": {"type": "string"},
        "weights": {"type": "string", "description": "digest of weights, config and tokenizer"},
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
PROBLEM = {
    "type": "object",
    "required": ["type", "title", "status", "code", "detail", "request_id"],
    "properties": {
        "type": {"type": "string"},
        "title": {"type": "string"},
        "status": {"type": "integer"},
        "code": {"enum": sorted(REFUSALS)},
        "detail": {"type": "string"},
        "request_id": {"type": "string"},
        "errors": {
            "type": "array",
            "items": {
                "type": "object",
                "required": ["loc", "code"],
                "properties": {
                    "loc": {"type": "array", "items": {"type": ["string", "integer"]}},
                    "code": {"type": "string"},
                },
            },
        },
    },
}
READ = {
    "/live": ("The process answers", JSON),
    "/ready": ("The forward path lately proved itself", JSON),
    "/info": ("The model and its limits", JSON),
    "/metrics": ("Every replica's metrics, as Prometheus text", "text/plain"),
}


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    _, schemas = models_json_schema(
        [(EncodeRequest, "validation")], ref_template="#/components/schemas/{model}"
    )
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headlight", "version": version("headlight")},
        "paths": {
            "/v1/encode": {"post": _encode()},
            **{path: {"get": _get(*about)} for path, about in READ.items()},
        },
        "components": {"schemas": {**schemas["$defs"], "Problem": PROBLEM, "Answer": ANSWER}},
    }


def _encode() -> dict[str, Any]:
    request = {"schema": {"$ref": "#/components/schemas/EncodeRequest"}, "example": EXAMPLE}
    answered = {
        JSON: {"schema": {"$ref": "#/components/schemas/Answer"}},
        SAFETENSORS: {"schema": {"type": "string", "format": "binary"}},
    }
    return {
        "summary": "Encode texts, token ids or embeddings, with the attention asked for",
        "requestBody": {"required": True, "content": {JSON: request}},
        "responses": {
            "200": {"description": "The encodings", "content": answered},
            **_refused(),
        },
    }


def _get(summary: str, media_type: str) -> dict[str, Any]:
    answered = {"description": summary, "content": {media_type: {}}}
    return {"summary": summary, "responses": {"200": answered, **_refused("not_ready")}}


def _refused(*only: str) -> dict[str, Any]:
    """The refusals by status, each with the codes it may carry."""
    content = {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/Problem"}}}
    codes: dict[int, list[str]] = {}
    for code in only or REFUSALS:
        codes.setdefault(REFUSALS[code].status, []).append(code)
    return {
        str(status): {"description": ", ".join(names), "content": content}
        for status, names in sorted(codes.items())
    }
