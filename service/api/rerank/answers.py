"""What POST /v1/rerank and /v2/rerank answer, as types for the document."""

from typing import Annotated

from service.api.native.answers import Code
from service.api.types import Closed, about


class Text(Closed):
    """A document."""

    text: Annotated[str, about("Its text.", "All is well")]


class _Result(Closed):
    index: Annotated[int, about("Its place among the documents, counted from 0.", 1)]
    relevance_score: Annotated[
        float, about("How relevant it is, by the checkpoint's own activation.", 0.93)
    ]


class Result(_Result, total=False):
    """One document's score."""

    document: Annotated[Text, about("The document, where the request asks for it.")]


class RerankUsage(Closed):
    """What a request took."""

    total_tokens: Annotated[int, about("Tokens computed, special tokens included.", 12)]


class RerankAnswer(Closed):
    """What POST /v1/rerank and POST /v2/rerank answer."""

    model: Annotated[str, about("Name of the model that is served.", "my-reranker")]
    results: Annotated[list[Result], about("The documents, best first.")]
    usage: Annotated[RerankUsage, about("What the request took.")]


class RerankError(Closed):
    """A refusal."""

    message: Annotated[str, about("What is wrong, for people; Cohere's clients read it.")]
    detail: Annotated[str, about("The same; Jina's clients read it.")]
    code: Annotated[Code, about("What is wrong, for programs.")]
