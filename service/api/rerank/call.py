"""POST /v1/rerank and /v2/rerank, whose shape Jina's and Cohere's clients share.

Scores are by the checkpoint's own activation, as sentence-transformers' CrossEncoder gives them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import orjson

from service.api import ranking
from service.api.dialect import InPieces, Problem, sentence
from service.api.rerank.request import RerankRequest
from service.encode.answer import JSON, Encoded
from service.encode.shown import numbers
from service.refusals import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(InPieces):
    """A request.

    Args:
        most: results to answer.
        texts: those to answer with their results, if any.
    """

    most: int | None
    texts: Sequence[str]

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        ranks = ranking.ranked(encoded.items)[: self.most]
        scores = numbers(np.array([rank.score for rank in ranks], dtype=np.float32))
        yield orjson.dumps({"model": encoded.head["model"]})[:-1] + b',"results":['
        for place, (rank, score) in enumerate(zip(ranks, scores, strict=True)):
            document = {"document": {"text": self.texts[rank.place]}} if self.texts else {}
            yield b"," if place else b""
            yield orjson.dumps({"index": rank.place, "relevance_score": score, **document})
        usage = {"total_tokens": encoded.usage["tokens"]}
        yield b'],"usage":' + orjson.dumps(usage) + b"}"


def parse(body: bytes, most: int, documents: bool) -> Call:
    """Read a request.

    Args:
        most: characters of the query, as often as there are documents.
        documents: whether results come with theirs where the request does not say.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    request = RerankRequest.model_validate_json(body)
    texts = [entry if isinstance(entry, str) else entry.text for entry in request.documents]
    native = ranking.request(
        request.query,
        texts,
        "documents",
        most,
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
