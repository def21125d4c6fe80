"""POST /v1/rerank and /v2/rerank, in the shape that Jina's and Cohere's clients share.

Scores use the checkpoint's own activation, as in sentence-transformers' CrossEncoder. A model of
dense, sparse and many vectors, such as BGE-M3, ranks by the weighted mean of its three scores.
Sources of the request: both APIs' references.
"""

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, LiteralString

import orjson
from pydantic import Discriminator, Field, Tag, model_validator
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.api.dialect import JSONCall, Reply, Sent, Served, sentence
from service.api.inputs import Ranking, ranking_request, relocate
from service.encode import request as encode
from service.encode.answer import JSON, Each, Encoded
from service.refusals import Refused
from service.wire import Wire


class Document(Wire):
    """A document as an object."""

    text: str
    """Its text."""


Documents = TypeAliasType(
    "Documents",
    Annotated[
        list[
            Annotated[
                Annotated[str, Tag("<text>")] | Annotated[Document, Tag("<document>")],
                Discriminator(lambda value: "<text>" if isinstance(value, str) else "<document>"),
            ]
        ],
        FailFast(),
    ],
)


NO_WEIGHT: LiteralString = "expected weights with a sum above 0"
THREE = {"sparse", "multi_vector"}  # tasks of a model that ranks by three scores


class HybridWeights(Wire):
    """How much each score counts; one that is left out has its default."""

    dense: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.4
    """Of the product of the pooled vectors, scaled to length 1."""
    sparse: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.2
    """Of the sum of the products of the weights of the tokens that both texts have."""
    multi_vector: Annotated[float, Field(ge=0, allow_inf_nan=False)] = 0.4
    """Of the mean over the query's vectors of the largest product with one of the document's."""

    @model_validator(mode="after")
    def _some(self) -> "HybridWeights":
        if not 0 < self.dense + self.sparse + self.multi_vector < math.inf:
            raise PydanticCustomError("weights_sum", NO_WEIGHT)
        return self


class RerankRequest(Wire):
    """The body of POST /v1/rerank and POST /v2/rerank."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: str
    """What the documents are to answer."""
    documents: Documents
    """The documents to rank, texts or {"text"}: 1 to `max_sequences`."""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """How many to answer, the best ones; left out or null, or more than there are: all."""
    return_documents: bool | None = None
    """Whether each result comes with its document; left out or null: on Jina's route, /v1/rerank,
    but not on Cohere's, /v2/rerank."""
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    """Of Cohere's clients: the tokens of each document that are read, the first ones, without those
    of the query and special ones; left out or null: all that fit."""
    truncate: bool = True
    """Whether a query and a document of more than `max_tokens` tokens together are cut, the longer
    first, on the side that tokenizer_config.json names, else on the right; false: they are
    refused. A model of three scores reads each by itself."""
    weights: HybridWeights | None = None
    """How much each score of a model counts that has "sparse" and "multi_vector" in `tasks`; left
    out or null: 0.4, 0.2 and 0.4. Other models refuse them."""


class Reranking(Ranking):
    """A request."""

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        results = (
            {"index": place, "relevance_score": score, **_document(text)}
            for place, score, text in self.best(encoded)
        )
        return _answered(encoded, Each(results, plain=True))


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridReranking(JSONCall):
    """A request to a model of three scores.

    Args:
        most: documents to return; None: all.
        texts: to return with their scores, if any.
    """

    most: int | None
    texts: Sequence[str]

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        told = [item.facts for item in encoded.items]
        # of equal scores the first document stays first
        order = sorted(range(len(told)), key=lambda place: -told[place]["score"])[: self.most]
        results = (
            {
                "index": place,
                "relevance_score": told[place]["score"],
                "parts": told[place]["parts"],
                **_document(self.texts[place] if self.texts else None),
            }
            for place in order
        )
        return _answered(encoded, Each(results, plain=True))


def _answered(encoded: Encoded, results: Each) -> dict[str, Any]:
    usage = {"total_tokens": encoded.usage["tokens"]}
    return {"model": encoded.preamble["model"], "results": results, "usage": usage}


def _document(text: str | None) -> dict[str, Any]:
    return {} if text is None else {"document": {"text": text}}


def jina(body: bytes, sent: Sent, served: Served) -> JSONCall:
    """Read a request of POST /v1/rerank, whose results come with their documents.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    return _parse(body, served, documents=True)


def cohere(body: bytes, sent: Sent, served: Served) -> JSONCall:
    """Read a request of POST /v2/rerank, whose results come without; raises as `jina` does."""
    return _parse(body, served, documents=False)


def _parse(body: bytes, served: Served, *, documents: bool) -> JSONCall:
    """Read a request.

    Args:
        documents: whether results come with their documents by default.
    """
    request = RerankRequest.model_validate_json(body)
    texts = [entry if isinstance(entry, str) else entry.text for entry in request.documents]
    if request.return_documents is not None:
        documents = request.return_documents
    shown = texts if documents else ()
    if request.weights or _three(served.tasks):
        return HybridReranking(request=_hybrid(request, texts), most=request.top_n, texts=shown)
    native = ranking_request(
        request.query,
        texts,
        "documents",
        served.most_json,
        truncate="own" if request.truncate else "refuse",
        model=request.model,
        most_tokens=request.max_tokens_per_doc,
    )
    return Reranking(request=native, most=request.top_n, scored="own", texts=shown)


def _three(tasks: Collection[str]) -> bool:
    """Tell whether a model with these tasks ranks by three scores."""
    return "rerank" not in tasks and {*tasks} >= THREE


def _hybrid(request: RerankRequest, texts: Sequence[str]) -> encode.Request:
    """Return the encoding that three scores need: the query, then each document.

    Raises:
        Refused: there is no document.
    """
    if not texts:
        none = "expected one text or more, received none"
        raise Refused.at("batch_empty", "documents", detail=none)
    weights = request.weights or HybridWeights()
    return encode.Request(
        model=request.model,
        inputs=[encode.Input(request.query), *map(encode.Input, texts)],
        truncate="own" if request.truncate else "refuse",
        counted=False,
        role="document",
        first=encode.First(("query", "documents"), role="query"),
        documents=encode.Documents(request.max_tokens_per_doc),
        pooled=encode.Pooled(normalize=True),
        tasks=(encode.Sparse(), encode.MultiVector(filled=True)),
        ending=encode.Hybrid(**dict(weights)),
    )


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal that the clients of both can read."""
    told = sentence(relocate(refused, "documents"), {})
    body = orjson.dumps({"message": told, "detail": told, "code": refused.code})
    return Reply(body, refused.status, media_type=JSON)
