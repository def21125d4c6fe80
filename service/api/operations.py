"""Every route as the API document shows it: what it takes, answers and may refuse."""

from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Literal, NamedTuple

import yaml

from service import refusals
from service.api import infinity, openai, questions, rerank, tei, tei_tasks
from service.api.dialect import ALWAYS, ENCODING, TAKING, Parse, Wording
from service.api.infinity import (
    ClassifyRequest,
    InfinityEmbeddingsRequest,
    InfinityRerankRequest,
)
from service.api.native import call as native
from service.api.native.call import EncodeRequest
from service.api.open_inference import call as inference_protocol
from service.api.open_inference.tensors import InferRequest
from service.api.openai import EmbeddingsRequest
from service.api.questions import ComparisonRequest, MaxsimRequest
from service.api.rerank import RerankRequest
from service.api.teaching.request import AttendBody, ExplainRequest
from service.api.tei import (
    DecodeRequest,
    EmbedAllRequest,
    EmbedRequest,
    SimilarityRequest,
    TokenizeRequest,
)
from service.api.tei_tasks import PredictRequest, RankRequest
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, SAFETENSORS
from service.observe.families import INPUTS, NO_INPUT, OF_ONE_KIND, OF_TEXT, OF_TOKENS, PROBE
from service.observe.metrics import OPENMETRICS, TEXT
from service.page import site
from service.refusals import MEDIA_TYPE, REFUSALS

# what types cannot express: examples, parameters, longer descriptions
NOTES: dict[str, Any] = yaml.safe_load(files("service.api").joinpath("notes.yaml").read_bytes())
INFER_MODEL, VERSION_PART = "/v2/models/{model}", "/versions/{version}"
PART = "/page/"  # prefix of the attention page's files
BYTES = {"type": "string", "format": "binary"}
FILE = {**BYTES, "description": NOTES["file"]}


class Api(NamedTuple):
    """How an API refuses.

    Args:
        name: for people.
        error: the kind of a refusal, as answers.yaml writes kinds.
        statuses: by code, if they differ from those in service/refusals.py.
        codes, body_codes: of routes without and with a body.
        problem: words a refusal.
        media_type: of a refusal.
        shared_statuses: `statuses` of a second API that shares the route.
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
        answer: the kind of its JSON; empty if it has none.
        request: the type of its body's JSON; None if it takes none.
        parse: reads the body of a route that encodes.
        handler: the method in service/edge/handlers.py that answers any other route.
        media, answer_media: schemas of other bodies, by media type; None: not described.
        headers: of the answer.
        codes: what it may refuse with, if other than its API's routes.
        inputs: what metrics call the inputs that it may hold.
        metric: its name in metrics, if several paths share one.
        trusted: whether a replica that knows it computes wrongly refuses it.
        public: when GET and HEAD of its path need no API key: always, or by a setting.
    """

    method: str
    path: str
    summary: str
    api: Api
    answer: str = ""
    request: Any = None
    parse: Parse | None = None
    handler: str = ""
    media: Mapping[str, Any] = {}
    answer_media: Mapping[str, Any] = {}
    headers: Mapping[str, Any] = {}
    codes: tuple[str, ...] = ()
    inputs: tuple[str, ...] = NO_INPUT
    metric: str = ""
    trusted: bool = True
    public: Literal["always", "public_metrics", "public_docs"] | None = None

    @property
    def label(self) -> str:
        """Return its name in metrics, which leaves out model versions."""
        return self.metric or self.path.replace(VERSION_PART, "")

    @property
    def media_types(self) -> tuple[str, ...]:
        """Return the media types of the bodies that it takes, JSON first."""
        return (JSON, *self.media)

    @property
    def query(self) -> list[str]:
        """Return the parameters that its query may hold."""
        parameters = NOTES["paths"].get(self.path, {}).get("parameters", ())
        return [each["name"] for each in parameters if each["in"] == "query"]


