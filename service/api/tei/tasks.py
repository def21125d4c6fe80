"""TEI's routes for models with a task: POST /predict, /rerank and /embed_sparse.

Scores are computed as in TEI, whatever the checkpoint's own activation: softmax over several
classes, sigmoid for one; logits if `raw_scores` asks for them.
"""

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

import numpy as np
from pydantic import Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.api.dialect import JSONCall
from service.api.inputs import Text, Texts
from service.api.ranking import (
    RANKING_CODES,
    InstructedRequest,
    RankingCall,
    echo_layout,
    ranking_request,
    relocate,
    sigmoid,
)
from service.api.tei import embed
from service.api.tei.embed import API, TASK_CODES, CutSide, EmbedAllRequest
from service.observe.families import OF_TEXT, OF_TOKENS
from service.pipeline.write.task_answers import Classes, SparseWeights, of_kind, short_numbers
from service.questions.encode import EncodeRequest
from service.shapes import inputs
from service.shapes.answer import Answer, AnswerItem, Array, Each
from service.shapes.ask import Custom
from service.shapes.call import Example, ModelFacts, Reply, RequestHead
from service.shapes.inputs import Strings
from service.tables.refusals import Refused
from service.tables.wording.wire import ForeignRequest

Pairs = TypeAliasType("Pairs", Annotated[list[Strings], FailFast()])


def _tag_form(value: object) -> str:
    """Return the tag of the union member that `inputs` are, by their first entry."""
    if not isinstance(value, list):
        return "<text>"
    return "<pairs>" if value and isinstance(value[0], list) else "<texts>"


class CutPair(ForeignRequest):
    """How too long a pair is cut."""

    aliases: ClassVar = {"truncation": "truncate"}

    truncate: bool | None = None
    """Whether a text or pair of more than `max_tokens` tokens is cut, of a pair the longer text
    first; false: it is refused. Left out or null: `auto_truncate` of GET /info, or true with a
    direction."""
    truncation_direction: CutSide | None = None
    """The side that is cut; left out or null: the one that tokenizer_config.json names, else the
    right; with neither field, the one that the service's `--truncate` names, if it does."""


class PredictRequest(CutPair):
    """The body of TEI's POST /predict."""

    inputs: Annotated[Text | Texts | Annotated[Pairs, Tag("<pairs>")], Discriminator(_tag_form)]
    """A text, a list of one text or of the two of a pair, or a list of such lists."""
    raw_scores: bool = False
    """Whether scores are the logits themselves."""
    function_to_apply: Literal["softmax", "sigmoid", "none"] | None = None
    """What makes scores of logits; it wins over `raw_scores`. Hugging Face's client sends it."""
    top_k: Annotated[int, Field(ge=1)] | None = None
    """How many classes to answer, the best ones; left out or null: all. As the one before."""


class RankRequest(CutPair, InstructedRequest):
    """The body of TEI's POST /rerank."""

    aliases: ClassVar = {"top_k": "top_n", **CutPair.aliases}

    texts: Strings
    """The texts to rank: 1 to `max_sequences`."""
    return_text: bool = False
    """Whether each rank comes with its text."""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """How many to answer, the best ones; left out or null, or more than there are: all. LiteLLM
    sends it; TEI ignores it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PredictCall(JSONCall):
    """A request of POST /predict.

    Args:
        single: whether it holds one text or pair, answered without a list around it.
        function: "softmax", "sigmoid" or "none", from logits to scores; None: by their number.
        most: how many classes to return, the best; None: all.
    """

    single: bool
    function: str | None
    most: int | None

    def to_json(self, encoded: Answer) -> Any:
        """Return the classes of the one input, or a list of those of each."""
        predicted = map(self._classes_of, encoded.items)
        return next(predicted) if self.single else Each(predicted)

    def _classes_of(self, item: AnswerItem) -> list[dict[str, Any]]:
        """Return the classes of an input with their scores, best first."""
        classes = of_kind(item.tasks, Classes)
        scores = short_numbers(_activate(classes.logits, self.function))
        rows = zip(scores, classes.labels, strict=True)
        best = sorted(rows, key=lambda row: -row[0])[: self.most]  # ties keep their order
        return [{"score": score, "label": label} for score, label in best]


class RankCall(RankingCall):
    """A request of POST /rerank."""

    def to_json(self, encoded: Answer) -> Each:
        """Return a list of ranks, best text first."""
        ranks = (
            {
                "index": ranked.place,
                **({} if ranked.text is None else {"text": ranked.text}),
                "score": ranked.score,
            }
            for ranked in self.best(encoded)
        )
        return Each(ranks)


class SparseCall(JSONCall):
    """A request of POST /embed_sparse."""

    def to_json(self, encoded: Answer) -> Each:
        """Return a list of each input's sparse vector."""
        return Each(map(self._weights_of, encoded.items))

    def _weights_of(self, item: AnswerItem) -> list[dict[str, Any]]:
        """Return an input's sparse vector: the weight of each token id that has one."""
        weights = of_kind(item.tasks, SparseWeights)
        entries = zip(weights.indices.tolist(), short_numbers(weights.values), strict=True)
        return [{"index": index, "value": value} for index, value in entries]


