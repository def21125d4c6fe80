"""Every route as the document of the API shows it: what it takes, answers and may refuse."""

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, Never

from service import refusals
from service.api.dialect import ALWAYS, ENCODING, TAKING, Say
from service.api.native import call as native
from service.api.native.answers import Answer, Heads, Info, Live, Priced, Problem, Ready
from service.api.open_inference import call as inference_protocol
from service.api.open_inference.answers import (
    InferAnswer,
    InferError,
    InferLive,
    InferModel,
    InferReady,
    InferServer,
)
from service.api.open_inference.request import InferRequest
from service.api.openai import call as openai
from service.api.openai.answers import (
    EMBEDDING_CODES,
    EmbeddingsAnswer,
    Model,
    Models,
    OpenAIError,
)
from service.api.openai.request import EmbeddingsRequest
from service.api.teaching.answers import Attended, Explained
from service.api.teaching.request import AttendBody, ExplainRequest
from service.api.tei import call as tei
from service.api.tei.answers import (
    Pieces,
    Similarities,
    TEIError,
    Texts,
    TokenVectors,
    Vectors,
)
from service.api.tei.request import (
    DecodeRequest,
    EmbedAllRequest,
    EmbedRequest,
    SimilarityRequest,
    TokenizeRequest,
)
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, SAFETENSORS
from service.encode.request import EncodeRequest
from service.observe.metrics import OPENMETRICS, TEXT
from service.refusals import BY_HEADERS, MEDIA_TYPE, REFUSALS

WELL = "All is well"
EXAMPLE = {"inputs": [WELL], "attention": {"layers": [0], "heads": [5]}}
GATED = {"inputs": [WELL], "gates": [{"layer": 5, "head": 11, "scale": 0.0}]}
SHOWN = (  # one of every form
    {"layers": [5], "heads": [11]},
    {"form": "rows", "rows": [3], "heads": {"0": [5]}, "level": "word"},
    {"form": "top", "k": 2, "specials": "drop", "dtype": "float16"},
    {"form": "blocks", "size": 2},
    {"form": "stats"},
    {"form": "dominance", "weight": "probability"},
    {"form": "rollout", "specials": "renormalize"},
)
MIXED = {  # Z_well = 0.6 V_All + 0.4 V_well
    "scores": [[0.6, 0.0, 0.4]],
    "probabilities": True,
    "value": [[10.0, 0.0], [1.0, 1.0], [0.0, 10.0]],
}
EMBED = {"example": {"inputs": [WELL]}}
COMPARED = {
    "example": {"inputs": {"source_sentence": WELL, "sentences": ["All is good", "A dog ate"]}}
}
INFERRED = {
    "inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": [WELL]}],
    "outputs": [{"name": "pooled"}, {"name": "attention"}],
    "parameters": {"attention_layers": "0", "attention_heads": "5"},
}
INFERRED_IDS = {
    "id": "7",
    "inputs": [
        {"name": "input_ids", "shape": [1, 3], "datatype": "INT64", "data": [101, 2092, 102]},
        {"name": "attention_mask", "shape": [1, 3], "datatype": "INT64", "data": [1, 1, 1]},
    ],
    "outputs": [{"name": "tokens", "parameters": {"binary_data": True}}],
}

BYTES = {"type": "string", "format": "binary"}
FILE = {
    **BYTES,
    "description": "a safetensors file: the JSON in __metadata__, under headlight; an input may be "
    '{"embeddings": {"tensor": name}} (F32 or F16, tokens x embedding_width) or {"token_ids": '
    '{"tensor": name}}, with "token_type_ids" so or not (I64 or I32, tokens); each tensor is named '
    "once",
}
DRY_RUN = {
    "name": "dry_run",
    "in": "query",
    "description": "true computes nothing and answers what it would cost",
    "schema": {"type": "boolean", "default": False},
}
JSON_BYTES = {
    "name": INFERENCE_HEADER,
    "in": "header",
    "description": "bytes of JSON, where those of tensors follow",
    "schema": {"type": "integer", "minimum": 0},
}
INFER_TENSORS = """\
Inputs are exactly one of `text` (BYTES [B] or [B, 1]), `input_ids` (INT64 [B, T], with
`token_type_ids` beside them or not) and `inputs_embeds` (FP32 or FP16 [B, T, embedding_width]);
the last two take an `attention_mask` (INT64, INT32 or BOOL [B, T]) with zeros only at the end.
Outputs are `pooled` (FP32 [B, width], the one where none is named), `tokens` (FP32 [B, T, width]),
`layers` (FP32 [B, n, T, width], hidden states in the model's order), `attention` (FP32
[B, L, H, T, T]) and `lengths` (INT64 [B]), which comes with the three that are padded with zeros to
the longest sequence. Of Triton's parameters, `timeout` (microseconds) shortens the deadline, any
`priority` is taken and is one level here, and a `sequence_id` is refused: no state is kept between
requests. With the header, the JSON's bytes come first, those of tensors follow, little-endian."""


