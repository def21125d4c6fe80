"""What clients of Jina's and Cohere's rerankers send; sources: their API references."""

from typing import Annotated

from pydantic import Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.wire import Wire


class Document(Wire):
    """A document as an object."""

    text: str
    """Its text."""


Documents = TypeAliasType(
    "Documents",
    Annotated[
        list[
            Annotated[
                Annotated[str, Tag("<text>")] | Annotated[Document, Tag("<document>")],
                Discriminator(lambda value: "<text>" if isinstance(value, str) else "<document>"),
            ]
        ],
        FailFast(),
    ],
)


class RerankRequest(Wire):
    """The body of POST /v1/rerank and POST /v2/rerank."""

    model: str | None = None
    """The model you expect; another name than the served one is refused."""
    query: str
    """What the documents are to answer."""
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
    truncate: bool = True
    """Whether a query and a document of more than `max_tokens` tokens together are cut, the longer
    first, on the side that tokenizer_config.json names, else on the right; false: they are
    refused."""
