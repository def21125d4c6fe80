"""The API of michaelfeil/infinity: POST /embeddings, /rerank and /classify, GET /models.

Without a prefix, as Infinity serves them. Deliberate differences: an unknown field is refused, and
so is an empty text; usage counts tokens; vectors cut to `dimensions` are rescaled, as TEI's are.
Inputs that are too long are cut on the right, as in Infinity, unless the service is set otherwise.
Source of the requests: infinity_emb 0.0.77, fastapi_schemas/pymodels.py.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal
from uuid import uuid4

import orjson
from pydantic import Field

from service.api import openai
from service.api.dialect import JSONCall, Reply, Sent, Served, sentence
from service.api.inputs import (
    Ranking,
    Strings,
    TextsOrIds,
    best_classes,
    by_three,
    check_dense,
    items,
    ranking_request,
    relocate,
)
from service.api.precisions import Precision
from service.encode.answer import JSON, Each, Encoded
from service.encode.names import Names
from service.encode.request import Classify, Request
from service.encode.shown import Classes, of_kind
from service.refusals import INFINITY, Refused
from service.wire import Wire

ANY = "default/not-specified"  # the model that Infinity's clients send by default


class InfinityEmbeddingsRequest(Wire):
    """The body of Infinity's POST /embeddings, which TEI has at the same path."""

    input: TextsOrIds
    """A text, a list of texts, token ids, or a list of lists of token ids; 1 to `max_sequences`."""
    model: str | None = ANY
    """The model you expect; "default/not-specified", null or left out: the one that is served.
    Another name is refused."""
    encoding_format: Precision = "float"
    """As in POST /v1/embeddings."""
    user: str | None = None
    """Who asks, for your own records; the service ignores it."""
    dimensions: Annotated[int, Field(ge=0)] | None = 0
    """How many numbers of each vector to keep, the first ones, at most `width`; 0, null or left
    out: all. The vector is cut, then scaled to length 1."""
    modality: Literal["text"] = "text"
    """What the inputs are; this service reads texts."""


class InfinityRerankRequest(Wire):
    """The body of Infinity's POST /rerank."""

    query: str
    """What the documents are to answer."""
    documents: Strings
    """The documents to rank: 1 to `max_sequences`."""
    return_documents: bool = False
    """Whether each result comes with its document."""
    raw_scores: bool = False
    """Whether scores are the logits themselves, not their sigmoid."""
    model: str | None = ANY
    """As in POST /embeddings."""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """How many to answer, the best ones; left out or null, or more than there are: all."""


class ClassifyRequest(Wire):
    """The body of Infinity's POST /classify."""

    input: Strings
    """The texts to classify: 1 to `max_sequences`."""
    model: str | None = ANY
    """As in POST /embeddings."""
    raw_scores: bool = False
    """Whether scores are the logits themselves; Infinity ignores it."""


DOCUMENTS = re.compile(rb'"documents"\s*:')  # as a key: in a string a quote has a backslash


class Embeddings(openai.Embeddings):
    """A request of POST /embeddings."""

    def added(self) -> dict[str, Any]:
        return _stamp()


class Ranks(Ranking):
    """A request of POST /rerank."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        results = (
            {"relevance_score": best.score, "index": best.place, "document": best.text}
            for best in self.best(encoded)
        )
        return {"object": "rerank", "results": Each(results, plain=True), **_ended(encoded)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(JSONCall):
    """A request of POST /classify.

    Args:
        raw: whether scores are logits.
    """

    raw: bool

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        every = (of_kind(item.tasks, Classes) for item in encoded.items)
        best = (best_classes(one, one.logits if self.raw else one.scores) for one in every)
        return {"object": "classify", "data": Each(best, plain=True), **_ended(encoded)}


def embeddings(body: bytes, sent: Sent, served: Served) -> Embeddings:
    """Read a request of POST /embeddings.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    request = InfinityEmbeddingsRequest.model_validate_json(body)
    check_dense(served.tasks)
    native = Request(
        inputs=items(request.input),
        model=_model(request.model),
        usual="right",
        counted=False,
        pooled=openai.unit(request.dimensions or None),
        layout=openai.layout(request.encoding_format),
    )
    return Embeddings(request=native, precision=request.encoding_format)


def asks_rerank(body: bytes) -> bool:
    """Tell whether a POST /rerank request is Infinity's, by `documents`; TEI's has `texts`."""
    return DOCUMENTS.search(body) is not None


def rerank(body: bytes, sent: Sent, served: Served) -> Ranks:
    """Read a request of POST /rerank; raises as `embeddings` does, and Refused without documents.

    From here on refusals use Infinity's wording.
    """
    sent.wording = rerank_problem
    request = InfinityRerankRequest.model_validate_json(body)
    model, texts = _model(request.model), request.documents
    native = ranking_request(request.query, texts, "documents", served, usual="right", model=model)
    return Ranks(
        request=native,
        most=request.top_n,
        scored="logits" if request.raw_scores else "sigmoid",
        texts=texts if request.return_documents else (),
    )


def classify(body: bytes, sent: Sent, served: Served) -> Classification:
    """Read a request of POST /classify; raises as `embeddings` does."""
    request = ClassifyRequest.model_validate_json(body)
    native = Request(
        inputs=items(request.input),
        model=_model(request.model),
        usual="right",
        counted=False,
        pooled=False,
        tasks=(Classify(),),
    )
    return Classification(request=native, raw=request.raw_scores)


def models(names: Names, tasks: Sequence[str], stats: Mapping[str, float]) -> bytes:
    """Return the list of models: the one that is served, and with each of its adapters.

    Args:
        tasks: what it can do, as in GET /info.
        stats: what is queued.
    """
    capabilities = ["embed", *(task for task in ("rerank", "classify") if task in tasks)]
    if by_three(tasks):
        capabilities.append("rerank")
    alike = {"object": "model", "owned_by": "infinity", "created": 0}
    alike |= {"backend": "torch", "capabilities": capabilities, "stats": stats}
    data = [{"id": name, **alike} for name in names.every]
    return orjson.dumps({"object": "list", "data": data})


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal as Infinity words it."""
    return _problem(refused, {"inputs": "input", "pooled": "dimensions"})


def rerank_problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal of POST /rerank, with the places in its own request."""
    return _problem(relocate(refused, "documents"), {})


def _problem(refused: Refused, names: Mapping[str, str]) -> Reply:
    status = INFINITY.get(refused.code, refused.status)
    fault = {"message": sentence(refused, names), "type": None, "param": None, "code": status}
    return Reply(orjson.dumps({"error": fault}), status, media_type=JSON)


def _model(name: str | None) -> str | None:
    """Return the model that the client expects; None: any."""
    return None if name == ANY else name


def _ended(encoded: Encoded) -> dict[str, Any]:
    """Return the fields that end an answer."""
    return {"model": encoded.preamble["model"], "usage": openai.count_usage(encoded), **_stamp()}


def _stamp() -> dict[str, Any]:
    return {"id": f"infinity-{uuid4()}", "created": int(time.time())}
