"""What the routes of text-embeddings-inference (TEI) answer, as types for the document."""

from typing import Annotated, Literal

from pydantic import Field
from typing_extensions import TypeAliasType

from service.api.types import Closed, one_of

ERROR_TYPES = {  # by code; of any other code OTHER_ERROR
    "batch_empty": "Empty",
    "token_out_of_range": "Tokenizer",
    "overloaded": "Overloaded",
    "internal": "Backend",
    "nonfinite_output": "Backend",
    "deadline_exceeded": "Backend",
    "not_ready": "Unhealthy",
}
OTHER_ERROR = "Validation"

Vector = Annotated[list[float], Field(description="(width,)")]
Tokens = Annotated[list[list[float]], Field(description="(tokens, width), special tokens included")]
Cosine = Annotated[float, Field(description="between -1 and 1")]
Place = Annotated[int | None, Field(description="characters; null of a special token")]


class SimpleToken(Closed):
    """One token of a text."""

    id: int
    text: str
    special: bool
    start: Place
    stop: Place


Vectors = TypeAliasType("Vectors", list[Vector])
TokenVectors = TypeAliasType("TokenVectors", list[Tokens])
Similarities = TypeAliasType("Similarities", list[Cosine])
Pieces = TypeAliasType("Pieces", list[list[SimpleToken]])
Texts = TypeAliasType("Texts", list[str])


class EmbeddingModel(Closed):
    """How vectors are pooled."""

    pooling: str


class ModelType(Closed):
    """What the model is for."""

    embedding: EmbeddingModel


class TEIInfo(Closed):
    """What TEI's clients look for in GET /info."""

    model_id: str
    model_sha: Annotated[str | None, Field(description="commit of the hub, where known")]
    model_dtype: str
    served_model_name: str
    model_type: ModelType
    max_concurrent_requests: int
    max_input_length: Annotated[int, Field(description="tokens")]
    max_batch_tokens: int
    max_batch_requests: None
    max_client_batch_size: int
    auto_truncate: Literal[True]
    tokenization_workers: int
    version: Annotated[str, Field(description="of Headlight")]
    sha: None
    docker_label: None


class TEIError(Closed):
    """A refusal."""

    error: str
    error_type: Annotated[str, one_of(sorted({OTHER_ERROR, *ERROR_TYPES.values()}))]
