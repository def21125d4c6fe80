"""The parts of a request that name heads, and those that change what heads write."""

from typing import Annotated, Literal

from pydantic import BeforeValidator, Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from model.maps.choices import HEAD, by_layer
from service.wire import Wire

MOST_SCALE = 100.0  # of a gate; much more makes numbers that nothing can hold
# Lists that stop at their first error: a million errors would cost more than the request
Integers = TypeAliasType("Integers", Annotated[list[int], FailFast()])

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


class Sweep(Wire):
    """Heads that are scaled one at a time, to see what each is worth."""

    layers: Indices = "all"
    """Their layers, as of `attention`."""
    heads: Heads = "all"
    """The heads, as of `attention`."""
    scale: Scale = 0.0
    """What each is multiplied by before W_O, after any gate or patch of its own; 0 drops it."""


Gates = TypeAliasType("Gates", Annotated[list[Gate], FailFast()])
Patches = TypeAliasType("Patches", Annotated[list[Patch], FailFast()])
SweepField = Annotated[
    Annotated[Literal["heads"], Tag("<heads>")] | Annotated[Sweep, Tag("<how>")],
    Discriminator(lambda value: "<how>" if isinstance(value, dict | Wire) else "<heads>"),
]
