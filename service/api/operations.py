"""Every route as the API document shows it: what it takes, answers and may refuse."""

from collections.abc import Mapping
from functools import partial
from importlib.resources import files
from typing import Any, Literal, NamedTuple

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
from service.api.dialect import ALWAYS, ENCODING, TAKING, Parse, Wording
from service.api.native import call as native
from service.api.open_inference import call as open_inference
from service.api.open_inference.tensors import InferRequest
from service.api.teaching.request import AttendBody, ExplainRequest
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, SAFETENSORS
from service.observe.families import INPUTS, NO_INPUT, OF_ONE_KIND, OF_TEXT, OF_TOKENS, PROBE
from service.observe.metrics import OPENMETRICS, TEXT
from service.page import site
from service.refusals import MEDIA_TYPE, REFUSALS

# what types cannot express: a sentence for each route, examples, parameters, descriptions
NOTES: dict[str, Any] = yaml.safe_load(files("service.api").joinpath("notes.yaml").read_bytes())
INFER_MODEL, VERSION_PART = "/v2/models/{model}", "/versions/{version}"
PART = "/page/"  # prefix of the attention page's files
BYTES = {"type": "string", "format": "binary"}
OCTETS_AFTER = {INFERENCE_HEADER: {"schema": {"type": "integer"}, "description": "of octets"}}


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
        reference: the address of its own document, which describes its answers; empty: ours does.
    """

    name: str
    error: str
    statuses: Mapping[str, int]
    codes: tuple[str, ...]
    body_codes: tuple[str, ...]
    problem: Wording
    media_type: str = JSON
    shared_statuses: Mapping[str, int] | None = None
    reference: str = ""


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
    api: Api
    path: str
    answer: str = ""
    request: Any = None
    parse: Parse | None = None
    inputs: tuple[str, ...] = NO_INPUT
    media: Mapping[str, Any] = {}
    answer_media: Mapping[str, Any] = {}
    handler: str = ""
    headers: Mapping[str, Any] = {}
    codes: tuple[str, ...] = ()
    metric: str = ""
    trusted: bool = True
    public: Literal["always", "public_metrics"] | None = None

    @property
    def label(self) -> str:
        """Return its name in metrics, which leaves out model versions."""
        return self.metric or self.path.replace(VERSION_PART, "")

    @property
    def foreign(self) -> bool:
        """Tell whether it takes another API's request."""
        return self.request is not None and self.api is not NATIVE

    @property
    def takes_ids(self) -> bool:
        """Tell whether it encodes token ids, where it is sent some."""
        return self.parse is not None and not {"tokens", "mixed"}.isdisjoint(self.inputs)

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
ANY = "any"  # the kind of JSON that another API describes
NEVER = frozenset(  # answered to an encoding: only other inputs and forms cause them
    ("bad_base64", "not_acceptable")
)
EMBEDDING_CODES = (*ENCODING, "model_not_found", "task_not_found")
INFERRING = tuple(code for code in REFUSALS if code not in NEVER)
TASKS = (*ENCODING, "task_not_found")
INFER_STATUSES = {code: open_inference.status(code) for code in REFUSALS}

NATIVE = Api("Headlight", "Problem", {}, READING, ALL, native.problem, MEDIA_TYPE)
OPENAI = Api(
    "OpenAI",
    ANY,
    refusals.OPENAI,
    ALWAYS,
    EMBEDDING_CODES,
    openai.problem,
    reference="https://platform.openai.com/docs/api-reference/embeddings",
)
TEI = Api(
    "Text Embeddings Inference",
    ANY,
    refusals.TEI,
    READING,
    ENCODING,
    tei.problem,
    reference="https://huggingface.github.io/text-embeddings-inference/",
)
TEI_TASKS = TEI._replace(body_codes=TASKS)
RANKING = (*TASKS, "model_not_found")
TEI_RERANK = TEI._replace(body_codes=RANKING, problem=tei_tasks.rerank_problem, shared_statuses={})
RERANK = Api(
    "Rerank (Jina, Cohere)",
    ANY,
    {},
    READING,
    RANKING,
    rerank.problem,
    reference="https://docs.cohere.com/reference/rerank",
)
COHERE = Api(
    "Cohere",
    ANY,
    {},
    READING,
    EMBEDDING_CODES,
    cohere.problem,
    reference="https://docs.cohere.com/reference/embed",
)
INFER = Api(
    "Open Inference Protocol",
    ANY,
    INFER_STATUSES,
    INFER_READING,
    INFERRING,
    open_inference.problem,
    reference="https://github.com/kserve/open-inference-protocol/blob/main/specification/protocol/inference_rest.md",
)

_get, _post = partial(Operation, "get"), partial(Operation, "post")
# our own, answered as a file too
_asks = partial(_post, NATIVE, inputs=INPUTS, answer_media={SAFETENSORS: BYTES})


def _model(path: str) -> tuple[Operation, ...]:
    """Return the Open Inference Protocol's routes for a model, whose path may name its version."""
    infer = (f"{path}/infer", ANY, InferRequest, open_inference.parse, OF_ONE_KIND)
    octets = {OCTETS: BYTES}
    return (
        _get(INFER, path, ANY, handler="metadata"),
        _get(INFER, f"{path}/ready", ANY, handler="model_ready", metric=PROBE),
        _post(INFER, *infer, octets, octets, headers=OCTETS_AFTER),
    )


