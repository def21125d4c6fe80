"""What TEI's clients send.

Source: text-embeddings-inference 1.9, router/src/http/types.rs; what it leaves to its settings is
as its defaults are.
"""

from typing import Annotated, Literal

from pydantic import Discriminator

from service.api.inputs import (
    Batch,
    Dimensions,
    Ids,
    Strings,
    Text,
    Texts,
    TextsOrIds,
    tag,
)
from service.wire import Wire

Side = Literal["Right", "right", "Left", "left"]


class Cut(Wire):
    """What TEI's routes know of truncation and prompts."""

    truncate: bool | None = None
    """Whether an input of more than `max_tokens` tokens is cut; false: it is refused. null is
    true."""
    truncation_direction: Side | None = None
    """The side that is cut; left out or null: the one that tokenizer_config.json names, else the
    right."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: its default, where it has
    one."""


class EmbedAllRequest(Cut):
    """The body of TEI's POST /embed_all."""

    inputs: TextsOrIds
    """A text, a list of texts, token ids, or a list of lists of token ids; 1 to `max_sequences`."""


class EmbedRequest(EmbedAllRequest):
    """The body of TEI's POST /embed and POST /."""

    normalize: bool = True
    """Whether vectors are scaled to length 1."""
    dimensions: Dimensions | None = None
    """How many numbers of each vector to keep, the first ones, at most `width`; all where left
    out."""


class Sentences(Wire):
    """What TEI's POST /similarity compares: one sentence with each of others."""

    source_sentence: str
    """The sentence that the others are compared with."""
    sentences: Strings
    """The others: 1 to `max_sequences` less the source."""


class SimilarityRequest(Wire):
    """The body of TEI's POST /similarity."""

    inputs: Sentences
    """The sentences to compare."""
    parameters: Cut | None = None
    """How they are cut, and which prompt goes before them; left out: the defaults."""


class TokenizeRequest(Wire):
    """The body of TEI's POST /tokenize."""

    inputs: Annotated[
        Text | Texts,
        Discriminator(lambda value: "<texts>" if isinstance(value, list) else "<text>"),
    ]
    """A text or a list of texts."""
    add_special_tokens: bool = True
    """Whether the model's special tokens stand around each text."""
    prompt_name: str | None = None
    """The checkpoint's prompt that goes before each text; left out: its default, where it has
    one."""


class DecodeRequest(Wire):
    """The body of TEI's POST /decode."""

    ids: Annotated[
        Ids | Batch,
        Discriminator(lambda value: "<sequences>" if tag(value) == "<sequences>" else "<ids>"),
    ]
    """Token ids, or a list of lists of them."""
    skip_special_tokens: bool = True
    """Whether special tokens are left out of the texts."""

    def sequences(self) -> list[list[int]]:
        """The ids of each sequence."""
        ids = [id for id in self.ids if isinstance(id, int)]
        return [ids] if ids else [row for row in self.ids if isinstance(row, list)]