ALL = tuple(REFUSALS)
READING = (*ALWAYS, "not_ready")
INFER_READING = (*READING, "model_not_found")
NEVER = frozenset(  # answered to an encoding: only other inputs and forms cause them
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
    """Return the Open Inference Protocol's routes for a model, whose path may name its version."""
    return (
        Operation(
            "get", path, "The model's inputs and outputs", INFER, "InferModel", handler="metadata"
        ),
        Operation(
            "get",
            f"{path}/ready",
            "As the server is",
            INFER,
            "InferReady",
            handler="model_ready",
            metric=PROBE,
        ),
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
            parse=inference_protocol.parse,
        ),
    )


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
        parse=native.parse,
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
        parse=questions.similarity,
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
        parse=questions.maxsim,
    ),
    Operation(
        "post",
        "/v1/attend",
        "The bare mechanism: queries, keys and values, or scores and values, mixed by head",
        NATIVE,
        "Attended",
        AttendBody,
        handler="attend",
    ),
    Operation(
        "post",
        "/v1/explain",
        "One text through one layer, every step of it",
        NATIVE,
        "Explained",
        ExplainRequest,
        inputs=OF_TEXT,
        handler="explain",
    ),
    Operation(
        "get",
        "/v1/heads",
        "What each head of the model does, as measured",
        NATIVE,
        "Heads",
        codes=(*READING, "overloaded", "deadline_unreachable", "deadline_exceeded"),
        handler="heads",
    ),
    Operation(
        "get",
        "/live",
        "The process answers",
        NATIVE,
        "Live",
        public="always",
        handler="live",
        trusted=False,
    ),
    Operation(
        "get",
        "/ready",
        "The forward path lately proved itself",
        NATIVE,
        "Ready",
        public="always",
        handler="ready",
    ),
    Operation("get", "/info", "The model and its limits", NATIVE, "Info", handler="info"),
    Operation(
        "get",
        "/metrics",
        "Every replica's metrics, as Prometheus text or OpenMetrics",
        NATIVE,
        answer_media=dict.fromkeys(form.partition(";")[0] for form in (TEXT, OPENMETRICS)),
        codes=(*ALWAYS, "out_of_range"),
        public="public_metrics",
        handler="metrics",
        trusted=False,
    ),
    Operation(
        "get",
        "/metrics/targets",
        "Where Prometheus finds each replica by itself",
        NATIVE,
        "Targets",
        codes=(*READING, "not_found"),
        public="public_metrics",
        handler="targets",
        metric="/metrics",
    ),
    Operation(
        "post",
        "/v1/embeddings",
        "OpenAI: one vector for each input",
        OPENAI,
        "EmbeddingsAnswer",
        EmbeddingsRequest,
        inputs=OF_TOKENS,
        parse=openai.parse,
    ),
    Operation(
        "get", "/v1/models", "OpenAI: the model that is served", OPENAI, "Models", handler="models"
    ),
    Operation(
        "get",
        "/v1/models/{id}",
        "OpenAI: a model by its name",
        OPENAI,
        "Model",
        codes=(*ALWAYS, "model_not_found"),
        handler="model",
    ),
    Operation(
        "post",
        "/",
        "TEI: as POST /embed",
        TEI,
        "Vectors",
        EmbedRequest,
        inputs=OF_TOKENS,
        parse=tei_tasks.main,
        metric="/embed",
    ),
    Operation(
        "post",
        "/embed",
        "TEI: one vector for each input",
        TEI,
        "Vectors",
        EmbedRequest,
        inputs=OF_TOKENS,
        parse=tei.embed,
    ),
    Operation(
        "post",
        "/embed_all",
        "TEI: a vector for each token of each input",
        TEI,
        "TokenVectors",
        EmbedAllRequest,
        inputs=OF_TOKENS,
        parse=tei.embed_all,
    ),
    Operation(
        "post",
        "/similarity",
        "TEI: the cosine of one sentence with each of others",
        TEI,
        "Similarities",
        SimilarityRequest,
        inputs=OF_TEXT,
        parse=tei.similarity,
    ),
    Operation(
        "post",
        "/tokenize",
        "TEI: texts as tokens",
        TEI,
        "Pieces",
        TokenizeRequest,
        codes=TAKING,
        handler="tokenize",
    ),
    Operation(
        "post",
        "/decode",
        "TEI: token ids as texts",
        TEI,
        "Texts",
        DecodeRequest,
        codes=TAKING,
        handler="decode",
    ),
    Operation(
        "post",
        "/rerank",
        "TEI, Infinity: texts or documents by how well they answer a query",
        TEI_RERANK,
        "Ranks | InfinityRanks",
        RankRequest | InfinityRerankRequest,
        inputs=OF_TEXT,
        parse=tei_tasks.rerank,
    ),
    Operation(
        "post",
        "/embeddings",
        "Infinity, TEI: one vector for each input",
        INFINITY,
        "InfinityEmbeddings",
        InfinityEmbeddingsRequest,
        inputs=OF_TOKENS,
        parse=infinity.embeddings,
        metric="/v1/embeddings",
    ),
    Operation(
        "post",
        "/classify",
        "Infinity: the classes of each text",
        INFINITY,
        "InfinityClasses",
        ClassifyRequest,
        inputs=OF_TEXT,
        parse=infinity.classify,
    ),
    Operation(
        "get",
        "/models",
        "Infinity: the model that is served",
        INFINITY,
        "InfinityModels",
        handler="infinity_models",
    ),
    Operation(
        "post",
        "/predict",
        "TEI: the classes of texts and pairs",
        TEI_TASKS,
        "Predictions",
        PredictRequest,
        inputs=OF_TEXT,
        parse=tei_tasks.predict,
    ),
    Operation(
        "post",
        "/embed_sparse",
        "TEI: a sparse vector for each input",
        TEI_TASKS,
        "SparseVectors",
        EmbedAllRequest,
        inputs=OF_TOKENS,
        parse=tei_tasks.embed_sparse,
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
            parse=parse,
        )
        for path, parse in (("/v1/rerank", rerank.jina), ("/v2/rerank", rerank.cohere))
    ),
    Operation(
        "get", "/health", "TEI: as GET /ready", TEI, public="always", handler="health", metric=PROBE
    ),
    Operation(
        "get",
        "/v2",
        "The server, and what it can beyond the protocol",
        INFER,
        "InferServer",
        handler="server",
    ),
    Operation(
        "get",
        "/v2/health/live",
        "The process answers",
        INFER,
        "InferLive",
        public="always",
        handler="server_live",
        metric="/live",
        trusted=False,
    ),
    Operation(
        "get",
        "/v2/health/ready",
        "The forward path lately proved itself",
        INFER,
        "InferReady",
        public="always",
        handler="server_ready",
        metric=PROBE,
    ),
    *_model(INFER_MODEL + VERSION_PART),  # first, since a model's name may hold slashes
    *_model(INFER_MODEL),
)
# the pages on which the document itself is read
PAGES = (
    Operation("get", "/docs", "The API for people", NATIVE, public="public_docs", handler="docs"),
    Operation(
        "get",
        "/openapi.json",
        "The API for programs",
        NATIVE,
        public="public_docs",
        handler="openapi",
    ),
    Operation(
        "get",
        "/",
        "What every head attends to, for people",
        TEI,
        public="always",
        handler="page",
        metric="/docs",
    ),
    *(
        Operation(
            "get",
            PART + name,
            "A part of GET /",
            TEI,
            public="always",
            handler="part",
            metric="/docs",
        )
        for name in site.PARTS
    ),
)
