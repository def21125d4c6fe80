"""The inputs of our own routes: texts, pairs, token ids and embeddings, mixed."""

from typing import Annotated, Any, LiteralString

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Tag,
    model_validator,
)
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.api.native.heads import Gates, Patches
from service.encode import request as encode
from service.encode.request import MOST_SPANS, Floats
from service.wire import Integers, Wire

# Lists that fail at their first error: a million errors would cost more than the request
Numbers = TypeAliasType("Numbers", Annotated[list[float], FailFast()])
Rows = TypeAliasType("Rows", Annotated[list[Numbers], FailFast()])


class Base64Array(Wire):
    """An array as base64 of its little-endian bytes."""

    shape: Integers
    """Length of each axis, tokens first: [tokens, embedding_width]."""
    dtype: Floats
    """Number format of the bytes."""
    data: str
    """Base64 of the little-endian bytes, row by row."""


def _as_array(rows: list[list[float]]) -> list[list[float]] | NDArray[np.float32]:
    """Return rows of one width as an array, an eighth the size of lists; others unchanged."""
    widths = {len(row) for row in rows} or {0}
    if len(widths) > 1:
        return rows
    with np.errstate(over="ignore"):  # what overflows float32 becomes inf, and is refused
        return np.array(rows, dtype=np.float32).reshape(len(rows), *widths)


def _embeddings_tag(value: object) -> str:
    return "<numbers>" if isinstance(value, list) else "<base64>"


Embeddings = TypeAliasType(
    "Embeddings",
    Annotated[
        Annotated[Rows, AfterValidator(_as_array), Tag("<numbers>")]
        | Annotated[Base64Array, Tag("<base64>")],
        Discriminator(_embeddings_tag),
    ],
)


CUT: LiteralString = (
    "expected spans in characters, such as [[0, 120], [120, 260]]; the service cuts no text itself"
)
ENDS: LiteralString = "expected [start, end] of each span, from 0 on, the start before the end"
MANY: LiteralString = "it holds {count} spans, and the limit is {most}"
EMPTY: LiteralString = "a span ends where it starts"
ORDER: LiteralString = "expected spans in the order of their starts; they may overlap"


def _few(value: Any) -> Any:
    """Refuse words, and more spans than are worth checking."""
    if isinstance(value, str):
        raise PydanticCustomError("spans_by_name", CUT)
    if isinstance(value, list) and len(value) > MOST_SPANS:
        size = {"count": f"{len(value):,}", "most": f"{MOST_SPANS:,}"}
        raise PydanticCustomError("span_count", MANY, size)
    return value


def _in_order(spans: list[list[int]]) -> list[list[int]]:
    if not all(len(span) == 2 and 0 <= span[0] <= span[1] for span in spans):
        raise PydanticCustomError("span_ends", ENDS)
    if any(start == end for start, end in spans):
        raise PydanticCustomError("span_empty", EMPTY)
    if [*spans] != sorted(spans, key=lambda span: span[0]):
        raise PydanticCustomError("span_ends", ORDER)
    return spans


Ends = TypeAliasType("Ends", Annotated[list[int], FailFast()])
Spans = TypeAliasType(
    "Spans",
    Annotated[
        list[Ends],
        FailFast(),
        AfterValidator(_in_order),
        BeforeValidator(_few, json_schema_input_type=list[list[int]]),
    ],
)


class Item(Wire):
    """One input: a text or pair of texts, token ids used as given, or embeddings."""

    text: str | None = None
    """The text, at most `max_text_characters` characters."""
    pair: str | None = None
    """A second text, which the tokenizer joins to `text` as its second segment."""
    token_ids: Integers | None = None
    """Token ids, used as given: the service adds no special tokens."""
    token_type_ids: Integers | None = None
    """The segment of each of `token_ids`, counted from 0; 0 for all where left out."""
    embeddings: Embeddings | None = None
    """A vector for each token, which replaces the look-up in the table of words, (tokens,
    embedding_width); the model adds positions and the rest."""
    spans: Spans | None = None
    """Parts of `text`, each [start, end) in characters, in the order of their starts, that get a
    vector each: pooled as the whole is, over their own tokens, none of which is special."""
    gates: Gates | None = None
    """Heads to scale or drop in this input, besides the request's and in place of those of the same
    heads."""
    patch: Patches | None = None
    """Heads whose output is taken from another input of the request, in place of the request's
    gates of the same heads."""

    @model_validator(mode="after")
    def _exactly_one(self) -> "Item":
        kinds = [self.text, self.token_ids, self.embeddings]
        lone_pair = self.pair is not None and self.text is None
        lone_types = self.token_type_ids is not None and self.token_ids is None
        lone_spans = self.spans is not None and (self.text is None or self.pair is not None)
        wrong = lone_pair or lone_types or lone_spans
        if sum(value is not None for value in kinds) != 1 or wrong:
            raise PydanticCustomError("exactly_one_input", self._kinds())
        return self

    def _kinds(self) -> LiteralString:
        """Say which rule on combining fields is broken."""
        if self.text is None and self.pair is not None:
            return 'a "pair" goes with a "text"'
        if self.token_ids is None and self.token_type_ids is not None:
            return '"token_type_ids" go with "token_ids"'
        if self.text is not None and self.pair is not None and self.spans is not None:
            return '"spans" go with a "text" without a "pair"'
        if self.text is None and self.spans is not None:
            return '"spans" go with a "text"'
        return 'expected exactly one of "text", "token_ids" and "embeddings"'

    def plain(self) -> encode.Input:
        """Return it as encode/ knows it."""
        vectors = self.embeddings
        return encode.Input(
            self.text,
            self.pair,
            self.token_ids,
            self.token_type_ids,
            encode.Base64(**dict(vectors)) if isinstance(vectors, Base64Array) else vectors,
            self.spans,
            [gate.plain() for gate in self.gates or ()],
            [patch.plain() for patch in self.patch or ()],
        )


def as_input(value: str | Item) -> encode.Input:
    """Return an input as encode/ knows it."""
    return encode.Input(value) if isinstance(value, str) else value.plain()


Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Item, Tag("<item>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<item>"),
]
Inputs = TypeAliasType("Inputs", Annotated[list[Input], FailFast()])
