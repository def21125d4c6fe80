"""What the types of answers share.

Answers are written as bytes and never made through these types: the document of the API is.
"""

from collections.abc import Iterable
from typing import Annotated

from pydantic import ConfigDict, Field, WithJsonSchema, with_config
from typing_extensions import TypedDict


@with_config(ConfigDict(extra="forbid"))
class Closed(TypedDict):
    """An object of its fields and no other."""


class Provenance(Closed):
    """What made an answer."""

    model: str
    weights: Annotated[str, Field(description="digest of all that decides about a vector")]
    numerics: Annotated[str, Field(description="equal weights, numerics, input: equal bits")]


def one_of(names: Iterable[str]) -> WithJsonSchema:
    """A string that is one of a table's names."""
    return WithJsonSchema({"type": "string", "enum": list(names)})
