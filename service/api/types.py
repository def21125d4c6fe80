"""What the types of answers share.

Answers are written as bytes and never made through these types: the document of the API is.
"""

from collections.abc import Iterable
from typing import Annotated, Any

from pydantic import ConfigDict, Field, WithJsonSchema, with_config
from pydantic.fields import FieldInfo
from typing_extensions import TypedDict


def about(sentence: str, *examples: Any) -> FieldInfo:
    """What the document of the API says of a field.

    Args:
        examples: where no answer shown there has one.
    """
    info: FieldInfo = Field(description=sentence, examples=list(examples) or None)
    return info


@with_config(ConfigDict(extra="forbid"))
class Closed(TypedDict):
    """An object of its fields and no other."""


class Provenance(Closed):
    """What made an answer."""

    model: Annotated[str, about("Name of the model that is served.")]
    weights: Annotated[
        str, about("Digest of the weights and of all else in the checkpoint that shapes a vector.")
    ]
    numerics: Annotated[
        str,
        about(
            "How numbers are computed. Equal weights, numerics and input give equal bits, unless "
            "it ends in -varying."
        ),
    ]


def one_of(names: Iterable[str]) -> WithJsonSchema:
    """A string that is one of a table's names."""
    return WithJsonSchema({"type": "string", "enum": list(names)})
