"""POST /v1/rerank and /v2/rerank, in the shape that Jina's and Cohere's clients share.

Scores use the checkpoint's own activation, as in sentence-transformers' CrossEncoder. A request of
TEI's POST /rerank with `documents` is one of POST /v1/rerank, as vLLM and llama.cpp have it.
Sources of the request: both APIs' references.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

from pydantic import Field

from model.text.tokenizer import Truncation
from service.api.dialect import JSONCall, explain_refusal, json_reply
from service.api.inputs import MostTokens
from service.api.ranking import (
    RANKING_CODES,
    InstructedRequest,
    RankingCall,
    echo_layout,
    ranking_request,
    relocate,
)
from service.api.usage import count_usage
from service.observe.families import OF_TEXT
from service.shapes.answer import Answer, Each
from service.shapes.call import Api, Example, ModelFacts, Reply, RequestHead
from service.shapes.inputs import Documents
from service.shapes.outputs import ScoreReason
from service.tables.refusals import Refused

DOCUMENTS_KEY = re.compile(rb'"documents"\s*:')  # a key, as a quote in a string has a backslash
# What happens to texts that are too long, by the request's `truncate`: "own" cuts them on the
# checkpoint's side; None leaves it to the setting
TRUNCATE_CUTS: Mapping[bool | None, Truncation | None] = {True: "own", False: "refuse", None: None}


class RerankRequest(InstructedRequest):
    """The body of POST /v1/rerank and POST /v2/rerank."""

    aliases: ClassVar = {"top_k": "top_n", "truncation": "truncate"}  # Voyage's

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
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
    truncate: bool | None = None
    """Whether a query and a document of more than `max_tokens` tokens together are cut, the longer
    first, on the side that tokenizer_config.json names, else on the right; false: they are
    refused; left out or null: `auto_truncate` of GET /info."""
    reason: ScoreReason | None = None
    """Our own: which tokens or words of the query and of the document each result's logit rests on,
    as `reason` of its result."""
    texts: None = None
    """TEI's name of the documents, which goes without this one."""
    truncate_prompt_tokens: MostTokens | None = None
    """vLLM's: how many tokens of a query and a document together are read, special ones included;
    -1 is `max_tokens`."""
    rank_fields: list[Literal["text"]] | None = None
    """Cohere's former one: of a document as an object, its text is all that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RerankCall(RankingCall):
    """A request of POST /v1/rerank or /v2/rerank.

    Args:
        version: of Cohere's API, "1" or "2".
    """

    version: str

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return the answer in Jina's and Cohere's shape, best document first.

        That of /v1/rerank has the places and scores also as `data`, where Voyage's clients look.
        """
        best, usage = list(self.best(encoded)), count_usage(encoded)
        scores = [{"index": one.place, "relevance_score": one.score} for one in best]
        rows = (
            {
                **score,
                **({} if ranked.text is None else {"document": {"text": ranked.text}}),
                **({} if ranked.reason is None else {"reason": ranked.reason}),
            }
            for ranked, score in zip(best, scores, strict=True)
        )
        told = {
            "id": str(uuid4()),
            "object": "list",
            "model": encoded.preamble["model"],
            "results": Each(rows),
            "usage": usage,
            "meta": {
                "api_version": {"version": self.version},
                "billed_units": {"input_tokens": usage["total_tokens"]},
            },
        }
        return told if self.version == "2" else {**told, "data": Each(scores)}


def has_documents(body: bytes, served: ModelFacts) -> bool:
    """Tell whether the body of a request to rank has the key "documents"."""
    return DOCUMENTS_KEY.search(body) is not None


def parse_jina(body: bytes, head: RequestHead, served: ModelFacts) -> JSONCall:
    """Parse a request of POST /v1/rerank, whose results repeat their documents by default."""
    return _parse(body, head, served, "1", return_documents=True)


def parse_cohere(body: bytes, head: RequestHead, served: ModelFacts) -> JSONCall:
    """Parse a request of POST /v2/rerank, as `parse_jina`, but by default without documents."""
    return _parse(body, head, served, "2", return_documents=False)


def _parse(
    body: bytes, head: RequestHead, served: ModelFacts, version: str, *, return_documents: bool
) -> JSONCall:
    """Parse a request to rank.

    Args:
        version: of Cohere's API.
        return_documents: whether results repeat their documents where the request does not say.
    """
    request = RerankRequest.parse(body, head.ignored)
    texts = [entry if isinstance(entry, str) else entry.text for entry in request.documents]
    if request.return_documents is not None:
        return_documents = request.return_documents
    returned = texts if return_documents else ()
    native, custom = ranking_request(
        request,
        texts,
        "documents",
        served,
        truncate=TRUNCATE_CUTS[request.truncate],
        model=request.model,
        most_of_text=request.max_tokens_per_doc,
        most=request.truncate_prompt_tokens,
        layout=echo_layout(body, request.query, returned, request.top_n),
        reason=request.reason,
    )
    scored = request.choose_scores("own")
    return RerankCall(
        request=native,
        custom=custom,
        most=request.top_n,
        scored=scored,
        texts=returned,
        version=version,
    )


def problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal, each of whose first fields some API's clients read."""
    message = explain_refusal(relocate(refused, "documents"), {})
    error = {"message": message, "code": refused.code}
    # of Cohere, Jina and Together
    told = {**error, "detail": message, "error": error}
    return json_reply(told, refused.status)


API = Api(
    "Rerank (Jina, Cohere)",
    problem,
    body_codes=(*RANKING_CODES, "similarity_not_explainable"),
    document="https://docs.cohere.com/reference/rerank",
)
_route = partial(
    API.post,
    summary="Documents by how well they answer a query",
    request=RerankRequest,
    task="rerank",
    inputs=OF_TEXT,
    more="The shape that Jina's and Cohere's clients share. Scores are by the checkpoint's own "
    "activation,\nas sentence-transformers' CrossEncoder gives them: between 0 and 1 where that is "
    "the sigmoid.",
    examples=[
        Example(
            "no such task",
            "Best document first; refused here, since this checkpoint has no head for it",
            '{"model": "all-MiniLM-L6-v2", "query": "Which animal makes noise?", '
            '"documents": ["It is raining", "The dog barks"], "top_n": 1}',
        )
    ],
)
ROUTES = [
    _route("/rerank", parse=parse_jina, when=has_documents),
    _route("/v1/rerank", parse=parse_jina),
    _route("/v2/rerank", parse=parse_cohere),
]
