"""The parts of a request that name heads: to show them, scale them or patch what they write."""

from typing import Annotated, Literal, LiteralString

from pydantic import (
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
    field_validator,
    model_validator,
)
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from model.maps.choices import HEAD, Form, Level, Specials, Weight, by_layer
from service.encode import request as encode
from service.encode.request import Floats
from service.wire import Integers, Wire

MOST_SCALE = 100.0  # of a gate; much more overflows

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


HeadName = Annotated[str, Field(pattern=f"^{HEAD.pattern}$")]
Heads = Annotated[
    All | Listed | ByLayer,
    Discriminator(_heads_tag),
    BeforeValidator(
        by_layer,
        json_schema_input_type=Literal["all"]
        | HeadName
        | list[int]
        | list[HeadName]
        | dict[str, list[int]],
    ),
]
Scale = Annotated[float, Field(ge=-MOST_SCALE, le=MOST_SCALE)]


class Gate(Wire):
    """What one head's mixed values are multiplied by before W_O; 0 drops the head."""

    layer: int
    """The layer, counted from 0."""
    head: int
    """The head of that layer, counted from 0."""
    scale: Scale
    """The factor: 0 drops the head, 1 changes nothing."""

    def plain(self) -> encode.Gate:
        """Return it as encode/ knows it."""
        return encode.Gate(self.layer, self.head, self.scale)


class Patch(Wire):
    """One head's mixed values before W_O, taken from another input, position by position."""

    layer: int
    """The layer, counted from 0."""
    head: int
    """The head of that layer, counted from 0."""
    source: int = Field(alias="from")
    """The input that they are taken from, counted from 0: one without patches, with as many
    tokens. In POST /v1/similarity, `left` is 0 and the first on the right 1; in POST /v1/maxsim,
    `query` is 0 and the first document 1."""

    def plain(self) -> encode.Patch:
        """Return it as encode/ knows it."""
        return encode.Patch(self.layer, self.head, self.source)


class Sweep(Wire):
    """Heads that are scaled one at a time, to see what each is worth."""

    layers: Indices = "all"
    """Their layers, as of `attention`."""
    heads: Heads = "all"
    """The heads, as of `attention`."""
    scale: Scale = 0.0
    """What each is multiplied by before W_O, after any gate or patch of its own; 0 drops it."""

    def plain(self) -> encode.Sweep:
        """Return it as encode/ knows it."""
        return encode.Sweep(self.layers, self.heads, self.scale)


Gates = TypeAliasType("Gates", Annotated[list[Gate], FailFast()])
Patches = TypeAliasType("Patches", Annotated[list[Patch], FailFast()])
SweepField = Annotated[
    Annotated[Literal["heads"], Tag("<heads>")] | Annotated[Sweep, Tag("<how>")],
    Discriminator(lambda value: "<how>" if isinstance(value, dict | Wire) else "<heads>"),
]


FORM_ROWS: LiteralString = '"rows" goes with "form": "rows"'
ROWS: LiteralString = '"form": "rows" needs "rows", a list such as [0, 2]'
NUMBER_AND_FORM: dict[str, LiteralString] = {
    "k": '"k" goes with "form": "top"',
    "size": '"size" goes with "form": "blocks"',
}
WEIGHT_AND_FORM: LiteralString = '"weight": "value_norm" goes with "form": "top" or "dominance"'


class Attention(Wire):
    """What to show of the attention."""

    layers: Indices = "all"
    """The layers to show, counted from 0, or from the last by negative numbers."""
    heads: Heads = "all"
    """The heads to show, counted from 0: of every layer the same, or by layer, {"5": [11]}, or by
    name, "L5H11" or a list of such; the latter two choose the layers too."""
    form: Form = "full"
    """What to make of the maps: whole maps, some rows, the strongest keys of every row, blocks,
    statistics, who dominates whom, or one map through all layers."""
    rows: Integers = []
    """Of the form rows, which needs it: the queries to show, tokens or words counted from 0."""
    k: Annotated[int, Field(ge=1)] | None = None
    """Of the form top: how many keys to show of each row; 8 where left out."""
    size: Annotated[int, Field(ge=1)] | None = None
    """Of the form blocks: the most blocks along a side; 32 where left out."""
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
    def _of_its_form(self) -> "Attention":
        """Refuse what a form does not read: its sender expects it to have an effect."""
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

    def plain(self) -> encode.Attention:
        """Return it as encode/ knows it."""
        return encode.Attention(**dict(self))


def swept(sweep: Literal["heads"] | Sweep | None) -> encode.Sweep | None:
    """Return a sweep as encode/ knows it."""
    if sweep is None or isinstance(sweep, Sweep):
        return sweep.plain() if sweep else None
    return encode.Sweep()
