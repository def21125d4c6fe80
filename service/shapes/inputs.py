"""What requests ask about, as clients write it: texts, token ids, and heads to show or change.

A text alone is a string and a pair two of them: a request may hold thousands.
"""

from collections.abc import Sequence
from itertools import pairwise
from typing import Annotated, Any, ClassVar, Literal, LiteralString, Self, final

import numpy as np
from numpy.typing import NDArray
from pydantic import (
    AfterValidator,
    BeforeValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.maps.choices import (
    HEAD_NAME,
    HEADS_NAME,
    MEAN,
    Form,
    Level,
    Specials,
    Weight,
    group_heads_by_layer,
)
from service.shapes.spans import Spans
from service.tables.wording.wire import ForeignRequest, Integers, Wire

Floats = Literal["float32", "float16"]  # number format of an array

MOST_SCALE = 100.0  # of a gate; much more overflows

# Layers or heads as requests name them; the tag is what an error calls each form
All = Annotated[Literal["all"], Tag("<all>")]
Listed = Annotated[Integers, Tag("<list>")]
Indices = Annotated[
    All | Listed, Discriminator(lambda value: "<list>" if isinstance(value, list) else "<all>")
]
ByLayer = Annotated[dict[str, Indices], Tag("<by layer>")]


def _heads_tag(value: object) -> str:
    """Return the tag of the form in which a request names heads."""
    if isinstance(value, dict):
        return "<by layer>"
    return "<list>" if isinstance(value, list) else "<all>"


def _read_names(heads: Any) -> Any:
    """Return named heads by layer, and other values as they are; refuse texts that are no names."""
    by_layer = group_heads_by_layer(heads)
    named = by_layer if isinstance(by_layer, list) else [by_layer]
    if by_layer != "all" and any(isinstance(name, str) for name in named):
        raise PydanticCustomError("number_and_form", NAMES_ALONE)
    return by_layer


NAMES_ALONE: LiteralString = (
    'expected "all", numbers, or names alone, such as "L5H11", or "L5" for all heads of layer 5'
)

# A head such as L5H11, and heads by layer, by name, or of all layers alike
HeadName = Annotated[str, Field(pattern=f"^{HEAD_NAME.pattern}$")]
HeadsName = Annotated[str, Field(pattern=f"^{HEADS_NAME.pattern}$")]
Heads = Annotated[
    All | Listed | ByLayer,
    Discriminator(_heads_tag),
    BeforeValidator(
        _read_names,
        json_schema_input_type=Literal["all"]
        | HeadsName
        | list[int]
        | list[HeadsName]
        | dict[str, list[int] | Literal["all"]],
    ),
]
# Heads to show: some, or the mean of a layer's
ShownHeads = Annotated[
    Annotated[Literal["mean"], Tag("<mean>")] | Annotated[Heads, Tag("<heads>")],
    Discriminator(lambda value: "<mean>" if value == MEAN else "<heads>"),
]
LAYER_AND_HEAD: LiteralString = 'expected "layer" and "head" as numbers, or "head" as "L5H11" alone'
Scale = Annotated[float, Field(ge=-MOST_SCALE, le=MOST_SCALE)]


class OneHead(Wire):
    """A head, by its number in a layer or by its name."""

    layer: int | None = None
    """The layer, counted from 0; left out where `head` is a name, which has it."""
    head: Annotated[
        Annotated[int, Tag("<number>")] | Annotated[HeadName, Tag("<name>")],
        Discriminator(lambda value: "<name>" if isinstance(value, str) else "<number>"),
    ]
    """The head of that layer, counted from 0; or its name, such as "L5H11"."""

    @property
    def place(self) -> tuple[int, int]:
        """Return the layer and the head, both counted from 0."""
        if self.layer is None:
            layer, head = str(self.head)[1:].split("H")
            return int(layer), int(head)
        return self.layer, int(self.head)

    @model_validator(mode="after")
    def _check_layer(self) -> Self:
        """Refuse a number without a layer, and a name with one."""
        if isinstance(self.head, str) != (self.layer is None):
            raise PydanticCustomError("number_and_form", LAYER_AND_HEAD)
        return self


class Gate(OneHead):
    """What one head's mixed values are multiplied by before W_O; 0 drops the head."""

    scale: Scale
    """The factor: 0 drops the head, 1 changes nothing."""


class Patch(OneHead):
    """One head's mixed values before W_O, taken from another input, position by position."""

    source: int = Field(alias="from")
    """The input that they are taken from, counted from 0: one without patches, with as many
    tokens. In POST /v1/similarity, `left` is 0 and the first on the right 1; in POST /v1/maxsim,
    `query` is 0 and the first document 1."""


class Sweep(Wire):
    """Heads that are scaled one at a time, to see what each is worth."""

    layers: Indices = "all"
    """Their layers, as of `attention`."""
    heads: Heads = "all"
    """The heads, as of `attention`."""
    scale: Scale = 0.0
    """What each is multiplied by before W_O, after any gate or patch of its own; 0 drops it."""


# Lists that fail at their first error: a million errors would cost more than the request
Gates = TypeAliasType("Gates", Annotated[list[Gate], FailFast()])
Patches = TypeAliasType("Patches", Annotated[list[Patch], FailFast()])
SweepField = Annotated[
    Annotated[Literal["heads"], Tag("<heads>")] | Annotated[Sweep, Tag("<how>")],
    Discriminator(lambda value: "<how>" if isinstance(value, dict | Wire) else "<heads>"),
]


# Messages of validation errors
ROWS_NEED_FORM: LiteralString = '"rows" goes with "form": "rows" or "why"'
FORM_NEEDS_ROWS: LiteralString = '"form": "rows" or "why" needs "rows", a list such as [0, 2]'
WHY_OF_TOKENS: LiteralString = (
    '"form": "why" goes with "level": "token", "specials": "keep" and "dtype": "float32"'
)
NEEDS_FORM: dict[str, LiteralString] = {
    "k": '"k" goes with "form": "top"',
    "size": '"size" goes with "form": "blocks"',
    "segments": '"segments" goes with "form": "mean"',
}
AVERAGED = ("full", "rows", "top", "blocks", "mean")  # forms that the mean of heads has
MEAN_NEEDS_FORM: LiteralString = (
    '"heads": "mean" goes with "form": "full", "rows", "top", "blocks" or "mean"'
)
SEGMENT_ENDS: LiteralString = (
    "expected [first, last) of each segment, tokens or words counted from 0, such as "
    "[[1, 4], [5, 9]]; none is empty, and no two have one in common"
)
WEIGHT_NEEDS_FORM: LiteralString = '"weight": "value_norm" goes with "form": "top" or "dominance"'


Segment = TypeAliasType("Segment", Annotated[list[int], FailFast()])
Segments = TypeAliasType("Segments", Annotated[list[Segment], FailFast()])


class Attention(Wire):
    """What to show of the attention."""

    layers: Indices = "all"
    """The layers to show, counted from 0, or from the last by negative numbers."""
    heads: ShownHeads = "all"
    """The heads to show, counted from 0: of every layer the same, or by layer, {"5": [11]}, or by
    name: "L5H11", "L0" for all of layer 0, or a list of such; the latter two choose the layers
    too. "mean" is one map a layer, the mean over all of its heads, in the forms full, rows, top,
    blocks and mean."""
    form: Form = "full"
    """What to make of the maps: whole maps, some rows, the strongest keys of every row, blocks, the
    mean over segments, statistics, who dominates whom, or one map through all layers; or why heads
    look where they do: the parts of queries and keys that some rows' scores come from."""
    rows: Integers = []
    """Of the forms rows and why, which need it: the queries to show, tokens or words counted from
    0."""
    k: Annotated[int, Field(ge=1)] | None = None
    """Of the form top: how many keys to show of each row; 8 where left out."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Of the form blocks: the most blocks along a side; 32 where left out."""
    segments: Segments | None = None
    """Of the form mean: what to say of how much each looks at each, [first, last) in tokens or
    words counted from 0. Left out: the two texts of a pair, without special tokens."""
    weight: Weight | None = None
    """Of the forms top and dominance: what a key's weight is, its probability or the length of
    what its value adds. Left out: probability for top, value_norm for dominance."""
    level: Level = "token"
    """What a row and a column are. A word sums over its keys and averages over its queries."""
    specials: Specials = "keep"
    """What happens to special tokens. "drop" removes their rows and columns, so that rows sum to
    less than 1; "renormalize" scales what is left to 1 again."""
    dtype: Floats = "float32"
    """Number format of the maps, and what their bytes are counted in."""

    @model_validator(mode="after")
    def _check_form_fields(self) -> "Attention":
        """Refuse what a form does not read: its sender expects it to have an effect."""
        if (self.form in ("rows", "why")) != bool(self.rows):
            raise PydanticCustomError(
                "rows_and_form", ROWS_NEED_FORM if self.rows else FORM_NEEDS_ROWS
            )
        for name, form in (("k", "top"), ("size", "blocks"), ("segments", "mean")):
            if getattr(self, name) is not None and self.form != form:
                raise PydanticCustomError("number_and_form", NEEDS_FORM[name])
        if self.weight == "value_norm" and self.form not in ("top", "dominance"):
            raise PydanticCustomError("weight_and_form", WEIGHT_NEEDS_FORM)
        if self.heads == MEAN and self.form not in AVERAGED:
            raise PydanticCustomError("number_and_form", MEAN_NEEDS_FORM)
        divided = self.level, self.specials, self.dtype
        if self.form == "why" and divided != ("token", "keep", "float32"):
            raise PydanticCustomError("number_and_form", WHY_OF_TOKENS)
        return self

    @field_validator("segments")
    @classmethod
    def _check_segments(cls, segments: list[list[int]] | None) -> list[list[int]] | None:
        """Refuse segments that are not [first, last), and such as overlap."""
        if segments is None:
            return None
        ends = sorted(segments)
        are_ends = ends and all(len(each) == 2 and 0 <= each[0] < each[1] for each in ends)
        if not are_ends or any(one[1] > other[0] for one, other in pairwise(ends)):
            raise PydanticCustomError("index_out_of_range", SEGMENT_ENDS)
        return segments

    @field_validator("rows")
    @classmethod
    def _check_rows(cls, rows: list[int]) -> list[int]:
        """Refuse a row that is named twice."""
        if len(set(rows)) != len(rows):
            raise PydanticCustomError(
                "index_out_of_range", "a row is named twice; each counts once"
            )
        return rows


def sweep_of(field: Literal["heads"] | Sweep | None) -> Sweep | None:
    """Return a request's sweep, with "heads" as the default one; None: it asks for none."""
    return Sweep() if field == "heads" else field


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


Embeddings = TypeAliasType(
    "Embeddings",
    Annotated[
        Annotated[Rows, AfterValidator(_as_array), Tag("<numbers>")]
        | Annotated[Base64Array, Tag("<base64>")],
        Discriminator(lambda value: "<numbers>" if isinstance(value, list) else "<base64>"),
    ],
)


@final
class InputItem(Wire):
    """One input: a text or pair of texts, token ids used as given, or embeddings."""

    __qualname__ = "Item"  # the name of its schema
    model_config = ConfigDict(title="Item")

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

    @property
    def kind(self) -> str:
        """Return "text", "tokens" or "embeddings", the label in the metrics."""
        if self.text is not None:
            return "text"
        return "tokens" if self.token_ids is not None else "embeddings"

    @model_validator(mode="after")
    def _check_exactly_one(self) -> "InputItem":
        """Refuse an input that is not exactly one of text, token ids and embeddings."""
        kinds = self.text, self.token_ids, self.embeddings
        broken: LiteralString = ""
        if self.text is None and self.pair is not None:
            broken = 'a "pair" goes with a "text"'
        elif self.token_ids is None and self.token_type_ids is not None:
            broken = '"token_type_ids" go with "token_ids"'
        elif self.spans is not None and self.pair is not None:
            broken = '"spans" go with a "text" without a "pair"'
        elif self.spans is not None and self.text is None:
            broken = '"spans" go with a "text"'
        elif sum(value is not None for value in kinds) != 1:
            broken = 'expected exactly one of "text", "token_ids" and "embeddings"'
        if broken:
            raise PydanticCustomError("exactly_one_input", broken)
        return self


Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[InputItem, Tag("<item>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<item>"),
]
Inputs = TypeAliasType("Inputs", Annotated[list[Input], FailFast()])

Strings = TypeAliasType("Strings", Annotated[list[str], FailFast()])


class Document(ForeignRequest):
    """A document as an object."""

    holds_others: ClassVar = True

    text: str
    """Its text."""


Documents = TypeAliasType(
    "Documents",
    Annotated[
        list[
            Annotated[
                Annotated[str, Tag("<text>")] | Annotated[Document, Tag("<document>")],
                Discriminator(lambda value: "<text>" if isinstance(value, str) else "<document>"),
            ]
        ],
        FailFast(),
    ],
)


Text = str | tuple[str, str] | InputItem  # one input: a text, a pair, or anything else
Texts = Sequence[Text]


def text_and_pair(text: Text) -> tuple[str | None, str | None]:
    """Return the text and the second text of an input; None for one that it does not have."""
    if type(text) is InputItem:
        return text.text, text.pair
    return (text, None) if isinstance(text, str) else text


def numbered_items(texts: Texts) -> list[tuple[int, InputItem]]:
    """Return the inputs that are no plain text or pair, with their numbers from 0."""
    if InputItem not in map(type, texts):  # as nearly always
        return []
    return [(number, text) for number, text in enumerate(texts) if type(text) is InputItem]
