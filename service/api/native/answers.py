"""What the native routes answer, as types for the document of the API."""

from typing import Annotated, Any, Literal

from pydantic import Field
from typing_extensions import TypedDict

from service.api.native.attention import AttentionAnswer, Characters, Tokens, Vector
from service.api.tei.answers import TEIInfo
from service.api.types import Closed, Provenance, one_of
from service.encode.request import Floats
from service.refusals import REFUSALS


class Requested(Closed, total=False):
    """What was asked for of one input; tokens come with their vectors, layers and attention."""

    tokens: list[str | None] | None
    token_ids: list[int] | None
    offsets: Annotated[list[Characters] | None, Field(description="characters")]
    words: list[int | None] | None
    segments: list[int]
    special: list[bool] | None
    pooled: Annotated[Vector, Field(description="(width,)")]
    token_vectors: Tokens
    layers: Annotated[dict[str, Tokens], Field(description="by hidden state")]
    attention: AttentionAnswer


class Encoding(Requested):
    """One input's share of the answer; null is what cannot be known of its tokens."""

    truncated: bool
    length: Annotated[int, Field(description="tokens before truncation")]


class Usage(Closed):
    """What a request took."""

    tokens: int
    attention_bytes: Annotated[int, Field(description="of the raw arrays")]
    answer_bytes: Annotated[int, Field(description="of all raw arrays")]
    queue_ms: float
    compute_ms: float


class Answer(Provenance):
    """What POST /v1/encode answers."""

    dtype: Floats
    data: list[Encoding]
    usage: Usage


class Priced(Closed):
    """What POST /v1/encode?dry_run=true answers."""

    tokens: int
    attention_bytes: Annotated[int, Field(description="of the raw arrays")]
    answer_bytes: Annotated[int, Field(description="of all raw arrays")]
    flops: Annotated[int, Field(description="a product and its sum are two")]
    admitted: Annotated[bool, Field(description="whether it would be answered now")]
    code: Literal[
        None,
        "attention_too_large",
        "answer_too_large",
        "overloaded",
        "deadline_unreachable",
        "deadline_exceeded",
    ]
    retry_after_s: int | None


class Scores(Closed):
    """A measure of a head, and what it is compared with."""

    score: float | None
    threshold: float | None
    baseline: float | None


class Role(Scores):
    """A role that a head fills."""

    role: str


class MeasuredHead(Scores):
    """What one head does."""

    layer: int
    head: int
    role: Annotated[str | None, Field(description="null: it fills none")]
    also: Annotated[list[Role], Field(description="other roles that it fills")]
    measures: dict[str, float | None]


class Relation(Scores):
    """Whether a head finds a relation between words."""

    kind: str | None
    found: Annotated[str, Field(description="the head, or: no head found")]
    head: str | None
    reason: Annotated[str | None, Field(description="why no head was found")]
    candidate: str | None
    offset: Annotated[int | None, Field(description="the best fixed one, words")]
    items: Annotated[int, Field(description="sentences the candidate was chosen by")]
    controls: Annotated[int, Field(description="sentences it was judged by")]


class Corpus(Closed):
    """The sentences that heads were measured on."""

    name: str
    digest: str
    sentences: int


class Heads(Closed):
    """What GET /v1/heads answers."""

    model: str
    weights: str
    corpus: Corpus
    thresholds: dict[str, float]
    margin: Annotated[float, Field(description="of a relation's threshold above its baseline")]
    heads: list[MeasuredHead]
    relations: dict[str, Relation]


class Info(Provenance, TEIInfo):
    """The replica's own, then what clients of other APIs look for."""

    dtype: str
    revision: Annotated[str | None, Field(description="commit of the hub")]
    family: str
    trained: bool
    layers: int
    heads: int
    width: int
    embedding_width: Annotated[int, Field(description="of `embeddings` inputs")]
    max_tokens: int
    pooling: str
    prompts: Annotated[list[str], Field(description="their names")]
    default_prompt_name: Annotated[str | None, Field(description="where none is given")]
    device: str
    limits: dict[str, float]
    versions: dict[str, str]


class Live(Closed):
    """The process answers."""

    status: Literal["live"]


class Ready(Closed):
    """The forward path lately proved itself."""

    status: Literal["ready"]


Code = Annotated[str, one_of(sorted(REFUSALS))]
Change = Annotated[dict[str, Any], Field(description="of the request")]


class Fault(Closed):
    """One thing wrong with a request."""

    loc: list[str | int]
    code: Code


class ProblemFacts(TypedDict, total=False):
    """What helps the caller, by code."""

    bytes: Annotated[int, Field(description="of an answer too large: of the raw arrays")]
    limit: int
    length: int
    tokens: Annotated[int, Field(description="of too_many_tokens")]
    layer: Annotated[int, Field(description="of nonfinite_output: the first state; -1: the last")]
    layers: Annotated[int, Field(description="of index_out_of_range: the model's")]
    heads: Annotated[int, Field(description="of index_out_of_range: a layer's")]
    dtype: str
    estimate_ms: Annotated[
        int, Field(description="of deadline_unreachable: what it takes at the best speed seen")
    ]
    deadline_ms: Annotated[int, Field(description="of deadline_unreachable")]
    prompts: Annotated[list[str], Field(description="of prompt_not_found: the names there are")]
    fits: Annotated[list[Change], Field(description="cheapest first; each would fit")]
    errors: list[Fault]


class Problem(ProblemFacts):
    """A refusal, as RFC 9457 words it; a code may bring facts of its own."""

    type: Literal["about:blank"]
    title: str
    status: int
    code: Code
    detail: str
    request_id: str
