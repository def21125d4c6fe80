"""Cohere's API: POST /v2/embed, as its clients know it.

Deliberate differences: pictures are refused, vectors have length 1 at any `output_dimension`, and
there may be as many texts as the service takes. Source of the request: Cohere's reference of
version 2; its Python client, 7.3.
"""

import copy
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Annotated, Any, Literal
from uuid import uuid4

from pydantic import Field
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.api.dialect import (
    EMBEDDING_CODES,
    Api,
    Example,
    JSONCall,
    ModelFacts,
    Reply,
    RequestHead,
    explain_refusal,
    json_reply,
)
from service.api.inputs import Dimensions, check_dense, find_prompt
from service.api.precisions import NUMBER_BYTES, Precision, pooled_vectors, to_precision
from service.core import PARTS, Custom, Documents, Layout
from service.encode.answer import Each, Encoded
from service.inputs import Strings
from service.observe.families import OF_TEXT
from service.outputs import DEFAULT_POOLED
from service.questions.encode import EncodeRequest
from service.refusals import Refused
from service.wire import ForeignRequest
from service.wording.words import Loc

InputType = Literal["search_document", "search_query", "classification", "clustering"]
Precisions = TypeAliasType("Precisions", Annotated[list[Precision], FailFast()])

TRUNCATE_CUTS: dict[str, Literal["refuse", "left", "right"]] = {
    "NONE": "refuse",
    "START": "left",
    "END": "right",
}
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
    truncate: Literal["NONE", "START", "END"] | None = None
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
class EmbedCall(JSONCall):
    """A request of POST /v2/embed.

    Args:
        precisions: of the vectors.
        texts: to return with them.
    """

    precisions: Sequence[Precision]
    texts: Sequence[str]

    def to_json(self, encoded: Encoded) -> dict[str, Any]:
        found = list(pooled_vectors(encoded))
        return {
            "id": str(uuid4()),
            "response_type": "embeddings_by_type",
            "embeddings": {
                precision: Each(map(partial(to_precision, precision=precision), found))
                for precision in self.precisions
            },
            "texts": self.texts,
            "meta": {
                "api_version": {"version": "2"},
                "billed_units": {"input_tokens": encoded.usage["tokens"]},
            },
        }


def parse(body: bytes, head: RequestHead, served: ModelFacts) -> EmbedCall:
    """Read a request.

    Raises:
        Refused, ValidationError: what service/refusals.py gives a status.
    """
    asked = EmbedV2Request.parse(body, head.ignored)
    _check_precisions(asked)
    check_dense(served.tasks)
    cut = "END" if asked.max_tokens else asked.truncate
    kinds = asked.embedding_types
    return EmbedCall(
        request=EncodeRequest.of(
            asked.texts,
            model=asked.model,
            truncate=TRUNCATE_CUTS[cut] if cut else None,
            prompt_name=find_prompt(asked.input_type, served),
            pooled=DEFAULT_POOLED.altered(normalize=True, dimensions=asked.output_dimension),
        ),
        custom=Custom(
            _answer_layout(kinds, len(body)),
            usual="right",
            counted=False,
            documents=Documents(asked.max_tokens) if asked.max_tokens else None,
        ),
        precisions=kinds,
        texts=asked.texts,
    )


def _check_precisions(asked: EmbedV2Request) -> None:
    """Refuse kinds that are none or twice there, and what the number of tokens does not go with."""
    kinds = asked.embedding_types
    if len(set(kinds)) < len(kinds) or not kinds:
        raise Refused.at(
            "out_of_range", "embedding_types", detail=PRECISION_TWICE if kinds else NO_PRECISION
        )
    if asked.max_tokens is None:
        return
    if asked.truncate not in (None, "END"):
        raise Refused.at("out_of_range", "max_tokens", detail=NEEDS_END_CUT)
    for index, text in enumerate(asked.texts):
        if not text:  # which a document to rank may be
            raise Refused.at("sequence_empty", "inputs", index, "text", detail=EMPTY_TEXT)


def _answer_layout(precisions: Sequence[Precision], body: int) -> Layout:
    """Return how vectors are written: in each of the kinds, and with the texts of the body.

    Args:
        body: bytes.
    """
    plain = "float" in precisions
    once = NUMBER_BYTES["float" if plain else "base64"]
    times = sum(NUMBER_BYTES[one] for one in precisions) / once
    return Layout(PARTS if plain else (), times=times, extra_bytes=body)


def problem(refused: Refused, request_id: str) -> Reply:
    """Return a refusal that Cohere's clients can read."""
    here = copy.copy(refused)
    here.faults = [replace(fault, loc=_cohere_place(fault.loc)) for fault in refused.faults]
    told = explain_refusal(here, {})
    return json_reply({"message": told, "detail": told, "code": refused.code}, refused.status)


def _cohere_place(loc: Loc) -> Loc:
    """Translate a place in the native request into one in Cohere's."""
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
                "Two kinds of vectors of one pass",
                '{"model": "all-MiniLM-L6-v2", "input_type": "search_document", '
                '"texts": ["All is well"], "embedding_types": ["int8", "ubinary"], '
                '"output_dimension": 16, "truncate": "END"}',
            )
        ],
    )
]
