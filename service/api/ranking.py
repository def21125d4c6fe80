"""Documents to rank in any API: how they are read, and how each answers the query."""

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Literal, NamedTuple

import numpy as np

from model.text.tokenizer import Truncation
from service.api.dialect import ENCODE_CODES, JSONCall, ModelFacts
from service.core import Custom, Documents, Layout
from service.encode.answer import Array, Encoded
from service.encode.shown import Classes, of_kind, short_numbers
from service.questions.encode import EncodeRequest
from service.refusals import Refused
from service.wire import ForeignRequest
from service.wording.words import Loc

RANKING_CODES = (*ENCODE_CODES, "task_not_found", "model_not_found")  # codes of routes that rank
UNRANKED = (
    "this model makes dense, sparse and token vectors, and no score of a pair: ask POST /v1/encode"
    " for all three, and POST /v1/maxsim for the score of its token vectors"
)
ONE_INSTRUCTION = "it goes without `prompt_name`, which names a stored one"
HYBRID_TASKS = {"sparse", "multi_vector"}  # next to dense vectors


class InstructedRequest(ForeignRequest):
    """What every request to rank says of its query."""

    query: str
    """What the texts are to answer."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before the query, or is the instruction of a reranker that
    has a place for one; left out: its default."""
    instruction: str | None = None
    """What makes a document relevant, in words, for a reranker that has a place for it, such as
    Qwen3-Reranker; without `prompt_name`."""


def ranking_request(
    asked: InstructedRequest,
    texts: Sequence[str],
    name: str,
    served: ModelFacts,
    *,
    layout: Layout,
    truncate: Truncation | None = None,
    model: str | None = None,
    most_of_text: int | None = None,
    most: int | None = None,
) -> tuple[EncodeRequest, Custom]:
    """Return the request to rank texts by how well each answers a query.

    Args:
        name: of the texts, in the request as sent.
        layout: how the answer is written; see `echo_layout`.
        most_of_text: how many of a text's first tokens are read; None: all.
        most: as of Custom.

    Raises:
        Refused: there is no query or no text, the query is too long for so many texts, or the model
            has vectors alone to rank them by.
    """
    if not texts:
        raise Refused.at("batch_empty", name, detail="expected one text or more, received none")
    if "rerank" not in served.tasks and {*served.tasks} >= HYBRID_TASKS:
        raise Refused("task_not_found", detail=UNRANKED, tasks=list(served.tasks))
    room = served.most_json  # characters of all pairs: each text is tokenized with the query
    query, instruction = asked.query, asked.instruction
    if instruction is not None and asked.prompt_name is not None:
        raise Refused.at("out_of_range", "instruction", detail=ONE_INSTRUCTION)
    if len(instruction or "") * len(texts) > room:
        limit = room // len(texts)
        raise Refused.at("text_too_long", "instruction", length=len(instruction or ""), limit=limit)
    if len(query) * len(texts) > room:
        limit = room // len(texts)
        raise Refused.at("text_too_long", "query", length=len(query), limit=limit)
    request = EncodeRequest.of(
        [(query, text) for text in texts],
        model=model,
        prompt_name=asked.prompt_name,
        pooled=False,
    )
    custom = Custom(
        layout,
        truncate,
        usual="own",
        most=most,
        counted=False,
        instruction=instruction,
        documents=Documents(most_of_text),
        rerank=True,
    )
    return request, custom


def echo_layout(body: bytes, query: str, texts: Sequence[str], most: int | None) -> Layout:
    """Return how an answer is written that brings texts back, as long as in the body.

    Args:
        most: texts to return, any of them; None: all.
    """
    lengths = sorted(map(len, texts), reverse=True)
    shown, every = sum(lengths[:most]), len(query) + sum(lengths)
    return Layout(extra_bytes=len(body) * shown // max(every, 1))


class RankedText(NamedTuple):
    """One text in the order of the scores.

    Args:
        place: among the texts of the request.
        text: itself, where it is returned.
    """

    place: int
    score: float
    text: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingCall(JSONCall):
    """A request to rank texts.

    Args:
        most: texts to return; None: all.
        scored: by the checkpoint's own activation, by its logits, or by their sigmoid.
        texts: to return with their scores, if any.
    """

    most: int | None
    scored: Literal["own", "logits", "sigmoid"]
    texts: Sequence[str]

    def best(self, encoded: Encoded) -> Iterator[RankedText]:
        """Yield the texts, best first; ties keep their order."""
        classes = [of_kind(item.tasks, Classes) for item in encoded.items]
        logits = np.array([one.logits[0] for one in classes], dtype=np.float32)
        order = np.argsort(-logits, kind="stable")[: self.most]
        scores = logits if self.scored == "logits" else sigmoid(logits)
        if self.scored == "own":
            scores = np.array([one.scores[0] for one in classes], dtype=np.float32)
        for place, score in zip(order.tolist(), short_numbers(scores[order]), strict=True):
            yield RankedText(place, score, self._text_at(place))

    def _text_at(self, place: int) -> str | None:
        """Return the text at a place, if the answer shows it."""
        return self.texts[place] if self.texts else None


def sigmoid(logits: Array) -> Array:
    """Return values between 0 and 1, float32."""
    # exp overflows for a large negative logit; tanh does not
    exact: Array = (np.tanh(logits.astype(np.float64) / 2) + 1) / 2
    return exact.astype(np.float32)


def relocate(refused: Refused, name: str) -> Refused:
    """Return a refusal of a pair with the place of its text, or of the query, in the request.

    Args:
        name: of the texts, in the request.
    """
    other = copy.copy(refused)
    other.faults = [replace(f, loc=_ranking_place(f.loc, name)) for f in refused.faults]
    return other


def _ranking_place(loc: Loc, name: str) -> Loc:
    """Return where in a request to rank a place in the native one stands."""
    match loc:
        case ("inputs", _, "text"):
            return ("query",)
        case ("inputs", index, *_):
            return (name, index)
        case (str(own), *index, "text") if own == name:  # of a document as an object
            return (own, *index)
        case _:
            return loc
