"""GET /openapi.json: the API as a document, made from the wire's own models."""

from functools import cache
from importlib.metadata import version
from typing import Any

from pydantic.json_schema import models_json_schema

from service import inference_shapes, openapi_foreign
from service.answer import JSON, SAFETENSORS
from service.dialects.inference_wire import InferRequest
from service.dialects.wire import REQUESTS
from service.metrics import OPENMETRICS
from service.refusals import BY_HEADERS, MEDIA_TYPE, REFUSALS
from service.schema import EncodeRequest
from service.shapes import ANSWERS, TOLD
from service.survey import SCHEMA as HEADS
from service.teaching import AttendRequest, ExplainRequest, MixRequest

EXAMPLE = {"inputs": ["All is well"], "attention": {"layers": [0], "heads": [5]}}
WELL = {  # Z_well = 0.6 V_All + 0.4 V_well
    "scores": [[0.6, 0.0, 0.4]],
    "probabilities": True,
    "value": [[10.0, 0.0], [1.0, 1.0], [0.0, 10.0]],
}
STEPS = {"text": "All is well", "layer": 0}

SHOWN = (  # one of every form
    {"layers": [5], "heads": [11]},
    {"form": "rows", "rows": [3], "heads": {"0": [5]}, "level": "word"},
    {"form": "top", "k": 2, "specials": "drop", "dtype": "float16"},
    {"form": "blocks", "size": 2},
    {"form": "stats"},
    {"form": "dominance", "weight": "probability"},
    {"form": "rollout", "specials": "renormalize"},
)
GATED = {"inputs": ["All is well"], "gates": [{"layer": 5, "head": 11, "scale": 0.0}]}
FILE = {
    "type": "string",
    "format": "binary",
    "description": "a safetensors file: the JSON in __metadata__, under headlight; an input may be "
    '{"embeddings": {"tensor": name}} (F32 or F16, tokens x embedding_width) or {"token_ids": '
    '{"tensor": name}}, with "token_type_ids" so or not (I64 or I32, tokens); each tensor is named '
    "once",
}
ATTENDED = {
    "type": "object",
    "required": ["probabilities", "heads", "concat"],
    "properties": {
        "probabilities": {"type": "array", "description": "(heads, query, key) numbers"},
        "heads": {"type": "array", "description": "(heads, query, d / heads) numbers: Z_1 .. Z_h"},
        "concat": {"type": "array", "description": "(query, d) numbers"},
    },
}
ROWS, MAPS = "(tokens, width) numbers", "(heads, query, key) numbers"
BY_HEAD = "(heads, tokens, head) numbers"
STEP = {
    "x": f"{ROWS}: what enters the layer",
    "entered": f"{ROWS}, of pre-norm families alone: LayerNorm(x)",
    "q": BY_HEAD,
    "k": BY_HEAD,
    "v": BY_HEAD,
    "scores": f"{MAPS}; null beyond a window",
    "probabilities": MAPS,
    "z": f"{BY_HEAD}: Z_1 .. Z_h",
    "concat": ROWS,
    "projected": f"{ROWS}: after W_O",
    "normed": f"{ROWS}: LayerNorm(x + projected)",
    "feed_forward": ROWS,
    "output": f"{ROWS}: what the next layer reads",
}
EXPLAINED = {
    "type": "object",
    "required": ["model", "weights", "numerics", "layer", "tokens", "shapes"],
    "properties": {
        **{name: {"type": "string"} for name in ("model", "weights", "dtype", "numerics")},
        "layer": {"type": "integer"},
        **TOLD,
        "shapes": {"type": "object", "description": "every step's shape by its name"},
        **{name: {"type": "array", "description": about} for name, about in STEP.items()},
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
        "bytes": {"type": "integer", "description": "of attention_too_large: of the raw arrays"},
        "limit": {"type": "integer"},
        "length": {"type": "integer"},
        "layer": {
            "type": "integer",
            "description": "of nonfinite_output: the first hidden state that is not; -1: the last",
        },
        "dtype": {"type": "string"},
        "estimate_ms": {
            "type": "integer",
            "description": "of deadline_unreachable: what it takes at the best speed seen",
        },
        "deadline_ms": {"type": "integer", "description": "of deadline_unreachable"},
        "prompts": {
            "type": "array",
            "items": {"type": "string"},
            "description": "of prompt_not_found: the names there are",
        },
        "fits": {
            "type": "array",
            "items": {"type": "object"},
            "description": "changes to the request, cheapest first, each of which would fit",
        },
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
_NAMES = ("model", "weights", "dtype", "numerics", "family", "pooling", "device")
_COUNTS = ("layers", "heads", "width", "embedding_width", "max_tokens")
_INFO = {
    **{name: {"type": "string"} for name in _NAMES},
    **{name: {"type": "integer"} for name in _COUNTS},
    "revision": {"type": ["string", "null"], "description": "commit of the hub"},
    "trained": {"type": "boolean"},
    "prompts": {"type": "array", "items": {"type": "string"}, "description": "their names"},
    "default_prompt_name": {"type": ["string", "null"], "description": "where none is given"},
    "limits": {"type": "object", "additionalProperties": {"type": "number"}},
    "versions": {"type": "object", "additionalProperties": {"type": "string"}},
    **openapi_foreign.INFO,
}
INFO = {
    "type": "object",
    "description": "the replica's own, then what clients of other APIs look for",
    "required": list(_INFO),
    "properties": _INFO,
}
READING = (*BY_HEADERS, "method_not_allowed", "internal", "not_ready")
READ = {
    "/live": ("The process answers", JSON),
    "/ready": ("The forward path lately proved itself", JSON),
    "/info": ("The model and its limits", JSON, "Info"),
}


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    wire = (EncodeRequest, AttendRequest, MixRequest, ExplainRequest, InferRequest, *REQUESTS)
    _, schemas = models_json_schema(
        [(model, "validation") for model in wire], ref_template="#/components/schemas/{model}"
    )
    asked: dict[str, Any] = schemas["$defs"]
    asked["EncodeRequest"]["examples"] = [EXAMPLE, GATED]
    asked["Attention"]["examples"] = list(SHOWN)
    answers = {
        **ANSWERS,
        **openapi_foreign.ANSWERS,
        "Attended": ATTENDED,
        "Explained": EXPLAINED,
        "Heads": HEADS,
        "Info": INFO,
        **inference_shapes.SCHEMAS,
    }
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headlight", "version": version("headlight")},
        "paths": {
            "/v1/encode": {"post": _encode()},
            "/v1/attend": {"post": _attend()},
            "/v1/explain": {"post": _explain()},
            "/v1/heads": {"get": _heads()},
            **{path: {"get": _get(*about)} for path, about in READ.items()},
            "/metrics": {"get": _metrics()},
            **openapi_foreign.paths(),
            **inference_shapes.paths(),
        },
        "components": {"schemas": {**asked, "Problem": PROBLEM, **answers}},
    }


def _encode() -> dict[str, Any]:
    summary = "Encode texts, token ids or embeddings, with the attention asked for"
    described = _post(summary, _named("EncodeRequest"), EXAMPLE, "Answer")
    answered = described["responses"]["200"]["content"]
    answered[JSON]["schema"] = {"oneOf": [_named("Answer"), _named("Priced")]}
    answered[SAFETENSORS] = {"schema": {"type": "string", "format": "binary"}}
    described["requestBody"]["content"][SAFETENSORS] = {"schema": FILE}
    described["parameters"] = [
        {
            "name": "dry_run",
            "in": "query",
            "description": "true computes nothing and answers what it would cost",
            "schema": {"type": "boolean", "default": False},
        }
    ]
    return described


def _attend() -> dict[str, Any]:
    summary = "The bare mechanism: queries, keys and values, or scores and values, mixed by head"
    forms = {"oneOf": [_named("AttendRequest"), _named("MixRequest")]}
    return _post(summary, forms, WELL, "Attended")


def _explain() -> dict[str, Any]:
    summary = "One text through one layer, every step of it"
    return _post(summary, _named("ExplainRequest"), STEPS, "Explained")


def _heads() -> dict[str, Any]:
    described = _get("What each head of the model does, as measured", JSON)
    described["responses"]["200"]["content"][JSON]["schema"] = _named("Heads")
    described["responses"] |= _refused(
        *READING, "overloaded", "deadline_unreachable", "deadline_exceeded"
    )
    return described


def _metrics() -> dict[str, Any]:
    described = _get("Every replica's metrics, as Prometheus text or OpenMetrics", "text/plain")
    described["responses"]["200"]["content"][OPENMETRICS.partition(";")[0]] = {}
    return described


def _post(
    summary: str, asked: dict[str, Any], example: dict[str, Any], answer: str
) -> dict[str, Any]:
    """A route that takes JSON and gives JSON."""
    request = {"schema": asked, "example": example}
    answered = {"description": summary, "content": {JSON: {"schema": _named(answer)}}}
    return {
        "summary": summary,
        "requestBody": {"required": True, "content": {JSON: request}},
        "responses": {"200": answered, **_refused()},
    }


def _named(schema: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{schema}"}


def _get(summary: str, media_type: str, answer: str | None = None) -> dict[str, Any]:
    schema = {} if answer is None else {"schema": _named(answer)}
    answered = {"description": summary, "content": {media_type: schema}}
    return {"summary": summary, "responses": {"200": answered, **_refused(*READING)}}


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