COMPARED, MATCHED = questions.ComparisonRequest, questions.MaxsimRequest
EMBED, EMBED_ALL = tei.EmbedRequest, tei.EmbedAllRequest
EITHER_RANK = tei_tasks.RankRequest | rerank.RerankRequest
EMBEDDINGS = (ANY, openai.EmbeddingsRequest, openai.parse, OF_TOKENS)
PROMETHEUS = dict.fromkeys(form.partition(";")[0] for form in (TEXT, OPENMETRICS))
LATE = ("overloaded", "deadline_unreachable", "deadline_exceeded")
OPERATIONS = (
    _asks("/v1/encode", "Answer | Priced", native.EncodeRequest, native.parse),
    _asks("/v1/similarity", "Compared | Priced", COMPARED, questions.similarity),
    _asks("/v1/maxsim", "Matched | Priced", MATCHED, questions.maxsim),
    _post(
        NATIVE,
        "/v1/classify",
        "Classified | Priced",
        zero_shot.ZeroShotRequest,
        zero_shot.parse,
        OF_TEXT,
    ),
    _post(
        NATIVE,
        "/v1/highlight",
        "Highlighted | Priced",
        highlight.HighlightRequest,
        highlight.parse,
        (*OF_TEXT, "mixed"),  # documents are texts
    ),
    _post(NATIVE, "/v1/attend", "Attended", AttendBody, handler="attend"),
    _post(NATIVE, "/v1/explain", "Explained", ExplainRequest, None, OF_TEXT, handler="explain"),
    _get(NATIVE, "/v1/heads", "Heads", codes=(*READING, *LATE), handler="heads"),
    _get(NATIVE, "/live", "Live", public="always", handler="live", trusted=False),
    _get(NATIVE, "/ready", "Ready", public="always", handler="ready"),
    _get(NATIVE, "/info", "Info", handler="info"),
    _get(
        NATIVE,
        "/metrics",
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
    _post(OPENAI, "/v1/embeddings", *EMBEDDINGS),
    _post(OPENAI, "/embeddings", *EMBEDDINGS, metric="/v1/embeddings"),
    _get(OPENAI, "/v1/models", ANY, handler="models"),
    _get(OPENAI, "/models", ANY, handler="models", metric="/v1/models"),
    _get(OPENAI, "/v1/models/{id}", ANY, codes=(*ALWAYS, "model_not_found"), handler="model"),
    _post(TEI, "/", ANY, EMBED, tei_tasks.main, OF_TOKENS, metric="/embed"),
    _post(TEI, "/embed", ANY, EMBED, tei.embed, OF_TOKENS, codes=TASKS),
    _post(TEI, "/embed_all", ANY, EMBED_ALL, tei.embed_all, OF_TOKENS),
    _post(
        TEI,
        "/similarity",
        ANY,
        tei.SimilarityRequest,
        tei.similarity,
        OF_TEXT,
        codes=TASKS,
    ),
    _post(TEI, "/tokenize", ANY, tei.TokenizeRequest, codes=TAKING, handler="tokenize"),
    _post(TEI, "/decode", ANY, tei.DecodeRequest, codes=TAKING, handler="decode"),
    _post(TEI_RERANK, "/rerank", ANY, EITHER_RANK, tei_tasks.rerank, OF_TEXT),
    _post(TEI_TASKS, "/predict", ANY, tei_tasks.PredictRequest, tei_tasks.predict, OF_TEXT),
    _post(TEI_TASKS, "/embed_sparse", ANY, EMBED_ALL, tei_tasks.embed_sparse, OF_TOKENS),
    _post(RERANK, "/v1/rerank", ANY, rerank.RerankRequest, rerank.jina, OF_TEXT),
    _post(RERANK, "/v2/rerank", ANY, rerank.RerankRequest, rerank.cohere, OF_TEXT),
    _post(
        COHERE,
        "/v2/embed",
        ANY,
        cohere.EmbedV2Request,
        cohere.parse,
        OF_TEXT,
        metric="/v1/embeddings",
    ),
    _get(TEI, "/health", public="always", handler="health", metric=PROBE),
    _get(INFER, "/v2", ANY, handler="server"),
    _get(
        INFER,
        "/v2/health/live",
        ANY,
        public="always",
        handler="server_live",
        metric="/live",
        trusted=False,
    ),
    _get(
        INFER,
        "/v2/health/ready",
        ANY,
        public="always",
        handler="server_ready",
        metric=PROBE,
    ),
    *_model(INFER_MODEL + VERSION_PART),  # first, since a model's name may hold slashes
    *_model(INFER_MODEL),
)
# the pages on which the document itself is read
_page = partial(Operation, "get", public="always", metric="/docs")
PAGES = (
    _get(NATIVE, "/docs", public="always", handler="docs"),
    _get(NATIVE, "/openapi.json", handler="openapi"),
    _page(TEI, "/", handler="page"),
    *(_page(TEI, PART + name, handler="part") for name in site.PARTS),
)
