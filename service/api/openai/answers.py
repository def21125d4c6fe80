"""What OpenAI's routes answer, as types for the document of the API."""

from typing import Annotated, Literal

from service.api.dialect import ENCODING
from service.api.openai.call import CODES
from service.api.types import Closed, about, one_of

EMBEDDING_CODES = (*ENCODING, "model_not_found")  # what POST /v1/embeddings may refuse with


class Embedding(Closed):
    """One input's vector."""

    object: Annotated[Literal["embedding"], about("What this object is.")]
    index: Annotated[int, about("Which input it belongs to, counted from 0.")]
    embedding: Annotated[
        Annotated[list[float], about("(width,)")]
        | Annotated[str, about("base64 of the little-endian float32 numbers")],
        about("The vector, as numbers or as base64 of little-endian float32."),
    ]


class EmbeddingsUsage(Closed):
    """What a request took."""

    prompt_tokens: Annotated[int, about("Tokens of all inputs, special tokens included.")]
    total_tokens: Annotated[int, about("The same number.")]


class EmbeddingsAnswer(Closed):
    """What POST /v1/embeddings answers."""

    object: Annotated[Literal["list"], about("What this object is.")]
    data: Annotated[list[Embedding], about("One vector for each input, in order.")]
    model: Annotated[str, about("Name of the model that is served.")]
    usage: Annotated[EmbeddingsUsage, about("What the request took.")]


class Model(Closed):
    """What GET /v1/models/{id} answers."""

    id: Annotated[str, about("The model's name.")]
    object: Annotated[Literal["model"], about("What this object is.")]
    created: Annotated[int, about("Always 0: a checkpoint does not say when it was made.")]
    owned_by: Annotated[str, about("Who serves it.")]


class Models(Closed):
    """What GET /v1/models answers."""

    object: Annotated[Literal["list"], about("What this object is.")]
    data: Annotated[list[Model], about("The one model that is served.")]


class OpenAIFault(Closed):
    """What is wrong."""

    message: Annotated[str, about("What is wrong, for people.")]
    type: Annotated[
        Literal["invalid_request_error", "rate_limit_error", "server_error"],
        about("Whose fault it is: the request's, nobody's (try again later), or the service's."),
    ]
    param: Annotated[str | None, about("The field that is wrong; null where none is to blame.")]
    code: Annotated[
        str,
        one_of(sorted(CODES.get(code, code) for code in EMBEDDING_CODES)),
        about("What is wrong, for programs."),
    ]


class OpenAIError(Closed):
    """A refusal."""

    error: Annotated[OpenAIFault, about("The fault.")]
