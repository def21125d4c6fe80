"""Every route as the document of the API shows it: what it takes, answers and may refuse."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import yaml

from service import refusals
from service.api.dialect import ALWAYS, ENCODING, TAKING, Wording
from service.api.infinity import call as infinity
from service.api.infinity.request import (
    ClassifyRequest,
    InfinityEmbeddingsRequest,
    InfinityRerankRequest,
)
from service.api.native import call as native
from service.api.native.request import EncodeRequest
from service.api.open_inference import call as inference_protocol
from service.api.open_inference.request import InferRequest
from service.api.openai import call as openai
from service.api.openai.request import EmbeddingsRequest
from service.api.questions.request import ComparisonRequest, MaxsimRequest
from service.api.rerank import call as rerank
from service.api.rerank.request import RerankRequest
from service.api.teaching.request import AttendBody, ExplainRequest
from service.api.tei import call as tei
from service.api.tei import tasks as tei_tasks
from service.api.tei.request import (
    DecodeRequest,
    EmbedAllRequest,
    EmbedRequest,
    SimilarityRequest,
    TokenizeRequest,
)
from service.api.tei.task_request import PredictRequest, RankRequest
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, SAFETENSORS
from service.observe.families import INPUTS, NO_INPUT, OF_ONE_KIND, OF_TEXT, OF_TOKENS
from service.observe.metrics import OPENMETRICS, TEXT
from service.page import site
from service.refusals import MEDIA_TYPE, REFUSALS

# what no type says: examples, parameters, longer descriptions
NOTES: dict[str, Any] = yaml.safe_load(files("service.api").joinpath("notes.yaml").read_bytes())
BYTES = {"type": "string", "format": "binary"}
FILE = {**BYTES, "description": NOTES["file"]}


class Api(NamedTuple):
    """How an API refuses.

    Args:
        name: for people.
        error: the kind of a refusal, as answers.yaml writes kinds.
        statuses: by code, where they differ from service/refusals.py's.
        codes, body_codes: of a route without a body, and with one.
        problem: words a refusal.
        media_type: of a refusal.
        shared_statuses: statuses of a second API that shares the route, as `statuses`.
    """

    name: str
    error: str
    statuses: Mapping[str, int]
    codes: tuple[str, ...]
    body_codes: tuple[str, ...]
    problem: Wording
    media_type: str = JSON
    shared_statuses: Mapping[str, int] | None = None


class Operation(NamedTuple):
    """One route.

    Args:
        answer: the kind of its JSON; empty where it has none.
        request: the type of its body's JSON; None where it takes none.
        media, answer_media: schemas of other bodies, by media type; None is not described.
        headers: of the answer.
        codes: what it may refuse with, where that is not what its API's routes do.
        inputs: what metrics call the inputs that it may hold.
        public: when GET and HEAD of its path take no API key: always, or by a setting.
    """

    method: str
    path: str
    summary: str
    api: Api
    answer: str = ""
    request: Any = None
    media: Mapping[str, Any] = {}
    answer_media: Mapping[str, Any] = {}
    headers: Mapping[str, Any] = {}
    codes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = NO_INPUT
    public: Literal["always", "public_metrics", "public_docs"] | None = None


ALL = tuple(REFUSALS)
READING = (*ALWAYS, "not_ready")
INFER_READING = (*READING, "model_not_found")
NEVER = frozenset(  # answered to an encoding: what only other inputs and other forms can do
    ("invalid_safetensors", "tensor_unknown", "tensor_unused", "bad_base64", "not_acceptable")
)
EMBEDDING_CODES = (*ENCODING, "model_not_found")
INFERRING = tuple(code for code in REFUSALS if code not in NEVER)
TASKS = (*ENCODING, "task_not_found")
INFER_STATUSES = {code: inference_protocol.status(code) for code in REFUSALS}

NATIVE = Api("Headlight", "Problem", {}, READING, ALL, native.problem, MEDIA_TYPE)
OPENAI = Api("OpenAI", "OpenAIError", refusals.OPENAI, ALWAYS, EMBEDDING_CODES, openai.problem)
TEI = Api("Text Embeddings Inference", "TEIError", refusals.TEI, READING, ENCODING, tei.problem)
TEI_TASKS = Api(TEI.name, "TEIError", refusals.TEI, READING, TASKS, tei.problem)
INFINITY = Api(
    "Infinity",
    "InfinityError",
    refusals.INFINITY,
    READING,
    (*TASKS, "model_not_found"),
    infinity.problem,
)
TEI_RERANK = Api(
    TEI.name,
    "TEIError | InfinityError",
    refusals.TEI,
    READING,
    INFINITY.body_codes,
    tei_tasks.rerank_problem,
    shared_statuses=refusals.INFINITY,
)
RERANK = Api(
    "Rerank (Jina, Cohere)",
    "RerankError",
    {},
    READING,
    (*TASKS, "model_not_found"),
    rerank.problem,
)
INFER = Api(
    "Open Inference Protocol",
    "InferError",
    INFER_STATUSES,
    INFER_READING,
    INFERRING,
    inference_protocol.problem,
)


def _model(path: str) -> tuple[Operation, ...]:
    """The Open Inference Protocol's routes of a model, which has a path with its version too."""
    return (
        Operation("get", path, "The model's inputs and outputs", INFER, "InferModel"),
        Operation("get", f"{path}/ready", "As the server is", INFER, "InferReady"),
        Operation(
            "post",
            f"{path}/infer",
            "Encode texts, token ids or embeddings: the outputs named, and no others",
            INFER,
            "InferAnswer",
            InferRequest,
            media={OCTETS: BYTES},
            answer_media={OCTETS: BYTES},
            headers={INFERENCE_HEADER: {"schema": {"type": "integer"}, "description": "of octets"}},
            inputs=OF_ONE_KIND,
        ),
    )


