"""What clients of other APIs send, field by field; strict, as the native wire is.

OpenAI: its openapi.yaml, CreateEmbeddingRequest. TEI: text-embeddings-inference 1.9, its file
router/src/http/types.rs; what it leaves to its settings is as its defaults are.
"""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.encode.request import Integers, Wire

Strings = TypeAliasType("Strings", Annotated[list[str], FailFast()])
Sequences = TypeAliasType("Sequences", Annotated[list[Integers], FailFast()])
Dimensions = Annotated[int, Field(ge=1)]
Side = Literal["Right", "right", "Left", "left"]


def _tag(given: object) -> str:
    """Which of its forms an input has, by its first entry."""
    if not isinstance(given, list):
        return "<text>"
    first = given[0] if given else ""
    if isinstance(first, list):
        return "<sequences>"
    return "<texts>" if isinstance(first, str) else "<ids>"


Text = Annotated[str, Tag("<text>")]
Texts = Annotated[Strings, Tag("<texts>")]
Ids = Annotated[Integers, Tag("<ids>")]
Batch = Annotated[Sequences, Tag("<sequences>")]
Given = TypeAliasType("Given", Annotated[Text | Texts | Ids | Batch, Discriminator(_tag)])


class EmbeddingsRequest(Wire):
    """The body of OpenAI's POST /v1/embeddings.

    Args:
        user: who asks; nothing follows from it.
    """

    input: Given
    model: str
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Dimensions | None = None
    user: str | None = None


class Cut(Wire):
    """What TEI's routes know of truncation and prompts.

    Args:
        truncate: null is true, as TEI's own setting has it.
    """

    truncate: bool | None = None
    truncation_direction: Side = "Right"
    prompt_name: str | None = None


class EmbedAllRequest(Cut):
    """The body of TEI's POST /embed_all."""

    inputs: Given


class EmbedRequest(EmbedAllRequest):
    """The body of TEI's POST /embed and POST /."""

    normalize: bool = True
    dimensions: Dimensions | None = None


class Sentences(Wire):
    """What TEI's POST /similarity compares: one sentence with each of others."""

    source_sentence: str
    sentences: Strings


class SimilarityRequest(Wire):
    """The body of TEI's POST /similarity."""

    inputs: Sentences
    parameters: Cut | None = None


class TokenizeRequest(Wire):
    """The body of TEI's POST /tokenize."""

    inputs: Annotated[Text | Texts, Discriminator(lambda given: _tag_text(given))]
    add_special_tokens: bool = True
    prompt_name: str | None = None


class DecodeRequest(Wire):
    """The body of TEI's POST /decode."""

    ids: Annotated[Ids | Batch, Discriminator(lambda given: _tag_ids(given))]
    skip_special_tokens: bool = True

    def sequences(self) -> list[list[int]]:
        """The ids of each sequence."""
        one = [id for id in self.ids if isinstance(id, int)]
        return [one] if one else [ids for ids in self.ids if isinstance(ids, list)]


def _tag_text(given: object) -> str:
    return "<texts>" if isinstance(given, list) else "<text>"


def _tag_ids(given: object) -> str:
    return "<sequences>" if _tag(given) == "<sequences>" else "<ids>"


REQUESTS = (
    EmbeddingsRequest,
    EmbedRequest,
    EmbedAllRequest,
    SimilarityRequest,
    TokenizeRequest,
    DecodeRequest,
)
# Every name of these; what a refusal may repeat from a request
FIELDS = frozenset(name for wire in (*REQUESTS, Sentences, Cut) for name in wire.model_fields)
