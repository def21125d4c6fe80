"""Inputs as other APIs send them: a text, token ids, or several of one kind."""

from typing import Annotated

from pydantic import Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.encode.request import Integers

Strings = TypeAliasType("Strings", Annotated[list[str], FailFast()])
Sequences = TypeAliasType("Sequences", Annotated[list[Integers], FailFast()])
Dimensions = Annotated[int, Field(ge=1)]


def tag(given: object) -> str:
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
Inputs = TypeAliasType("Inputs", Annotated[Text | Texts | Ids | Batch, Discriminator(tag)])
