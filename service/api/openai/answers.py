"""What OpenAI's routes answer, as types for the document of the API."""

from typing import Annotated, Literal

from pydantic import Field

from service.api.dialect import ENCODING
from service.api.openai.call import CODES
from service.api.types import Closed, one_of

EMBEDDING_CODES = (*ENCODING, "model_not_found")  # what POST /v1/embeddings may refuse with


class Embedding(Closed):
    """One input's vector."""

    object: Literal["embedding"]
    index: int
    embedding: (
        Annotated[list[float], Field(description="(width,)")]
        | Annotated[str, Field(description="base64 of the little-endian float32 numbers")]
    )


class EmbeddingsUsage(Closed):
    """What a request took."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsAnswer(Closed):
    """What POST /v1/embeddings answers."""

    object: Literal["list"]
    data: list[Embedding]
    model: str
    usage: EmbeddingsUsage


class Model(Closed):
    """What GET /v1/models/{id} answers."""

    id: str
    object: Literal["model"]
    created: Annotated[int, Field(description="0: a checkpoint does not say")]
    owned_by: str


class Models(Closed):
    """What GET /v1/models answers."""

    object: Literal["list"]
    data: list[Model]


class OpenAIFault(Closed):
    """What is wrong."""

    message: str
    type: Literal["invalid_request_error", "rate_limit_error", "server_error"]
    param: str | None
    code: Annotated[str, one_of(sorted(CODES.get(code, code) for code in EMBEDDING_CODES))]


class OpenAIError(Closed):
    """A refusal."""

    error: OpenAIFault
