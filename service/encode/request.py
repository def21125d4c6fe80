"""The native wire: request models, strict."""

from functools import cached_property
from typing import Annotated, Any, ClassVar, Literal, LiteralString

import numpy as np
from numpy.typing import NDArray
from pydantic import Discriminator, Field, InstanceOf, Tag, field_validator, model_validator
from pydantic.json_schema import SkipJsonSchema
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.config import Mode
from model.maps.choices import Form, Level, Specials, Weight
from model.text.tokenizer import Truncate
from service.wire import Wire

Floats = Literal["float32", "float16"]
MOST_SCALE = 100.0  # of a gate; much more makes numbers that nothing can hold
# Lists that stop at their first error: a million errors would cost more than the request
Integers = TypeAliasType("Integers", Annotated[list[int], FailFast()])
Numbers = TypeAliasType("Numbers", Annotated[list[float], FailFast()])
Rows = TypeAliasType("Rows", Annotated[list[Numbers], FailFast()])


class Base64Array(Wire):
    """An array as base64 of its little-endian bytes."""

    shape: Integers
    dtype: Floats
    data: str


def _embeddings_tag(value: object) -> str:
    if isinstance(value, np.ndarray):
        return "<array>"
    return "<numbers>" if isinstance(value, list) else "<base64>"


# No JSON can hold the array: it is how a binary wire hands over what it read
Embeddings = TypeAliasType(
    "Embeddings",
    Annotated[
        Annotated[Rows, Tag("<numbers>")]
        | Annotated[Base64Array, Tag("<base64>")]
        | Annotated[SkipJsonSchema[InstanceOf[NDArray[Any]]], Tag("<array>")],
        Discriminator(_embeddings_tag),
    ],
)


class Item(Wire):
    """One input: a text or pair of texts, token ids used as given, or embeddings."""

    text: str | None = None
    pair: str | None = None
    token_ids: Integers | None = None
    token_type_ids: Integers | None = None
    embeddings: Embeddings | None = None

    @model_validator(mode="after")
    def _exactly_one(self) -> "Item":
        kinds = [self.text, self.token_ids, self.embeddings]
        lone_pair = self.pair is not None and self.text is None
        lone_types = self.token_type_ids is not None and self.token_ids is None
        if sum(value is not None for value in kinds) != 1 or lone_pair or lone_types:
            raise PydanticCustomError("exactly_one_input", self._kinds())
        return self

    def _kinds(self) -> LiteralString:
        """What goes with what, where it does not."""
        if self.text is None and self.pair is not None:
            return 'a "pair" goes with a "text"'
        if self.token_ids is None and self.token_type_ids is not None:
            return '"token_type_ids" go with "token_ids"'
        return 'expected exactly one of "text", "token_ids" and "embeddings"'

    @property
    def kind(self) -> str:
        """Which of the three it is: text, tokens or embeddings."""
        if self.text is not None:
            return "text"
        return "tokens" if self.token_ids is not None else "embeddings"


Input = Annotated[
    Annotated[str, Tag("<text>")] | Annotated[Item, Tag("<item>")],
    Discriminator(lambda value: "<text>" if isinstance(value, str) else "<item>"),
]
Inputs = TypeAliasType("Inputs", Annotated[list[Input], FailFast()])


class Pooled(Wire):
    """How one vector is made of a sequence; what is left out is the checkpoint's own."""

    mode: Literal["model"] | Mode = "model"
    normalize: bool | None = None
    dimensions: Annotated[int, Field(ge=1)] | None = None


All = Annotated[Literal["all"], Tag("<all>")]
Listed = Annotated[Integers, Tag("<list>")]
ByLayer = Annotated[dict[str, Integers], Tag("<by layer>")]
Indices = Annotated[
    All | Listed, Discriminator(lambda value: "<list>" if isinstance(value, list) else "<all>")
]


def _heads_tag(value: object) -> str:
    if isinstance(value, dict):
        return "<by layer>"
    return "<list>" if isinstance(value, list) else "<all>"


