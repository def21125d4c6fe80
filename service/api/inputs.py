"""Inputs as other APIs send them: a text, token ids, or several of one kind."""

from collections.abc import Sequence
from typing import Annotated

from pydantic import Discriminator, Field, Tag
from pydantic.types import FailFast
from typing_extensions import TypeAliasType

from service.api.native.heads import Integers
from service.encode.request import Input

Strings = TypeAliasType("Strings", Annotated[list[str], FailFast()])
Sequences = TypeAliasType("Sequences", Annotated[list[Integers], FailFast()])
Dimensions = Annotated[int, Field(ge=1)]


def tag(value: object) -> str:
    """Which of its forms an input has, by its first entry."""
    if not isinstance(value, list):
        return "<text>"
    first = value[0] if value else ""
    if isinstance(first, list):
        return "<sequences>"
    return "<texts>" if isinstance(first, str) else "<ids>"


Text = Annotated[str, Tag("<text>")]
Texts = Annotated[Strings, Tag("<texts>")]
Ids = Annotated[Integers, Tag("<ids>")]
Batch = Annotated[Sequences, Tag("<sequences>")]
TextsOrIds = TypeAliasType("TextsOrIds", Annotated[Text | Texts | Ids | Batch, Discriminator(tag)])


def items(value: str | Sequence[str | int | list[int]]) -> list[Input]:
    """Return inputs as encode/ knows them."""
    if isinstance(value, str):
        return [Input(value)]
    ids = [entry for entry in value if isinstance(entry, int)]
    if ids:
        return [Input(token_ids=ids)]
    return [
        Input(token_ids=entry) if isinstance(entry, list) else Input(str(entry)) for entry in value
    ]
