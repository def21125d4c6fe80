"""What OpenAI's clients send. Source: its openapi.yaml, CreateEmbeddingRequest."""

from typing import Literal

from service.api.inputs import Dimensions, TextsOrIds
from service.wire import Wire


class EmbeddingsRequest(Wire):
    """The body of OpenAI's POST /v1/embeddings."""

    input: TextsOrIds
    """A text, a list of texts, token ids, or a list of lists of token ids; 1 to `max_sequences`."""
    model: str
    """The model you expect; another name than the served one is refused."""
    encoding_format: Literal["float", "base64"] = "float"
    """How vectors are written: as JSON numbers, or as base64 of little-endian float32."""
    dimensions: Dimensions | None = None
    """How many numbers of each vector to keep, the first ones, at most `width`; all where left
    out. The vector is cut, then scaled to length 1."""
    user: str | None = None
    """Who asks, for your own records; the service ignores it."""