Heads = Annotated[All | Listed | ByLayer, Discriminator(_heads_tag)]


class Gate(Wire):
    """What one head's mixed values are multiplied by before W_O; 0 drops the head."""

    layer: int
    head: int
    scale: Annotated[float, Field(ge=-MOST_SCALE, le=MOST_SCALE)]


Gates = TypeAliasType("Gates", Annotated[list[Gate], FailFast()])


FORM_ROWS: LiteralString = '"rows" goes with "form": "rows"'
ROWS: LiteralString = '"form": "rows" needs "rows", a list such as [0, 2]'
NUMBER_AND_FORM: dict[str, LiteralString] = {
    "k": '"k" goes with "form": "top"',
    "size": '"size" goes with "form": "blocks"',
}
WEIGHT_AND_FORM: LiteralString = '"weight": "value_norm" goes with "form": "top" or "dominance"'


class Attention(Wire):
    """What to show of the attention.

    Args:
        layers, heads: counted from 0; the same heads of every layer, or some of each.
        rows: of the form rows: which units, tokens or words, counted from 0.
        k: of top: keys a row, 8 by default.
        size: of blocks: most blocks along a side, 32 by default.
        weight: of top and dominance; by default value_norm of dominance, probability of top.
        level: what a row and a column is.
        specials: drop: rows and columns of special tokens go, and what is left of a row sums to
            less than 1; renormalize: and to 1 again.
    """

    layers: Indices = "all"
    heads: Heads = "all"
    form: Form = "full"
    rows: Integers = []
    k: Annotated[int, Field(ge=1)] | None = None
    size: Annotated[int, Field(ge=1)] | None = None
    weight: Weight | None = None
    level: Level = "token"
    specials: Specials = "keep"
    dtype: Floats = "float32"

    @model_validator(mode="after")
    def _of_its_form(self) -> "Attention":
        """What a form does not read is refused: whoever sends it expects it to do something."""
        if (self.form == "rows") != bool(self.rows):
            raise PydanticCustomError("rows_and_form", FORM_ROWS if self.rows else ROWS)
        for name, form in (("k", "top"), ("size", "blocks")):
            if getattr(self, name) is not None and self.form != form:
                raise PydanticCustomError("number_and_form", NUMBER_AND_FORM[name])
        if self.weight == "value_norm" and self.form not in ("top", "dominance"):
            raise PydanticCustomError("weight_and_form", WEIGHT_AND_FORM)
        return self

    @field_validator("rows")
    @classmethod
    def _once(cls, rows: list[int]) -> list[int]:
        if len(set(rows)) != len(rows):
            raise PydanticCustomError(
                "index_out_of_range", "a row is named twice; each counts once"
            )
        return rows


class EncodeRequest(Wire):
    """The body of POST /v1/encode.

    Args:
        layers: hidden states: 0 = embeddings, i = after i layers, -1 = the last.
        gates: heads to scale, in this request alone.
        prompt_name: of the checkpoint's prompts, the one that goes before each text; left out:
            its own default, where it has one.
        counted: whether the answer says how long texts are that are cut.
    """

    counted: ClassVar[bool] = True

    model: str | None = None
    inputs: Inputs
    truncate: Truncate = "refuse"
    pooled: Annotated[
        Annotated[bool, Tag("<switch>")] | Annotated[Pooled, Tag("<how>")],
        Discriminator(lambda value: "<switch>" if isinstance(value, bool) else "<how>"),
    ] = True
    tokens: bool = False
    layers: Integers = []
    attention: Attention | None = None
    gates: Gates = []
    prompt_name: str | None = None
    encoding: Literal["json", "base64"] = "json"
    dtype: Floats = "float32"

    @cached_property
    def items(self) -> list[Item]:
        """Every input in its long form."""
        return [
            Item.model_construct(text=value) if isinstance(value, str) else value
            for value in self.inputs
        ]
