"""What OpenAI's clients send. Source: its openapi.yaml, CreateEmbeddingRequest."""

from typing import Literal

from service.api.inputs import Dimensions, Inputs
from service.wire import Wire


class EmbeddingsRequest(Wire):
    """The body of OpenAI's POST /v1/embeddings.

    Args:
        user: who asks; nothing follows from it.
    """

    input: Inputs
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions | None = None
    user: str | None = None
