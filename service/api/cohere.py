"""Cohere's API: POST /v2/embed, as its clients know it.

Deliberate differences: pictures are refused, vectors have length 1 at any `output_dimension`, and
there may be as many texts as the service takes. Source of the request: Cohere's reference of
version 2; its Python client, 7.3.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, ClassVar, Literal
from uuid import uuid4

from pydantic import Field
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.api.dialect import JSONCall, explain_refusal, json_reply
from service.api.inputs import END_CUTS, CutEnd, Dimensions, check_dense, find_prompt
from service.api.precisions import NUMBER_BYTES, Precision, pooled_vectors, to_precision
from service.observe.families import OF_TEXT
from service.questions.encode import EncodeRequest
from service.shapes.answer import Answer, Each
from service.shapes.ask import Custom, Documents
from service.shapes.call import EMBEDDING_CODES, Api, Example, ModelFacts, Reply, RequestHead
from service.shapes.inputs import Strings
from service.shapes.outputs import DEFAULT_POOLED
from service.shapes.price import PARTS, Layout
from service.tables.refusals import Refused
from service.tables.wording.wire import ForeignRequest
from service.tables.wording.words import Loc

InputType = Literal["search_document", "search_query", "classification", "clustering"]
Precisions = TypeAliasType("Precisions", Annotated[list[Precision], FailFast()])

# Details of refusals
NEEDS_END_CUT = 'it goes with "truncate": "END", since the first tokens are read'
EMPTY_TEXT = "expected one character or more, received an empty string"
NO_PRECISION = "expected one kind or more, received none"
PRECISION_TWICE = "expected each kind once"


class EmbedV2Request(ForeignRequest):
    """The body of Cohere's POST /v2/embed."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    input_type: InputType
    """What the texts are for, which chooses the checkpoint's prompt."""
    texts: Strings
    """The texts: 1 to `max_sequences`."""
    embedding_types: Precisions = ["float"]
    """The kinds of vectors, one or more."""
    output_dimension: Dimensions | None = None
    """How many numbers of each vector to keep, the first ones, at most `width`; all where left
    out. The vector is cut, then scaled to length 1."""
    truncate: CutEnd | None = None
    """Where a text of more than `max_tokens` tokens of GET /info is cut; NONE: it is refused; left
    out or null: at its end, unless the service is set otherwise."""
    max_tokens: Annotated[int, Field(ge=1)] | None = None
    """How many tokens of a text are read, the first ones, without special ones; left out: all that
    fit."""
    priority: int | None = None
    """Any is taken; there is one level here."""
    images: None = None
    """Texts are all that is read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CohereEmbedCall(JSONCall):
    """A request of POST /v2/embed.

    Args:
        precisions: of the vectors; all are returned in each.
        texts: those of the request, returned with the vectors.
    """

    needs_all: ClassVar = True  # each precision is written from all vectors

    precisions: Sequence[Precision]
    texts: Sequence[str]

    def to_json(self, encoded: Answer) -> dict[str, Any]:
        """Return Cohere's answer: the vectors in each precision, and the texts."""
        vectors = list(pooled_vectors(encoded))
        return {
            "id": str(uuid4()),
            "response_type": "embeddings_by_type",
            "embeddings": {
                precision: Each(map(partial(to_precision, precision=precision), vectors))
                for precision in self.precisions
            },
            "texts": self.texts,
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": encoded.usage["tokens"]},
            },
        }


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> CohereEmbedCall:
    """Parse a request of POST /v2/embed; raises Refused or ValidationError."""
    request = EmbedV2Request.parse(body, head.ignored)
    _check_request(request)
    check_dense(served.tasks)
    cut = "END" if request.max_tokens else request.truncate
    precisions = request.embedding_types
    return CohereEmbedCall(
        request=EncodeRequest.of(
            request.texts,
            model=request.model,
            truncate=END_CUTS[cut] if cut else None,
            prompt_name=find_prompt("input_type", request.input_type, served),
            pooled=DEFAULT_POOLED.altered(normalize=True, dimensions=request.output_dimension),
        ),
        custom=Custom(
            _answer_layout(precisions, len(body)),
            usual="right",
            counted=False,
            documents=Documents(request.max_tokens) if request.max_tokens else None,
        ),
        precisions=precisions,
        texts=request.texts,
    )


def _check_request(request: EmbedV2Request) -> None:
    """Refuse no or repeated precisions, and with `max_tokens` other cuts and empty texts."""
    precisions = request.embedding_types
    if len(set(precisions)) < len(precisions) or not precisions:
        detail = PRECISION_TWICE if precisions else NO_PRECISION
        raise Refused.at("out_of_range", "embedding_types", detail=detail)
    if request.max_tokens is None:
        return
    if request.truncate not in (None, "END"):
        raise Refused.at("out_of_range", "max_tokens", detail=NEEDS_END_CUT)
    for index, text in enumerate(request.texts):
        if not text:  # the reader, which takes it for a document to rank, would accept it
            raise Refused.at("sequence_empty", "inputs", index, "text", detail=EMPTY_TEXT)


def _answer_layout(precisions: Sequence[Precision], text_bytes: int) -> Layout:
    """Return the layout of an answer with vectors in each precision, and the request's texts.

    Args:
        text_bytes: of the texts, at most; the request's body has as many.
    """
    has_numbers = "float" in precisions
    once = NUMBER_BYTES["float" if has_numbers else "base64"]
    times = sum(NUMBER_BYTES[precision] for precision in precisions) / once
    return Layout(PARTS if has_numbers else (), times=times, extra_bytes=text_bytes)


def problem(refused: Refused, request_id: str) -> Reply:
    """Return the response of a refusal in the form of Cohere's errors."""
    relocated = copy.copy(refused)
    relocated.faults = [replace(fault, loc=_cohere_place(fault.loc)) for fault in refused.faults]
    message = explain_refusal(relocated, {})
    return json_reply({"message": message, "detail": message, "code": refused.code}, refused.status)


def _cohere_place(loc: Loc) -> Loc:
    """Translate a place in the native request to one in Cohere's."""
    match loc:
        case ("inputs", *index):
            return ("texts", *index[:1])
        case ("pooled", *_):
            return ("output_dimension",)
    return loc


API = Api(
    "Cohere",
    problem,
    body_codes=EMBEDDING_CODES,
    document="https://docs.cohere.com/reference/embed",
)
ROUTES = [
    API.post(
        "/v2/embed",
        "Cohere: vectors of texts, in one or more precisions",
        EmbedV2Request,
        parse,
        inputs=OF_TEXT,
        metric="/v1/embeddings",
        more="Vectors of length 1. `input_type` chooses the checkpoint's prompt as "
        "sentence-transformers' encode_query and\nencode_document do: "
        '"query" for search_query; "document", "passage" or "corpus" for search_document;\n'
        '"classification" and "clustering" by their names; the default prompt where it has none of '
        "these.",
        examples=[
            Example(
                "two precisions",
                "Vectors as numbers, and in a byte a number",
                '{"model": "all-MiniLM-L6-v2", "input_type": "search_document", '
                '"texts": ["It is raining", "The dog barks"], '
                '"embedding_types": ["float", "int8"]}',
            )
        ],
    )
]
