"""The routes of other APIs in the OpenAPI document; their requests: service/dialects/wire.py."""

from typing import Any, NamedTuple

from service.answer import JSON
from service.dialects import openai, tei
from service.refusals import BY_BODY, BY_HEADERS, OPENAI, REFUSALS, TEI
from service.shapes import closed

WELL = "All is well"
NUMBER, STRING, INTEGER = {"type": "number"}, {"type": "string"}, {"type": "integer"}

# What may be refused: by any route, by one that takes a body, by one that encodes
ALWAYS = (*BY_HEADERS, "method_not_allowed", "internal")
TAKING = (
    *BY_BODY,
    "invalid_json",
    "invalid_text",
    "too_many_tokens",
    "unsupported_media_type",
    "invalid_type",
    "out_of_range",
    "unknown_field",
    "missing_field",
    "batch_empty",
    "batch_too_large",
    "sequence_empty",
    "text_too_long",
    "token_out_of_range",
    "prompt_not_found",
    "overloaded",
    "deadline_exceeded",
    *ALWAYS,
)
ENCODING = (
    *TAKING,
    "deadline_unreachable",
    "sequence_too_long",
    "prompt_without_text",
    "nonfinite_output",
)


def _list(items: dict[str, Any], about: str | None = None) -> dict[str, Any]:
    return {"type": "array", "items": items, **({"description": about} if about else {})}


def _named(schema: str) -> dict[str, Any]:
    return {"$ref": f"#/components/schemas/{schema}"}


class Api(NamedTuple):
    """How an API's refusals are described.

    Args:
        error: the name of their schema.
        statuses: where they differ from service/refusals.py's.
    """

    error: str
    statuses: dict[str, int]


class Route(NamedTuple):
    """One route.

    Args:
        asked: the schema of its body, and an example; None where it takes none.
        answer: the schema of what it answers; None where that has no body.
    """

    method: str
    summary: str
    asked: tuple[str, dict[str, Any]] | None
    answer: str | None
    api: Api
    codes: tuple[str, ...]


OPENAIS, TEIS = Api("OpenAIError", OPENAI), Api("TEIError", TEI)
EMBED = ("EmbedRequest", {"inputs": [WELL]})
COMPARED = {"inputs": {"source_sentence": WELL, "sentences": ["All is good", "A dog ate"]}}
MODELS = (*ALWAYS, "model_not_found")
ROUTES = {
    "/v1/embeddings": Route(
        "post",
        "OpenAI: one vector for each input",
        ("EmbeddingsRequest", {"model": "all-MiniLM-L6-v2", "input": [WELL]}),
        "Embeddings",
        OPENAIS,
        (*ENCODING, "model_not_found"),
    ),
    "/v1/models": Route("get", "OpenAI: the model that is served", None, "Models", OPENAIS, ALWAYS),
    "/v1/models/{id}": Route("get", "OpenAI: a model by its name", None, "Model", OPENAIS, MODELS),
    "/": Route("post", "TEI: as POST /embed", EMBED, "Vectors", TEIS, ENCODING),
    "/embed": Route("post", "TEI: one vector for each input", EMBED, "Vectors", TEIS, ENCODING),
    "/embed_all": Route(
        "post",
        "TEI: a vector for each token of each input",
        ("EmbedAllRequest", {"inputs": [WELL]}),
        "TokenVectors",
        TEIS,
        ENCODING,
    ),
    "/similarity": Route(
        "post",
        "TEI: the cosine of one sentence with each of others",
        ("SimilarityRequest", COMPARED),
        "Similarities",
        TEIS,
        ENCODING,
    ),
    "/tokenize": Route(
        "post",
        "TEI: texts as tokens",
        ("TokenizeRequest", {"inputs": WELL}),
        "Pieces",
        TEIS,
        TAKING,
    ),
    "/decode": Route(
        "post",
        "TEI: token ids as texts",
        ("DecodeRequest", {"ids": [2035, 2003, 2092]}),
        "Texts",
        TEIS,
        TAKING,
    ),
    **{
        path: Route("post", "TEI: refused, and why", None, None, TEIS, ("task_not_found",))
        for path in tei.OTHER_TASKS
    },
    "/health": Route("get", "TEI: as GET /ready", None, None, TEIS, (*ALWAYS, "not_ready")),
}