class Api(NamedTuple):
    """How an API refuses.

    Args:
        error: the type of a refusal.
        statuses: by code, where they differ from service/refusals.py's.
        reading, taking: the codes of a route without a body, and with one.
        problem: words one.
        media_type: of a refusal.
    """

    error: Any
    statuses: Mapping[str, int]
    reading: tuple[str, ...]
    taking: tuple[str, ...]
    problem: Say
    media_type: str = JSON


class Operation(NamedTuple):
    """One route.

    Args:
        answer: the type of its JSON; None where it has none, Never where it refuses always.
        request: the type of its body's JSON; None where it takes none.
        example: what stands beside that type.
        takes, gives: schemas of other bodies, by media type; None is not described.
        headers: of the answer.
        codes: what it may refuse with, where that is not what its API's routes do.
        also: what else OpenAPI says of an operation.
        public: when GET and HEAD of its path take no API key: always, or by a setting.
    """

    method: str
    path: str
    summary: str
    api: Api
    answer: Any = None
    request: Any = None
    example: Mapping[str, Any] = {}
    takes: Mapping[str, Any] = {}
    gives: Mapping[str, Any] = {}
    headers: Mapping[str, Any] = {}
    codes: tuple[str, ...] = ()
    also: Mapping[str, Any] = {}
    public: Literal["always", "public_metrics", "public_docs"] | None = None


ALL = tuple(REFUSALS)
READING = (*ALWAYS, "not_ready")
INFER_READING = (*BY_HEADERS, "model_not_found", "method_not_allowed", "internal", "not_ready")
NEVER = frozenset(  # answered to an encoding: what only other inputs and other forms can do
    ("invalid_safetensors", "tensor_unknown", "tensor_unused", "bad_base64", "not_acceptable")
)
INFERRING = tuple(code for code in REFUSALS if code not in NEVER)
INFER_STATUSES = {code: inference_protocol.status(code) for code in REFUSALS}

NATIVE = Api(Problem, {}, READING, ALL, native.problem, MEDIA_TYPE)
OPENAI = Api(OpenAIError, refusals.OPENAI, ALWAYS, EMBEDDING_CODES, openai.problem)
TEI = Api(TEIError, refusals.TEI, READING, ENCODING, tei.problem)
INFER = Api(InferError, INFER_STATUSES, INFER_READING, INFERRING, inference_protocol.problem)


def _model(path: str) -> tuple[Operation, ...]:
    """The Open Inference Protocol's routes of a model, which has a path with its version too."""
    return (
        Operation("get", path, "The model's inputs and outputs", INFER, InferModel),
        Operation("get", f"{path}/ready", "As the server is", INFER, InferReady),
        Operation(
            "post",
            f"{path}/infer",
            "Encode texts, token ids or embeddings: the outputs named, and no others",
            INFER,
            InferAnswer,
            InferRequest,
            {"examples": {"texts": {"value": INFERRED}, "token ids": {"value": INFERRED_IDS}}},
            takes={OCTETS: BYTES},
            gives={OCTETS: BYTES},
            headers={INFERENCE_HEADER: {"schema": {"type": "integer"}, "description": "of octets"}},
            also={"description": INFER_TENSORS, "parameters": [JSON_BYTES]},
        ),
    )


INFER_MODEL, VERSION_PART = "/v2/models/{model}", "/versions/{version}"