def parse_predict(body: bytes, head: RequestHead, served: ModelFacts) -> PredictCall:
    """Parse a request of POST /predict; raises Refused or ValidationError."""
    request = PredictRequest.parse(body, head.ignored)
    inputs = request.inputs
    single = isinstance(inputs, str) or any(isinstance(entry, str) for entry in inputs)
    entries = [inputs] if single else inputs
    function = "none" if request.raw_scores else None
    return PredictCall(
        request=EncodeRequest.of(
            [
                _make_input(entry, *(() if single else (index,)))
                for index, entry in enumerate(entries)
            ],
            pooled=False,
            classify=True,
        ),
        custom=Custom(
            truncate=embed.cut_side(request.truncate, request.truncation_direction),
            usual="own",
            counted=False,
        ),
        single=single,
        function=request.function_to_apply or function,
        most=request.top_k,
    )


def parse_rerank(body: bytes, head: RequestHead, served: ModelFacts) -> RankCall:
    """Parse a request of POST /rerank; raises as `parse_predict` does."""
    request = RankRequest.parse(body, head.ignored)
    truncate = embed.cut_side(request.truncate, request.truncation_direction)
    query, texts = request.query, request.texts if request.return_text else ()
    layout = echo_layout(body, query, texts, request.top_n)
    native, custom = ranking_request(
        request, request.texts, "texts", served, truncate=truncate, layout=layout
    )
    scored = request.choose_scores("sigmoid")
    return RankCall(request=native, custom=custom, most=request.top_n, scored=scored, texts=texts)


def parse_embed_sparse(body: bytes, head: RequestHead, served: ModelFacts) -> SparseCall:
    """Parse a request of POST /embed_sparse; raises as `parse_predict` does."""
    request = EmbedAllRequest.parse(body, head.ignored)
    return SparseCall(**embed.make_call_parts(request, request.inputs, pooled=False, sparse=True))


def rerank_problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal of POST /rerank, with places in TEI's request."""
    return embed.problem(relocate(refused, "texts"), request_id)


def _make_input(entry: Any, *place: int) -> inputs.Text:
    """Convert a text, or a list of one text or a pair's two, to a native input."""
    if isinstance(entry, str):
        return entry
    if len(entry) not in (1, 2):
        detail = f"expected one text or the two of a pair, received {len(entry):,}"
        raise Refused.at(
            "out_of_range" if entry else "batch_empty", "inputs", *place, detail=detail
        )
    return (entry[0], entry[1]) if len(entry) > 1 else str(entry[0])


def _activate(logits: Array, function: str | None) -> Array:
    """Return scores of logits, (classes,); without a function, softmax or, of one, sigmoid."""
    function = function or ("softmax" if len(logits) > 1 else "sigmoid")
    if function == "softmax":
        powers: Array = np.exp(logits.astype(np.float64) - logits.max())
        shares: Array = powers / powers.sum()
        return shares.astype(np.float32)
    return sigmoid(logits) if function == "sigmoid" else logits


ROUTES = [
    API._replace(problem=rerank_problem).post(
        "/rerank",
        "TEI: texts by how well they answer a query",
        RankRequest,
        parse_rerank,
        inputs=OF_TEXT,
        task="rerank",
        codes=RANKING_CODES,
        more="Scores are the sigmoid of the logits, or the logits (raw_scores), as TEI has it, "
        "whatever\nactivation the checkpoint names; the routes for Jina's and Cohere's clients "
        "follow that one. A request\nwith `documents` in place of `texts` is one of POST "
        "/v1/rerank, and is answered and refused so.",
        examples=[
            Example(
                "no such task",
                "Best text first; refused here, since this checkpoint has no head for it",
                '{"query": "Which animal makes noise?", '
                '"texts": ["It is raining", "The dog barks"]}',
            )
        ],
    ),
    API.post(
        "/predict",
        "TEI: the classes of texts and pairs",
        PredictRequest,
        parse_predict,
        inputs=OF_TEXT,
        task="classify",
        codes=TASK_CODES,
        examples=[
            Example(
                "no such task",
                "Best class first; refused here, since this checkpoint has no head for it",
                '{"inputs": [["I love this film"], ["It was far too long"]]}',
            )
        ],
    ),
    API.post(
        "/embed_sparse",
        "TEI: a sparse vector for each input",
        EmbedAllRequest,
        parse_embed_sparse,
        inputs=OF_TOKENS,
        task="sparse",
        codes=TASK_CODES,
        examples=[
            Example(
                "no such task",
                "Weights by token; refused here, since this checkpoint has no head for it",
                '{"inputs": "All is well"}',
            )
        ],
    ),
]