_MODEL = closed(
    id=STRING,
    object={"const": "model"},
    created={**INTEGER, "description": "0: a checkpoint does not say"},
    owned_by=STRING,
)
_EMBEDDING = closed(
    object={"const": "embedding"},
    index=INTEGER,
    embedding={
        "oneOf": [
            _list(NUMBER, "(width,)"),
            {**STRING, "description": "base64 of the little-endian float32 numbers"},
        ]
    },
)
_PLACE = {"type": ["integer", "null"], "description": "characters; null of a special token"}
_PIECE = closed(id=INTEGER, text=STRING, special={"type": "boolean"}, start=_PLACE, stop=_PLACE)
_CODES = sorted(openai.CODES.get(code, code) for code in ROUTES["/v1/embeddings"].codes)
ANSWERS = {
    "Embeddings": closed(
        object={"const": "list"},
        data=_list(_EMBEDDING),
        model=STRING,
        usage=closed(prompt_tokens=INTEGER, total_tokens=INTEGER),
    ),
    "Models": closed(object={"const": "list"}, data=_list(_MODEL)),
    "Model": _MODEL,
    "Vectors": _list(_list(NUMBER, "(width,)")),
    "TokenVectors": _list(_list(_list(NUMBER), "(tokens, width), special tokens included")),
    "Similarities": _list(NUMBER, "between -1 and 1"),
    "Pieces": _list(_list(_PIECE)),
    "Texts": _list(STRING),
    "OpenAIError": closed(
        error=closed(
            message=STRING,
            type={"enum": ["invalid_request_error", "rate_limit_error", "server_error"]},
            param={"type": ["string", "null"]},
            code={"enum": _CODES},
        )
    ),
    "TEIError": closed(error=STRING, error_type={"enum": tei.ERRORS}),
}

# in GET /info, beside ours
INFO = {
    "model_id": STRING,
    "model_sha": {"type": ["string", "null"], "description": "commit of the hub, where known"},
    "model_dtype": STRING,
    "served_model_name": STRING,
    "model_type": closed(embedding=closed(pooling=STRING)),
    "max_concurrent_requests": INTEGER,
    "max_input_length": {**INTEGER, "description": "tokens"},
    "max_batch_tokens": INTEGER,
    "max_batch_requests": {"type": "null"},
    "max_client_batch_size": INTEGER,
    "auto_truncate": {"const": True},
    "tokenization_workers": INTEGER,
    "version": {**STRING, "description": "of Headlight"},
    "sha": {"type": "null"},
    "docker_label": {"type": "null"},
}


def paths() -> dict[str, dict[str, Any]]:
    """The operations of each path."""
    described: dict[str, dict[str, Any]] = {
        path: {route.method: _operation(route)} for path, route in ROUTES.items()
    }
    name = {"name": "id", "in": "path", "required": True, "schema": STRING}
    described["/v1/models/{id}"]["get"]["parameters"] = [name]
    return described


def _operation(route: Route) -> dict[str, Any]:
    content = {"content": {JSON: {"schema": _named(route.answer)}}} if route.answer else {}
    answered = {"200": {"description": route.summary, **content}}
    if "task_not_found" in route.codes:
        answered = {}
    operation: dict[str, Any] = {
        "summary": route.summary,
        "responses": {**answered, **_refused(route)},
    }
    if route.asked:
        schema, example = route.asked
        body = {JSON: {"schema": _named(schema), "example": example}}
        operation["requestBody"] = {"required": True, "content": body}
    return operation


def _refused(route: Route) -> dict[str, Any]:
    """The refusals by status, each with the codes of service/refusals.py behind it."""
    content = {JSON: {"schema": _named(route.api.error)}}
    codes: dict[int, list[str]] = {}
    for code in route.codes:
        codes.setdefault(route.api.statuses.get(code, REFUSALS[code].status), []).append(code)
    return {
        str(status): {"description": ", ".join(names), "content": content}
        for status, names in sorted(codes.items())
    }
