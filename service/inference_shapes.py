"""The routes of the Open Inference Protocol, as OpenAPI describes them."""

from typing import Any

from service.answer import INFERENCE_HEADER, JSON, OCTETS
from service.dialects.inference_protocol import status
from service.dialects.inference_wire import OUTPUTS
from service.refusals import BY_HEADERS, REFUSALS
from service.shapes import closed

READ = (*BY_HEADERS, "model_not_found", "method_not_allowed", "internal", "not_ready")
NEVER = frozenset(  # answered to an encoding: what only other inputs and other forms can do
    ("invalid_safetensors", "tensor_unknown", "tensor_unused", "bad_base64", "not_acceptable")
)
EXAMPLE = {
    "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["All is well"]}],
    "outputs": [{"name": "pooled"}, {"name": "attention"}],
    "parameters": {"attention_layers": "0", "attention_heads": "5"},
}
TOKENS = {
    "id": "7",
    "inputs": [
        {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [101, 2092, 102]},
        {"name": "attention_mask", "shape": [1, 3], "datatype": "INT64", "data": [1, 1, 1]},
    ],
    "outputs": [{"name": "tokens", "parameters": {"binary_data": True}}],
}
ABOUT = """\
Inputs are exactly one of `text` (BYTES [B] or [B, 1]), `input_ids` (INT64 [B, T], with
`token_type_ids` beside them or not) and `inputs_embeds` (FP32 or FP16 [B, T, embedding_width]);
the last two take an `attention_mask` (INT64, INT32 or BOOL [B, T]) with zeros only at the end.
Outputs are `pooled` (FP32 [B, width], the one where none is named), `tokens` (FP32 [B, T, width]),
`layers` (FP32 [B, n, T, width], hidden states in the model's order), `attention` (FP32
[B, L, H, T, T]) and `lengths` (INT64 [B]), which comes with the three that are padded with zeros to
the longest sequence. Of Triton's parameters, `timeout` (microseconds) shortens the deadline, any
`priority` is taken and is one level here, and a `sequence_id` is refused: no state is kept between
requests. With the header, the JSON's bytes come first, those of tensors follow, little-endian."""

TEXT, INTEGERS = {"type": "string"}, {"type": "array", "items": {"type": "integer"}}


def _listed(one: dict[str, Any]) -> dict[str, Any]:
    return {"type": "array", "items": one}


_DESCRIBED = _listed(closed(name=TEXT, datatype=TEXT, shape=INTEGERS))
_TENSOR = closed(
    {
        "data": {"type": "array", "items": {"type": "number"}, "description": "row-major, flat"},
        "parameters": closed(binary_data_size={"type": "integer"}),
    },
    name={"enum": list(OUTPUTS)},
    shape=INTEGERS,
    datatype={"enum": ["FP32", "INT64"]},
)
SCHEMAS = {
    "InferAnswer": closed(
        {"id": TEXT}, model_name=TEXT, model_version=TEXT, outputs=_listed(_TENSOR)
    ),
    "InferModel": closed(
        name=TEXT, versions=_listed(TEXT), platform=TEXT, inputs=_DESCRIBED, outputs=_DESCRIBED
    ),
    "InferServer": closed(name=TEXT, version=TEXT, extensions=_listed(TEXT)),
    "InferLive": closed(live={"const": True}),
    "InferReady": closed({"name": TEXT}, ready={"const": True}),
    "InferError": closed(error=TEXT),
}


def paths() -> dict[str, Any]:
    """Each route."""
    model, version = "/v2/models/{model}", "/versions/{version}"
    return {
        "/v2": {"get": _get("The server, and what it can beyond the protocol", "InferServer")},
        "/v2/health/live": {"get": _get("The process answers", "InferLive")},
        "/v2/health/ready": {"get": _get("The forward path lately proved itself", "InferReady")},
        **{
            f"{at}{verb}": {method: {**described, "parameters": _parameters(at, method)}}
            for at in (model, model + version)
            for verb, method, described in (
                ("", "get", _get("The model's inputs and outputs", "InferModel")),
                ("/ready", "get", _get("As the server is", "InferReady")),
                ("/infer", "post", _infer()),
            )
        },
    }


def _infer() -> dict[str, Any]:
    examples = {"texts": {"value": EXAMPLE}, "token ids": {"value": TOKENS}}
    asked = {"schema": _named("InferRequest"), "examples": examples}
    octets = {"schema": {"type": "string", "format": "binary"}}
    announced = {INFERENCE_HEADER: {"schema": {"type": "integer"}, "description": "of octets"}}
    answered = {
        "description": "The outputs named",
        "content": {JSON: {"schema": _named("InferAnswer")}, OCTETS: octets},
        "headers": announced,
    }
    codes = [code for code in REFUSALS if code not in NEVER]
    return {
        "summary": "Encode texts, token ids or embeddings: the outputs named, and no others",
        "description": ABOUT,
        "requestBody": {"required": True, "content": {JSON: asked, OCTETS: octets}},
        "responses": {"200": answered, **_refused(codes)},
    }


def _parameters(path: str, method: str) -> list[dict[str, Any]]:
    """What the path holds, and of a request for an encoding its header."""
    held = [name for name in ("model", "version") if f"{{{name}}}" in path]
    said = [{"name": name, "in": "path", "required": True, "schema": TEXT} for name in held]
    if method == "post":
        about = "bytes of JSON, where those of tensors follow"
        header = {"name": INFERENCE_HEADER, "in": "header", "description": about}
        said.append({**header, "schema": {"type": "integer", "minimum": 0}})
    return said


def _get(summary: str, schema: str) -> dict[str, Any]:
    answered = {"description": summary, "content": {JSON: {"schema": _named(schema)}}}
    return {"summary": summary, "responses": {"200": answered, **_refused(READ)}}


def _named(schema: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{schema}"}


def _refused(codes: Any) -> dict[str, Any]:
    """The refusals by the protocol's status, each with the codes its sentence begins with."""
    content = {JSON: {"schema": _named("InferError")}}
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(status(code), []).append(code)
    return {
        str(number): {"description": ", ".join(names), "content": content}
        for number, names in sorted(by_status.items())
    }
