"""TEI's routes of models with a head: POST /predict, /rerank and /embed_sparse.

Scores are as TEI makes them, whatever the checkpoint's own activation: softmax over several
classes, the sigmoid of one; the logits where `raw_scores` asks for them.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import orjson

from service.api import ranking
from service.api.dialect import InPieces, Problem
from service.api.tei import call
from service.api.tei.request import EmbedAllRequest
from service.api.tei.task_request import PredictRequest, RankRequest
from service.encode.answer import Array, Encoded
from service.encode.request import Classify, Input, Request, Sparse
from service.encode.shown import Classes, Weights, numbers
from service.refusals import Refused


@dataclass(frozen=True, slots=True, kw_only=True)
class Prediction(InPieces):
    """A request of POST /predict.

    Args:
        single: whether it is of one text or pair, answered without a list around it.
        function: what makes scores; None: as many classes as there are say it.
        most: classes to answer.
    """

    single: bool
    function: str | None
    most: int | None

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        yield b"" if self.single else b"["
        for index, item in enumerate(encoded.items):
            yield b"," if index else b""
            if isinstance(item.task, Classes):
                yield orjson.dumps(self._predicted(item.task))
        yield b"" if self.single else b"]"

    def _predicted(self, classes: Classes) -> list[dict[str, Any]]:
        """The classes, best first; of equal ones the first."""
        scores = _scores(classes.logits, self.function)
        rows = zip(numbers(scores), classes.labels, strict=True)
        best = sorted(rows, key=lambda row: -row[0])[: self.most]
        return [{"score": score, "label": label} for score, label in best]


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranks(InPieces):
    """A request of POST /rerank.

    Args:
        most: ranks to answer.
        raw: whether scores are logits.
        texts: those to answer with their ranks, if any.
    """

    most: int | None
    raw: bool
    texts: Sequence[str]

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        ranks = ranking.best(encoded.items, self.most, self.raw)
        for row, (place, score) in enumerate(ranks):
            text = {"text": self.texts[place]} if self.texts else {}
            yield b"," if row else b"["
            yield orjson.dumps({"index": place, **text, "score": score})
        yield b"]"


class SparseVectors(InPieces):
    """A request of POST /embed_sparse."""

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        for place, item in enumerate(encoded.items):
            yield b"," if place else b"["
            if isinstance(item.task, Weights):
                entries = zip(item.task.indices.tolist(), numbers(item.task.values), strict=True)
                yield orjson.dumps([{"index": index, "value": value} for index, value in entries])
        yield b"]"


def predict(body: bytes) -> Prediction:
    """Read a request of POST /predict.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    request = PredictRequest.model_validate_json(body)
    inputs = request.inputs
    single = isinstance(inputs, str) or any(isinstance(entry, str) for entry in inputs)
    entries = [inputs] if single else inputs
    how = request.parameters
    function = "none" if request.raw_scores else None
    return Prediction(
        request=Request(
            inputs=[
                _item(entry, *(() if single else (index,))) for index, entry in enumerate(entries)
            ],
            truncate=call.side(request.truncate, request.truncation_direction),
            counted=False,
            pooled=False,
            tasks=(Classify(),),
        ),
        single=single,
        function=(how.function_to_apply if how else None) or function,
        most=how.top_k if how else None,
    )


def rerank(body: bytes, most: int) -> Ranks:
    """Read a request of POST /rerank; raises as `predict` does.

    Args:
        most: characters of the query, as often as there are texts.
    """
    request = RankRequest.model_validate_json(body)
    truncate = call.side(request.truncate, request.truncation_direction)
    native = ranking.request(request.query, request.texts, "texts", most, truncate=truncate)
    texts = request.texts if request.return_text else ()
    return Ranks(request=native, most=request.top_n, raw=request.raw_scores, texts=texts)


def embed_sparse(body: bytes) -> SparseVectors:
    """Read a request of POST /embed_sparse; raises as `predict` does."""
    request = EmbedAllRequest.model_validate_json(body)
    native = call.native(request, request.inputs, pooled=False, tasks=(Sparse(),))
    return SparseVectors(request=native)


def rerank_problem(refused: Refused, request_id: str) -> Problem:
    """A refusal of POST /rerank as TEI words it, at the places of its own request."""
    return call.problem(ranking.located(refused, "texts"), request_id)


def _item(entry: Any, *place: int) -> Input:
    """Return a text, or a list of one or of the two of a pair, as encode/ knows it."""
    if isinstance(entry, str):
        return Input(entry)
    if len(entry) not in (1, 2):
        detail = f"expected one text or the two of a pair, received {len(entry):,}"
        raise Refused.at(
            "out_of_range" if entry else "batch_empty", "inputs", *place, detail=detail
        )
    return Input(*entry)


def _scores(logits: Array, function: str | None) -> Array:
    """What a function makes of logits, (classes,)."""
    function = function or ("softmax" if len(logits) > 1 else "sigmoid")
    if function == "softmax":
        powers: Array = np.exp(logits.astype(np.float64) - logits.max())
        shares: Array = powers / powers.sum()
        return shares.astype(np.float32)
    return ranking.sigmoid(logits) if function == "sigmoid" else logits
