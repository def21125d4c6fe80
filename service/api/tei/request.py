"""What TEI's clients send.

Source: text-embeddings-inference 1.9, router/src/http/types.rs; what it leaves to its settings is
as its defaults are.
"""

from typing import Annotated, Literal

from pydantic import Discriminator

from service.api.inputs import Batch, Dimensions, Ids, Inputs, Strings, Text, Texts, tag
from service.wire import Wire

Side = Literal["Right", "right", "Left", "left"]


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

    inputs: Inputs


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

    inputs: Annotated[
        Text | Texts,
        Discriminator(lambda value: "<texts>" if isinstance(value, list) else "<text>"),
    ]
    add_special_tokens: bool = True
    prompt_name: str | None = None


class DecodeRequest(Wire):
    """The body of TEI's POST /decode."""

    ids: Annotated[
        Ids | Batch,
        Discriminator(lambda value: "<sequences>" if tag(value) == "<sequences>" else "<ids>"),
    ]
    skip_special_tokens: bool = True

    def sequences(self) -> list[list[int]]:
        """The ids of each sequence."""
        ids = [id for id in self.ids if isinstance(id, int)]
        return [ids] if ids else [row for row in self.ids if isinstance(row, list)]
