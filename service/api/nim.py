"""NVIDIA NIM's API of rerankers: POST /v1/ranking. POST /v1/embeddings answers NIM's embedders.

Deliberate differences: `truncate` may be "START" too, and pictures are refused. Sources: NVIDIA's
reference of NeMo Retriever Reranking NIM 2.3; langchain-nvidia-ai-endpoints 1.5.
"""

from typing import Annotated, Any

from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.api.dialect import explain_refusal, json_reply
from service.api.inputs import END_CUTS, CutEnd
from service.api.ranking import (
    RANKING_CODES,
    InstructedRequest,
    RankingCall,
    ranking_request,
    relocate,
)
from service.api.usage import count_usage
from service.observe.families import OF_TEXT
from service.shapes.answer import Answer, Each
from service.shapes.call import Api, Example, ModelFacts, Reply, RequestHead
from service.shapes.price import Layout
from service.tables.refusals import Refused
from service.tables.wording.wire import ForeignRequest


class RankingText(ForeignRequest):
    """A query or a passage."""

    text: str
    """Its text."""


Passages = TypeAliasType("Passages", Annotated[list[RankingText], FailFast()])


class RankingRequest(ForeignRequest):
    """The body of NIM's POST /v1/ranking."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: RankingText
    """What the passages are to answer."""
    passages: Passages
    """The passages to rank: 1 to `max_sequences`."""
    truncate: CutEnd | None = None
    """Where a query and a passage of more than `max_tokens` tokens together are cut, the longer
    first; NONE: they are refused; left out or null: `auto_truncate` of GET /info."""


class NimRankingCall(RankingCall):
    """A request of POST /v1/ranking."""

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return NIM's answer: the logit of each passage, best first."""
        rankings = ({"index": one.place, "logit": one.score} for one in self.best(encoded))
        return {"rankings": Each(rankings), "usage": count_usage(encoded)}


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> NimRankingCall:
    """Parse a request of POST /v1/ranking; raises Refused or ValidationError."""
    request = RankingRequest.parse(body, head.ignored)
    native, custom = ranking_request(
        InstructedRequest.model_construct(query=request.query.text),
        [passage.text for passage in request.passages],
        "passages",
        served,
        layout=Layout(),
        truncate=END_CUTS[request.truncate] if request.truncate else None,
        model=request.model,
    )
    return NimRankingCall(request=native, custom=custom, most=None, scored="logits", texts=())


def problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal in the form of NIM's errors."""
    message = explain_refusal(relocate(refused, "passages"), {})
    error = {"object": "error", "message": message, "detail": message, "code": refused.code}
    return json_reply(error, refused.status)


API = Api(
    "NVIDIA NIM",
    problem,
    body_codes=RANKING_CODES,
    document="https://docs.nvidia.com/nim/nemo-retriever/text-reranking/latest/reference.html",
)
ROUTES = [
    API.post(
        "/v1/ranking",
        "NIM: passages by how well they answer a query",
        RankingRequest,
        parse,
        inputs=OF_TEXT,
        metric="/v1/rerank",
        task="rerank",
        more="Scores are the logits, best passage first.",
        examples=[
            Example(
                "no such task",
                "Best passage first; refused here, since this checkpoint has no head for it",
                '{"model": "all-MiniLM-L6-v2", "query": {"text": "Which animal makes noise?"}, '
                '"passages": [{"text": "It is raining"}, {"text": "The dog barks"}]}',
            )
        ],
    )
]