INFER_MODEL, VERSION_PART = "/v2/models/{model}", "/versions/{version}"
PART = "/page/"  # above the attention page's files

OPERATIONS = (
    Operation(
        "post",
        "/v1/encode",
        "Encode texts, token ids or embeddings, with the attention asked for",
        NATIVE,
        "Answer | Priced",
        EncodeRequest,
        media={SAFETENSORS: FILE},
        answer_media={SAFETENSORS: BYTES},
        inputs=INPUTS,
    ),
    Operation(
        "post",
        "/v1/similarity",
        "Why one text is like others: each cosine, and the pairs of tokens that make it",
        NATIVE,
        "Compared | Priced",
        ComparisonRequest,
        media={SAFETENSORS: FILE},
        answer_media={SAFETENSORS: BYTES},
        inputs=INPUTS,
    ),
    Operation(
        "post",
        "/v1/maxsim",
        "Many vectors: how well each document answers a query, and which tokens match",
        NATIVE,
        "Matched | Priced",
        MaxsimRequest,
        media={SAFETENSORS: FILE},
        answer_media={SAFETENSORS: BYTES},
        inputs=INPUTS,
    ),
    Operation(
        "post",
        "/v1/attend",
        "The bare mechanism: queries, keys and values, or scores and values, mixed by head",
        NATIVE,
        "Attended",
        AttendBody,
    ),
    Operation(
        "post",
        "/v1/explain",
        "One text through one layer, every step of it",
        NATIVE,
        "Explained",
        ExplainRequest,
        inputs=OF_TEXT,
    ),
    Operation(
        "get",
        "/v1/heads",
        "What each head of the model does, as measured",
        NATIVE,
        "Heads",
        codes=(*READING, "overloaded", "deadline_unreachable", "deadline_exceeded"),
    ),
    Operation("get", "/live", "The process answers", NATIVE, "Live", public="always"),
    Operation(
        "get", "/ready", "The forward path lately proved itself", NATIVE, "Ready", public="always"
    ),
    Operation("get", "/info", "The model and its limits", NATIVE, "Info"),
    Operation(
        "get",
        "/metrics",
        "Every replica's metrics, as Prometheus text or OpenMetrics",
        NATIVE,
        answer_media=dict.fromkeys(form.partition(";")[0] for form in (TEXT, OPENMETRICS)),
        codes=(*ALWAYS, "out_of_range"),
        public="public_metrics",
    ),
    Operation(
        "get",
        "/metrics/targets",
        "Where Prometheus finds each replica by itself",
        NATIVE,
        "Targets",
        codes=(*READING, "not_found"),
        public="public_metrics",
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "OpenAI: one vector for each input",
        OPENAI,
        "EmbeddingsAnswer",
        EmbeddingsRequest,
        inputs=OF_TOKENS,
    ),
    Operation("get", "/v1/models", "OpenAI: the model that is served", OPENAI, "Models"),
    Operation(
        "get",
        "/v1/models/{id}",
        "OpenAI: a model by its name",
        OPENAI,
        "Model",
        codes=(*ALWAYS, "model_not_found"),
    ),
    Operation("post", "/", "TEI: as POST /embed", TEI, "Vectors", EmbedRequest, inputs=OF_TOKENS),
    Operation(
        "post",
        "/embed",
        "TEI: one vector for each input",
        TEI,
        "Vectors",
        EmbedRequest,
        inputs=OF_TOKENS,
    ),
    Operation(
        "post",
        "/embed_all",
        "TEI: a vector for each token of each input",
        TEI,
        "TokenVectors",
        EmbedAllRequest,
        inputs=OF_TOKENS,
    ),
    Operation(
        "post",
        "/similarity",
        "TEI: the cosine of one sentence with each of others",
        TEI,
        "Similarities",
        SimilarityRequest,
        inputs=OF_TEXT,
    ),
    Operation(
        "post", "/tokenize", "TEI: texts as tokens", TEI, "Pieces", TokenizeRequest, codes=TAKING
    ),
    Operation(
        "post", "/decode", "TEI: token ids as texts", TEI, "Texts", DecodeRequest, codes=TAKING
    ),
    Operation(
        "post",
        "/rerank",
        "TEI, Infinity: texts or documents by how well they answer a query",
        TEI_RERANK,
        "Ranks | InfinityRanks",
        RankRequest | InfinityRerankRequest,
        inputs=OF_TEXT,
    ),
    Operation(
        "post",
        "/embeddings",
        "Infinity, TEI: one vector for each input",
        INFINITY,
        "InfinityEmbeddings",
        InfinityEmbeddingsRequest,
        inputs=OF_TOKENS,
    ),
    Operation(
        "post",
        "/classify",
        "Infinity: the classes of each text",
        INFINITY,
        "InfinityClasses",
        ClassifyRequest,
        inputs=OF_TEXT,
    ),
    Operation("get", "/models", "Infinity: the model that is served", INFINITY, "InfinityModels"),
    Operation(
        "post",
        "/predict",
        "TEI: the classes of texts and pairs",
        TEI_TASKS,
        "Predictions",
        PredictRequest,
        inputs=OF_TEXT,
    ),
    Operation(
        "post",
        "/embed_sparse",
        "TEI: a sparse vector for each input",
        TEI_TASKS,
        "SparseVectors",
        EmbedAllRequest,
        inputs=OF_TOKENS,
    ),
    *(
        Operation(
            "post",
            path,
            "Documents by how well they answer a query",
            RERANK,
            "RerankAnswer",
            RerankRequest,
            inputs=OF_TEXT,
        )
        for path in ("/v1/rerank", "/v2/rerank")
    ),
    Operation("get", "/health", "TEI: as GET /ready", TEI, public="always"),
    Operation(
        "get", "/v2", "The server, and what it can beyond the protocol", INFER, "InferServer"
    ),
    Operation("get", "/v2/health/live", "The process answers", INFER, "InferLive", public="always"),
    Operation(
        "get",
        "/v2/health/ready",
        "The forward path lately proved itself",
        INFER,
        "InferReady",
        public="always",
    ),
    *_model(INFER_MODEL + VERSION_PART),  # first, since a model's name may hold slashes
    *_model(INFER_MODEL),
)
# what the document itself is read by
PAGES = (
    Operation("get", "/docs", "The API for people", NATIVE, public="public_docs"),
    Operation("get", "/openapi.json", "The API for programs", NATIVE, public="public_docs"),
    Operation("get", "/", "What every head attends to, for people", TEI, public="always"),
    *(
        Operation("get", PART + name, "A part of GET /", TEI, public="always")
        for name in site.PARTS
    ),
)
