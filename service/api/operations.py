"""Every route as the API document shows it: what it takes, answers and may refuse."""

from importlib.resources import files
from typing import Any

import yaml

from service import refusals
from service.api import (
    cohere,
    highlight,
    openai,
    questions,
    rerank,
    tei,
    tei_tasks,
    zero_shot,
)
from service.api.dialect import ALWAYS, ANY, ENCODING, NATIVE, READING, TAKING, Api, Route
from service.api.native import call as native
from service.api.open_inference import call as open_inference
from service.api.open_inference.tensors import InferRequest
from service.api.teaching.request import AttendBody, ExplainRequest
from service.encode.answer import INFERENCE_HEADER, OCTETS, SAFETENSORS
from service.observe.families import INPUTS, OF_ONE_KIND, OF_TEXT, OF_TOKENS, READY_PATH
from service.observe.metrics import OPENMETRICS_TYPE, TEXT_TYPE
from service.page import site
from service.refusals import REFUSALS

# what types cannot express: a sentence for each route, examples, parameters, descriptions
NOTES: dict[str, Any] = yaml.safe_load(files("service.api").joinpath("notes.yaml").read_bytes())
INFER_MODEL, VERSION_PART = "/v2/models/{model}", "/versions/{version}"
PART = "/page/"  # prefix of the attention page's files
BYTES = {"type": "string", "format": "binary"}
OCTETS_AFTER = {INFERENCE_HEADER: {"schema": {"type": "integer"}, "description": "of octets"}}


INFER_READING = (*READING, "model_not_found")
NEVER = frozenset(  # answered to an encoding: only other inputs and forms cause them
    ("bad_base64", "not_acceptable")
)
EMBEDDING_CODES = (*ENCODING, "model_not_found", "task_not_found")
INFERRING = tuple(code for code in REFUSALS if code not in NEVER)
TASKS = (*ENCODING, "task_not_found")
INFER_STATUSES = {code: open_inference.status(code) for code in REFUSALS}

OPENAI = Api(
    "OpenAI",
    openai.problem,
    refusals.OPENAI_STATUSES,
    ALWAYS,
    EMBEDDING_CODES,
    "https://platform.openai.com/docs/api-reference/embeddings",
)
TEI = Api(
    "Text Embeddings Inference",
    tei.problem,
    refusals.TEI_STATUSES,
    document="https://huggingface.github.io/text-embeddings-inference/",
)
RANKING = (*TASKS, "model_not_found")
TEI_RERANK = TEI._replace(problem=tei_tasks.rerank_problem)
RERANK = Api(
    "Rerank (Jina, Cohere)",
    rerank.problem,
    body_codes=RANKING,
    document="https://docs.cohere.com/reference/rerank",
)
COHERE = Api(
    "Cohere",
    cohere.problem,
    body_codes=EMBEDDING_CODES,
    document="https://docs.cohere.com/reference/embed",
)
INFER = Api(
    "Open Inference Protocol",
    open_inference.problem,
    INFER_STATUSES,
    INFER_READING,
    INFERRING,
    "https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md",
)


def _get(api: Api, path: str, answer: str = ANY, **more: Any) -> Route:
    return Route(api, "get", path, NOTES["summaries"][path], answer=answer, **_notes(path), **more)


def _post(api: Api, path: str, request: Any, **more: Any) -> Route:
    summary = NOTES["summaries"][path]
    return Route(api, "post", path, summary, request, **_notes(path), **more)


def _notes(path: str) -> dict[str, Any]:
    notes: dict[str, Any] = NOTES["paths"].get(path, {})
    return notes


