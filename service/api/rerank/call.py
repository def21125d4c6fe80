"""POST /v1/rerank and /v2/rerank, whose shape Jina's and Cohere's clients share.

Scores are by the checkpoint's own activation, as sentence-transformers' CrossEncoder gives them.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.api import ranking
from service.api.dialect import JSONCall, Problem, Sent, Served, sentence
from service.api.rerank.request import RerankRequest
from service.encode.answer import JSON, Each, Encoded
from service.encode.shown import numbers
from service.refusals import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(JSONCall):
    """A request.

    Args:
        most: results to answer.
        texts: those to answer with their results, if any.
    """

    most: int | None
    texts: Sequence[str]

    def tree(self, encoded: Encoded) -> dict[str, Any]:
        ranks = ranking.ranked(encoded.items)[: self.most]
        scores = numbers(np.array([rank.score for rank in ranks], dtype=np.float32))
        rows = zip(ranks, scores, strict=True)
        results = Each((self._result(rank.place, score) for rank, score in rows), plain=True)
        usage = {"total_tokens": encoded.usage["tokens"]}
        return {"model": encoded.preamble["model"], "results": results, "usage": usage}

    def _result(self, place: int, score: float) -> dict[str, Any]:
        told = {"index": place, "relevance_score": score}
        return {**told, "document": {"text": self.texts[place]}} if self.texts else told


def jina(body: bytes, sent: Sent, served: Served) -> Call:
    """Read a request of POST /v1/rerank, whose results come with their documents.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    return _parse(body, served, documents=True)


def cohere(body: bytes, sent: Sent, served: Served) -> Call:
    """Read a request of POST /v2/rerank, whose results do not; raises as `jina` does."""
    return _parse(body, served, documents=False)


def _parse(body: bytes, served: Served, *, documents: bool) -> Call:
    """Read a request.

    Args:
        documents: whether results come with theirs where the request does not say.
    """
    request = RerankRequest.model_validate_json(body)
    texts = [entry if isinstance(entry, str) else entry.text for entry in request.documents]
    native = ranking.request(
        request.query,
        texts,
        "documents",
        served.most_json,
        truncate="own" if request.truncate else "refuse",
        model=request.model,
        most_tokens=request.max_tokens_per_doc,
    )
    if request.return_documents is not None:
        documents = request.return_documents
    return Call(
        request=native,
        most=request.top_n,
        texts=texts if documents else (),
    )


def problem(refused: Refused, request_id: str) -> Problem:
    """A refusal as either's clients read it."""
    told = sentence(ranking.located(refused, "documents"), {})
    body = orjson.dumps({"message": told, "detail": told, "code": refused.code})
    return Problem(refused.status, body, JSON)
