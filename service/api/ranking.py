"""Ranking of documents in any API: the native request for it, and the ranked answer."""

import copy
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from model.text.tokenizer import Truncation
from service.api.dialect import JSONCall
from service.pipeline.write.task_answers import Classes, of_kind, short_numbers
from service.questions.encode import EncodeRequest
from service.shapes.answer import Answer, Array
from service.shapes.ask import Custom, Documents
from service.shapes.call import ENCODE_CODES, ModelFacts
from service.shapes.outputs import ScoreReason
from service.shapes.price import Layout
from service.tables.refusals import Refused
from service.tables.wording.wire import ForeignRequest
from service.tables.wording.words import Loc

RANKING_CODES = (*ENCODE_CODES, "task_not_found", "model_not_found")  # codes of routes that rank
# Details of refusals
UNRANKED = (
    "this model makes dense, sparse and token vectors, and no score of a pair: ask POST /v1/encode"
    " for all three, and POST /v1/maxsim for the score of its token vectors"
)
RAW_SCORES = "it goes without `raw_scores`, which asks for the logits"
ONE_INSTRUCTION = "it goes without `prompt_name`, which names a stored one"
# What scores are: the logits after the checkpoint's own activation, or after the sigmoid where that
# is the identity ("bounded"); the logits, or their sigmoid
Scored = Literal["own", "bounded", "logits", "sigmoid"]
HYBRID_TASKS = {"sparse", "multi_vector"}  # tasks of a model that also makes dense vectors


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
    raw_scores: bool = False
    """TEI's and Infinity's: whether scores are the logits themselves."""
    use_activation: bool | None = None
    """vLLM's: false asks for the logits, true for scores between 0 and 1, also of a checkpoint
    whose own activation is the identity; left out or null: the route's own scores. Without
    `raw_scores`."""

    def choose_scores(self, usual: Scored) -> Scored:
        """Return what the scores are that a request asks for.

        Args:
            usual: where it does not say.

        Raises:
            Refused: it asks for logits and for an activation.
        """
        if self.raw_scores and self.use_activation:
            raise Refused.at("out_of_range", "use_activation", detail=RAW_SCORES)
        if self.raw_scores or self.use_activation is False:
            return "logits"
        return "bounded" if self.use_activation and usual == "own" else usual


def ranking_request(
    ranking: InstructedRequest,
    texts: Sequence[str],
    texts_field: str,
    served: ModelFacts,
    *,
    layout: Layout,
    truncate: Truncation | None,
    model: str | None = None,
    most_of_text: int | None = None,
    most: int | None = None,
    reason: ScoreReason | None = None,
) -> tuple[EncodeRequest, Custom]:
    """Return the native request to rank texts by how well each answers a query.

    Args:
        ranking: the query, and an instruction or a prompt.
        texts_field: the name of the texts' field in the request as sent.
        layout: how the answer is written; see `echo_layout`.
        most_of_text: how many of a text's first tokens are read; None: all.
        truncate, most: of a pair, as in Custom.
        reason: how to tell what each score rests on; None: not at all.

    Raises:
        Refused: there is no text, the query or the instruction is too long for so many texts, or
            the model makes vectors and no scores.
    """
    if not texts:
        detail = "expected one text or more, received none"
        raise Refused.at("batch_empty", texts_field, detail=detail)
    if "rerank" not in served.tasks and {*served.tasks} >= HYBRID_TASKS:
        raise Refused("task_not_found", detail=UNRANKED, tasks=list(served.tasks))
    # characters of each pair: each text is tokenized with the query
    limit = served.most_json // len(texts)
    query, instruction = ranking.query, ranking.instruction
    if instruction is not None and ranking.prompt_name is not None:
        raise Refused.at("out_of_range", "instruction", detail=ONE_INSTRUCTION)
    if len(instruction or "") > limit:
        raise Refused.at("text_too_long", "instruction", length=len(instruction or ""), limit=limit)
    if len(query) > limit:
        raise Refused.at("text_too_long", "query", length=len(query), limit=limit)
    request = EncodeRequest.of(
        [(query, text) for text in texts],
        model=model,
        prompt_name=ranking.prompt_name,
        pooled=False,
        reason=reason,
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
    """Return the layout of an answer that repeats texts: their share of the body's bytes is added.

    Args:
        texts: those that may be repeated; empty: none are.
        most: how many are repeated, the longest at worst; None: all.
    """
    lengths = sorted(map(len, texts), reverse=True)
    repeated, total = sum(lengths[:most]), len(query) + sum(lengths)
    return Layout(extra_bytes=len(body) * repeated // max(total, 1))


class RankedText(NamedTuple):
    """One text of a ranking.

    Args:
        place: its index in the request.
        text: the text, if the answer repeats it.
        reason: what its logit rests on, if asked for.
    """

    place: int
    score: float
    text: str | None
    reason: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class RankingCall(JSONCall):
    """A request to rank texts.

    Args:
        most: how many texts to return, the best; None: all.
        scored: what scores are.
        texts: those of the request, if the answer repeats them; else empty.
    """

    needs_all: ClassVar = True
    most: int | None
    scored: Scored
    texts: Sequence[str]

    def best(self, encoded: Answer) -> Iterator[RankedText]:
        """Yield the texts, best first; ties keep their order."""
        items = [*encoded.items]
        classes = [of_kind(item.tasks, Classes) for item in items]
        logits = np.array([pair.logits[0] for pair in classes], dtype=np.float32)
        order = np.argsort(-logits, kind="stable")[: self.most]
        scores = logits if self.scored == "logits" else sigmoid(logits)
        if self.scored in ("own", "bounded"):
            own = np.array([pair.scores[0] for pair in classes], dtype=np.float32)
            is_identity = np.array_equal(own, logits)
            scores = scores if self.scored == "bounded" and is_identity else own
        for place, score in zip(order.tolist(), short_numbers(scores[order]), strict=True):
            text = self.texts[place] if self.texts else None
            yield RankedText(place, score, text, items[place].facts.get("reason"))


def sigmoid(logits: Array) -> Array:
    """Return the sigmoid of logits, of the same shape, float32."""
    # exp overflows for a large negative logit; tanh does not
    exact: Array = (np.tanh(logits.astype(np.float64) / 2) + 1) / 2
    return exact.astype(np.float32)


def relocate(refused: Refused, texts_field: str) -> Refused:
    """Return a refusal of native pairs with its places in the request to rank.

    Args:
        texts_field: the name of the texts' field in the request to rank.
    """
    relocated = copy.copy(refused)
    relocated.faults = [
        replace(fault, loc=_ranking_place(fault.loc, texts_field)) for fault in refused.faults
    ]
    return relocated


def _ranking_place(loc: Loc, texts_field: str) -> Loc:
    """Translate a place in the native request to one in the request to rank."""
    match loc:
        case ("inputs", _, "text"):  # the first text of a pair
            return ("query",)
        case ("inputs", index, *_):
            return (texts_field, index)
        case (str(field), *index, "text") if field == texts_field:  # of a document as an object
            return (field, *index)
        case _:
            return loc
