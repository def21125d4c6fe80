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
    return_documents: bool = False
    """Whether each result comes with its document."""
    max_tokens_per_doc: Annotated[int, Field(ge=1)] | None = None
    """Of Cohere's clients: the tokens of a document, at most. `max_tokens` or more, which changes
    nothing, since a document is cut together with its query; less is refused."""
    truncate: bool = True
    """Whether a query and a document of more than `max_tokens` tokens together are cut on the
    right, the longer first; false: they are refused."""