INFER_ROUTE = {
    "request": InferRequest,
    "parse": open_inference.parse,
    "inputs": OF_ONE_KIND,
    "metric": f"{INFER_MODEL}/infer",
    "media": {OCTETS: BYTES},
    "answer_media": {OCTETS: BYTES},
    "headers": OCTETS_AFTER,
}
COMPARED, MATCHED = questions.ComparisonRequest, questions.MaxsimRequest
EMBEDDINGS = {
    "request": openai.EmbeddingsRequest,
    "parse": openai.parse,
    "inputs": OF_TOKENS,
    "metric": "/v1/embeddings",
}
PROMETHEUS = dict.fromkeys(form.partition(";")[0] for form in (TEXT_TYPE, OPENMETRICS_TYPE))
LATE = ("overloaded", "deadline_unreachable", "deadline_exceeded")
OF_ALL = {"inputs": INPUTS, "answer_media": {SAFETENSORS: BYTES}}  # answered as a file too
OPERATIONS = (
    _post(
        NATIVE,
        "/v1/encode",
        native.EncodeRequest,
        parse=native.parse,
        answer="Answer | Priced",
        **OF_ALL,
    ),
    _post(
        NATIVE,
        "/v1/similarity",
        COMPARED,
        parse=questions.similarity,
        answer="Compared | Priced",
        **OF_ALL,
    ),
    _post(
        NATIVE,
        "/v1/maxsim",
        MATCHED,
        parse=questions.maxsim,
        answer="Matched | Priced",
        **OF_ALL,
    ),
    _post(
        NATIVE,
        "/v1/classify",
        zero_shot.ZeroShotRequest,
        parse=zero_shot.parse,
        answer="Classified | Priced",
        inputs=OF_TEXT,
    ),
    _post(
        NATIVE,
        "/v1/highlight",
        highlight.HighlightRequest,
        parse=highlight.parse,
        answer="Highlighted | Priced",
        inputs=(*OF_TEXT, "mixed"),  # documents are texts
    ),
    _post(NATIVE, "/v1/attend", AttendBody, handler="attend", answer="Attended"),
    _post(
        NATIVE,
        "/v1/explain",
        ExplainRequest,
        handler="explain",
        answer="Explained",
        inputs=OF_TEXT,
    ),
    _get(NATIVE, "/v1/heads", "Heads", codes=(*READING, *LATE), handler="heads"),
    _get(NATIVE, "/live", "Live", public="always", handler="live", trusted=False),
    _get(NATIVE, "/ready", "Ready", public="always", handler="ready"),
    _get(NATIVE, "/info", "Info", handler="info"),
    _get(
        NATIVE,
        "/metrics",
        "",
        answer_media=PROMETHEUS,
        codes=(*ALWAYS, "out_of_range"),
        public="public_metrics",
        handler="metrics",
        trusted=False,
    ),
    _get(
        NATIVE,
        "/metrics/targets",
        "Targets",
        codes=(*READING, "not_found"),
        public="public_metrics",
        handler="targets",
        metric="/metrics",
    ),
    _post(OPENAI, "/v1/embeddings", **EMBEDDINGS),
    _post(OPENAI, "/embeddings", **EMBEDDINGS),
    _get(OPENAI, "/v1/models", handler="models"),
    _get(OPENAI, "/models", handler="models", metric="/v1/models"),
    _get(OPENAI, "/v1/models/{id}", codes=(*ALWAYS, "model_not_found"), handler="model"),
    _post(TEI, "/", tei.EmbedRequest, parse=tei_tasks.main, inputs=OF_TOKENS, metric="/embed"),
    _post(TEI, "/embed", tei.EmbedRequest, parse=tei.embed, inputs=OF_TOKENS, codes=TASKS),
    _post(TEI, "/embed_all", tei.EmbedAllRequest, parse=tei.embed_all, inputs=OF_TOKENS),
    _post(
        TEI,
        "/similarity",
        tei.SimilarityRequest,
        parse=tei.similarity,
        inputs=OF_TEXT,
        codes=TASKS,
    ),
    _post(TEI, "/tokenize", tei.TokenizeRequest, codes=TAKING, handler="tokenize"),
    _post(TEI, "/decode", tei.DecodeRequest, codes=TAKING, handler="decode"),
    _post(
        TEI_RERANK,
        "/rerank",
        tei_tasks.RankRequest,
        parse=tei_tasks.rerank,
        inputs=OF_TEXT,
        codes=RANKING,
    ),
    _post(
        RERANK,
        "/rerank",
        rerank.RerankRequest,
        parse=rerank.jina,
        when=rerank.names_documents,
        inputs=OF_TEXT,
    ),
    _post(
        TEI,
        "/predict",
        tei_tasks.PredictRequest,
        parse=tei_tasks.predict,
        inputs=OF_TEXT,
        codes=TASKS,
    ),
    _post(
        TEI,
        "/embed_sparse",
        tei.EmbedAllRequest,
        parse=tei_tasks.embed_sparse,
        inputs=OF_TOKENS,
        codes=TASKS,
    ),
    _post(RERANK, "/v1/rerank", rerank.RerankRequest, parse=rerank.jina, inputs=OF_TEXT),
    _post(RERANK, "/v2/rerank", rerank.RerankRequest, parse=rerank.cohere, inputs=OF_TEXT),
    _post(
        COHERE,
        "/v2/embed",
        cohere.EmbedV2Request,
        parse=cohere.parse,
        inputs=OF_TEXT,
        metric="/v1/embeddings",
    ),
    _get(TEI, "/health", "", public="always", handler="health", metric=READY_PATH),
    _get(INFER, "/v2", handler="server"),
    _get(
        INFER,
        "/v2/health/live",
        public="always",
        handler="server_live",
        metric="/live",
        trusted=False,
    ),
    _get(INFER, "/v2/health/ready", public="always", handler="server_ready", metric=READY_PATH),
    # first, since a model's name may hold slashes
    _get(INFER, INFER_MODEL + VERSION_PART, handler="metadata", metric=INFER_MODEL),
    _get(INFER, f"{INFER_MODEL}{VERSION_PART}/ready", handler="model_ready", metric=READY_PATH),
    _post(INFER, f"{INFER_MODEL}{VERSION_PART}/infer", **INFER_ROUTE),
    _get(INFER, INFER_MODEL, handler="metadata"),
    _get(INFER, f"{INFER_MODEL}/ready", handler="model_ready", metric=READY_PATH),
    _post(INFER, f"{INFER_MODEL}/infer", **INFER_ROUTE),
    # the pages on which the document itself is read
    Route(NATIVE, "get", "/docs", public="always", handler="docs"),
    Route(NATIVE, "get", "/openapi.json", handler="openapi"),
    *(
        Route(TEI, "get", path, public="always", metric="/docs", handler=handler)
        for path, handler in [("/", "page"), *((PART + name, "part") for name in site.PARTS)]
    ),
)
