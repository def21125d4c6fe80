"""The routes of Hugging Face's text-embeddings-inference (TEI).

What differs from it on purpose: token ids are encoded as given, where TEI makes text of them and
tokenizes that; unknown fields are refused; a prompt by name before token ids is refused.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from model.tokenizer import Truncate
from service.api import dialect
from service.api.dialect import Problem, inputs, sentence
from service.api.tei.answers import ERROR_TYPES, OTHER_ERROR
from service.api.tei.request import Cut, EmbedAllRequest, EmbedRequest, SimilarityRequest
from service.api.tei.vocabulary import Piece
from service.encode import answer
from service.encode.answer import JSON, Array, Encoded
from service.encode.request import EncodeRequest, Pooled
from service.refusals import TEI, Refused

# what TEI serves of other kinds of model
OTHER_TASKS = ("/rerank", "/predict", "/embed_sparse", "/embed_splade")
NAMES = {"pooled": "dimensions"}


@dataclass(frozen=True, slots=True)
class Call(dialect.InPieces):
    """One request of POST /embed or POST /embed_all: a list with an entry for each input."""

    request: EncodeRequest
    numbers: bool = True

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        """The answer, in pieces."""
        for index, item in enumerate(encoded.items):
            yield b"," if index else b"["
            array = item.tokens if self.request.tokens else item.pooled
            yield from answer.numbers(_there(array))
        yield b"]"


class Comparison(Call):
    """One request of POST /similarity: the cosine of the first input with each other."""

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        """The answer, in pieces."""
        yield from answer.numbers(_cosines(_there(item.pooled) for item in encoded.items))


def embed(body: bytes) -> Call:
    """Read a request of POST /embed.

    Raises:
        ValidationError: what service/refusals.py gives a status.
    """
    asked = EmbedRequest.model_validate_json(body)
    pooled = Pooled(normalize=asked.normalize, dimensions=asked.dimensions)
    return Call(_request(asked, inputs(asked.inputs), pooled=pooled))


def embed_all(body: bytes) -> Call:
    """Read a request of POST /embed_all; raises as `embed` does."""
    asked = EmbedAllRequest.model_validate_json(body)
    return Call(_request(asked, inputs(asked.inputs), pooled=False, tokens=True))


def similarity(body: bytes) -> Call:
    """Read a request of POST /similarity; raises as `embed` does, and Refused without sentences."""
    asked = SimilarityRequest.model_validate_json(body)
    if not asked.inputs.sentences:
        raise Refused("batch_empty")
    texts = [asked.inputs.source_sentence, *asked.inputs.sentences]
    pooled = Pooled(normalize=True)
    return Comparison(_request(asked.parameters or Cut(), inputs(texts), pooled=pooled))


def tokenized(texts: Iterable[Iterable[Piece]]) -> bytes:
    """The answer of POST /tokenize."""
    return orjson.dumps([[_token(piece) for piece in pieces] for pieces in texts])


def info(told: Mapping[str, Any], workers: int) -> dict[str, Any]:
    """What TEI's clients look for in GET /info.

    Args:
        told: our own GET /info.
        workers: threads that tokenize.
    """
    limits = told["limits"]
    return {
        "model_id": told["model"],
        "model_sha": told["revision"],
        "model_dtype": told["dtype"],
        "served_model_name": told["model"],
        "model_type": {"embedding": {"pooling": told["pooling"]}},
        "max_concurrent_requests": limits["max_waiting_requests"],
        "max_input_length": told["max_tokens"],
        "max_batch_tokens": limits["batch_tokens"],
        "max_batch_requests": None,
        "max_client_batch_size": limits["max_sequences"],
        "auto_truncate": True,
        "tokenization_workers": workers,
        "version": told["versions"]["headlight"],
        "sha": None,
        "docker_label": None,
    }


def problem(refused: Refused, request_id: str) -> Problem:
    """A refusal as TEI words it."""
    kind = ERROR_TYPES.get(refused.code, OTHER_ERROR)
    body = orjson.dumps({"error": sentence(refused, NAMES), "error_type": kind})
    return Problem(TEI.get(refused.code, refused.status), body, JSON)


def _request(asked: Cut, given: list[Any], **more: Any) -> EncodeRequest:
    """The native request."""
    side: Truncate = "left" if asked.truncation_direction in ("Left", "left") else "right"
    return EncodeRequest.model_construct(
        inputs=given,
        truncate="refuse" if asked.truncate is False else side,
        prompt_name=asked.prompt_name,
        **more,
    )


def _there(array: Array | None) -> Array:
    if array is None:
        raise RuntimeError("an array that was asked for is missing: this is a bug")
    return array


def _cosines(vectors: Iterable[Array]) -> Array:
    """Of the first vector of length 1 with each other one."""
    every = iter(vectors)
    source = next(every).astype(np.float64)
    return np.array([source @ other for other in every], dtype=np.float32)


def _token(piece: Piece) -> dict[str, Any]:
    start, stop = (None, None) if piece.special else (piece.start, piece.stop)
    return {
        "id": piece.id,
        "text": piece.text,
        "special": piece.special,
        "start": start,
        "stop": stop,
    }
