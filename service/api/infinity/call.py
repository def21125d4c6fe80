"""Infinity's routes without a prefix: POST /embeddings, /rerank and /classify, GET /models.

What differs from it on purpose: an unknown field is refused, and so is an empty text; usage counts
tokens; vectors cut to `dimensions` are scaled again, as TEI's are. What is too long is cut on the
right, as Infinity and TEI do.
"""

import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from uuid import uuid4

import orjson

from service.api import ranking
from service.api.dialect import JSONCall, Problem, Sent, Served, sentence
from service.api.infinity.request import (
    ANY,
    ClassifyRequest,
    InfinityEmbeddingsRequest,
    InfinityRerankRequest,
)
from service.api.inputs import items
from service.api.openai import call as openai
from service.encode.answer import JSON, Each, Encoded, Item
from service.encode.request import Classify, Request
from service.encode.shown import Classes, numbers, of_kind
from service.refusals import INFINITY, Refused

DOCUMENTS = re.compile(rb'"documents"\s*:')  # as a key: in a string a quote has a backslash


class Embeddings(openai.Call):
    """A request of POST /embeddings."""

    def added(self) -> dict[str, Any]:
        return _stamp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(JSONCall):
    """A request of POST /rerank.

    Args:
        most: results to answer.
        raw: whether scores are logits.
        texts: those to answer with their results, if any.
    """

    most: int | None
    raw: bool
    texts: Sequence[str]

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        ranks = ranking.best(encoded.items, self.most, self.raw)
        texts = self.texts
        results = [
            {
                "relevance_score": score,
                "index": place,
                "document": texts[place] if texts else None,
            }
            for place, score in ranks
        ]
        return {"object": "rerank", "results": Each(results, plain=True), **_ended(encoded)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Classification(JSONCall):
    """A request of POST /classify.

    Args:
        raw: whether scores are logits.
    """

    raw: bool

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        data = Each(map(self._best_first, encoded.items), plain=True)
        return {"object": "classify", "data": data, **_ended(encoded)}

    def _best_first(self, item: Item) -> list[dict[str, Any]]:
        """Return the classes, of equal ones the first first."""
        classes = of_kind(item.task, Classes)
        scores = classes.logits if self.raw else classes.scores
        rows = zip(numbers(scores), classes.labels, strict=True)
        return [
            {"score": score, "label": label}
            for score, label in sorted(rows, key=lambda row: -row[0])
        ]


def embeddings(body: bytes, sent: Sent, served: Served) -> Embeddings:
    """Read a request of POST /embeddings.

    Raises:
        ValidationError: what service/refusals.py gives a status.
    """
    request = InfinityEmbeddingsRequest.model_validate_json(body)
    native = Request(
        inputs=items(request.input),
        model=_model(request.model),
        truncate="right",
        counted=False,
        pooled=openai.unit(request.dimensions or None),
        layout=openai.NUMBERS if request.encoding_format == "float" else openai.BYTES,
    )
    return Embeddings(request=native)


def asks_rerank(body: bytes) -> bool:
    """Whether a request of POST /rerank is Infinity's, by `documents`; TEI's has `texts`."""
    return DOCUMENTS.search(body) is not None


def rerank(body: bytes, sent: Sent, served: Served) -> Ranks:
    """Read a request of POST /rerank; raises as `embeddings` does, and Refused of no documents.

    From here on it is refused in Infinity's words.
    """
    sent.wording = rerank_problem
    request = InfinityRerankRequest.model_validate_json(body)
    model, texts = _model(request.model), request.documents
    native = ranking.request(
        request.query, texts, "documents", served.most_json, truncate="right", model=model
    )
    return Ranks(
        request=native,
        most=request.top_n,
        raw=request.raw_scores,
        texts=texts if request.return_documents else (),
    )


def classify(body: bytes, sent: Sent, served: Served) -> Classification:
    """Read a request of POST /classify; raises as `embeddings` does."""
    request = ClassifyRequest.model_validate_json(body)
    native = Request(
        inputs=items(request.input),
        model=_model(request.model),
        truncate="right",
        counted=False,
        pooled=False,
        tasks=(Classify(),),
    )
    return Classification(request=native, raw=request.raw_scores)


def models(name: str, tasks: Sequence[str], stats: Mapping[str, float]) -> bytes:
    """The list of models: the one that is served.

    Args:
        tasks: what it can do, as GET /info says.
        stats: what waits.
    """
    capabilities = ["embed", *(task for task in ("rerank", "classify") if task in tasks)]
    model = {"id": name, "object": "model", "owned_by": "infinity", "created": 0}
    more = {"backend": "torch", "capabilities": capabilities, "stats": stats}
    return orjson.dumps({"object": "list", "data": [model | more]})


def problem(refused: Refused, request_id: str) -> Problem:
    """A refusal as Infinity words it."""
    return _problem(refused, {"inputs": "input", "pooled": "dimensions"})


def rerank_problem(refused: Refused, request_id: str) -> Problem:
    """A refusal of POST /rerank, at the places of its own request."""
    return _problem(ranking.located(refused, "documents"), {})


def _problem(refused: Refused, names: Mapping[str, str]) -> Problem:
    status = INFINITY.get(refused.code, refused.status)
    fault = {"message": sentence(refused, names), "type": None, "param": None, "code": status}
    return Problem(status, orjson.dumps({"error": fault}), JSON)


def _model(name: str | None) -> str | None:
    """Return the model that the client expects; None: any."""
    return None if name == ANY else name


def _ended(encoded: Encoded) -> dict[str, Any]:
    """Return what ends an answer."""
    return {"model": encoded.preamble["model"], "usage": openai.told(encoded), **_stamp()}


def _stamp() -> dict[str, Any]:
    return {"id": f"infinity-{uuid4()}", "created": int(time.time())}