OPERATIONS = (
    Operation(
        "post",
        "/v1/encode",
        "Encode texts, token ids or embeddings, with the attention asked for",
        NATIVE,
        Answer | Priced,
        EncodeRequest,
        {"example": EXAMPLE},
        takes={SAFETENSORS: FILE},
        gives={SAFETENSORS: BYTES},
        also={"parameters": [DRY_RUN]},
    ),
    Operation(
        "post",
        "/v1/attend",
        "The bare mechanism: queries, keys and values, or scores and values, mixed by head",
        NATIVE,
        Attended,
        AttendBody,
        {"example": MIXED},
    ),
    Operation(
        "post",
        "/v1/explain",
        "One text through one layer, every step of it",
        NATIVE,
        Explained,
        ExplainRequest,
        {"example": {"text": WELL, "layer": 0}},
    ),
    Operation(
        "get",
        "/v1/heads",
        "What each head of the model does, as measured",
        NATIVE,
        Heads,
        codes=(*READING, "overloaded", "deadline_unreachable", "deadline_exceeded"),
    ),
    Operation("get", "/live", "The process answers", NATIVE, Live, public="always"),
    Operation(
        "get", "/ready", "The forward path lately proved itself", NATIVE, Ready, public="always"
    ),
    Operation("get", "/info", "The model and its limits", NATIVE, Info),
    Operation(
        "get",
        "/metrics",
        "Every replica's metrics, as Prometheus text or OpenMetrics",
        NATIVE,
        gives=dict.fromkeys(form.partition(";")[0] for form in (TEXT, OPENMETRICS)),
        public="public_metrics",
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "OpenAI: one vector for each input",
        OPENAI,
        EmbeddingsAnswer,
        EmbeddingsRequest,
        {"example": {"model": "all-MiniLM-L6-v2", "input": [WELL]}},
    ),
    Operation("get", "/v1/models", "OpenAI: the model that is served", OPENAI, Models),
    Operation(
        "get",
        "/v1/models/{id}",
        "OpenAI: a model by its name",
        OPENAI,
        Model,
        codes=(*ALWAYS, "model_not_found"),
    ),
    Operation(
        "post", "/", "TEI: as POST /embed", TEI, Vectors, EmbedRequest, EMBED, public="always"
    ),
    Operation(
        "post", "/embed", "TEI: one vector for each input", TEI, Vectors, EmbedRequest, EMBED
    ),
    Operation(
        "post",
        "/embed_all",
        "TEI: a vector for each token of each input",
        TEI,
        TokenVectors,
        EmbedAllRequest,
        EMBED,
    ),
    Operation(
        "post",
        "/similarity",
        "TEI: the cosine of one sentence with each of others",
        TEI,
        Similarities,
        SimilarityRequest,
        COMPARED,
    ),
    Operation(
        "post",
        "/tokenize",
        "TEI: texts as tokens",
        TEI,
        Pieces,
        TokenizeRequest,
        {"example": {"inputs": WELL}},
        codes=TAKING,
    ),
    Operation(
        "post",
        "/decode",
        "TEI: token ids as texts",
        TEI,
        Texts,
        DecodeRequest,
        {"example": {"ids": [2035, 2003, 2092]}},
        codes=TAKING,
    ),
    *(
        Operation("post", path, "TEI: refused, and why", TEI, Never, codes=("task_not_found",))
        for path in tei.OTHER_TASKS
    ),
    Operation("get", "/health", "TEI: as GET /ready", TEI, public="always"),
    Operation("get", "/v2", "The server, and what it can beyond the protocol", INFER, InferServer),
    Operation("get", "/v2/health/live", "The process answers", INFER, InferLive, public="always"),
    Operation(
        "get",
        "/v2/health/ready",
        "The forward path lately proved itself",
        INFER,
        InferReady,
        public="always",
    ),
    *_model(INFER_MODEL + VERSION_PART),  # first, since a model's name may hold slashes
    *_model(INFER_MODEL),
)
# what the document itself is read by
PAGES = (
    Operation("get", "/docs", "The API for people", NATIVE, public="public_docs"),
    Operation("get", "/openapi.json", "The API for programs", NATIVE, public="public_docs"),
)
