"""What Infinity's clients send; source: infinity_emb 0.0.77, fastapi_schemas/pymodels.py."""

from typing import Annotated, Literal

from pydantic import Field

from service.api.inputs import Strings, TextsOrIds
from service.wire import Wire

ANY = "default/not-specified"  # the model that Infinity's clients name where they name none


class InfinityEmbeddingsRequest(Wire):
    """The body of Infinity's POST /embeddings, which TEI has at the same path."""

    input: TextsOrIds
    """A text, a list of texts, token ids, or a list of lists of token ids; 1 to `max_sequences`."""
    model: str | None = ANY
    """The model you expect; "default/not-specified", null or left out: the one that is served.
    Another name is refused."""
    encoding_format: Literal["float", "base64"] = "float"
    """How vectors are written: as JSON numbers, or as base64 of little-endian float32."""
    user: str | None = None
    """Who asks, for your own records; the service ignores it."""
    dimensions: Annotated[int, Field(ge=0)] | None = 0
    """How many numbers of each vector to keep, the first ones, at most `width`; 0, null or left
    out: all. The vector is cut, then scaled to length 1."""
    modality: Literal["text"] = "text"
    """What the inputs are; this service reads texts."""


class InfinityRerankRequest(Wire):
    """The body of Infinity's POST /rerank."""

    query: str
    """What the documents are to answer."""
    documents: Strings
    """The documents to rank: 1 to `max_sequences`."""
    return_documents: bool = False
    """Whether each result comes with its document."""
    raw_scores: bool = False
    """Whether scores are the logits themselves, not their sigmoid."""
    model: str | None = ANY
    """As in POST /embeddings."""
    top_n: Annotated[int, Field(ge=1)] | None = None
    """How many to answer, the best ones; left out or null, or more than there are: all."""


class ClassifyRequest(Wire):
    """The body of Infinity's POST /classify."""

    input: Strings
    """The texts to classify: 1 to `max_sequences`."""
    model: str | None = ANY
    """As in POST /embeddings."""
    raw_scores: bool = False
    """Whether scores are the logits themselves; Infinity ignores it."""
