"""What questions share that compare one text with others: fields of requests, and the answer."""

from collections.abc import Iterator
from typing import Annotated, Any, LiteralString, TypeVar

from pydantic import AfterValidator, Discriminator, Tag
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.pipeline.write import answer
from service.shapes.answer import Answer, AnswerItem, Array, Each, Records
from service.shapes.inputs import Input, InputItem
from service.tables.wording.wire import Wire

# Messages of validation errors
NO_PAIRS_HERE: LiteralString = 'texts are compared one by one here: no "pair" and no "spans"'
NO_INPUTS: LiteralString = "expected one input or more, received none"


def _check_single(value: str | InputItem) -> str | InputItem:
    """Return an input; refuse one that is a pair or has spans."""
    if isinstance(value, InputItem) and (value.pair, value.spans) != (None, None):
        raise PydanticCustomError("pair_in_comparison", NO_PAIRS_HERE)
    return value


def _refuse_empty(inputs: list[str | InputItem]) -> list[str | InputItem]:
    """Return inputs; refuse an empty list."""
    if not inputs:
        raise PydanticCustomError("batch_empty", NO_INPUTS)
    return inputs


Single = Annotated[Input, AfterValidator(_check_single)]
Singles = TypeAliasType(
    "Singles", Annotated[list[Single], FailFast(), AfterValidator(_refuse_empty)]
)


Sides = TypeVar("Sides", bound=Wire)
BothOr = Annotated[  # one name for both sides, or an object with a name for each
    Annotated[str, Tag("<both>")] | Annotated[Sides, Tag("<each>")],
    Discriminator(lambda value: "<each>" if isinstance(value, dict | Wire) else "<both>"),
]


class SidePrompts(Wire):
    """A prompt for each side."""

    query: str | None = None
    """The prompt that goes before `query`; left out: `default_prompt_name` of GET /info."""
    document: str | None = None
    """The prompt that goes before each of `documents`; left out: the same default."""


Name = TypeVar("Name")


def by_side(value: Name | Wire | None, one: str, other: str) -> tuple[Name | None, Name | None]:
    """Return the names for two sides: `value` for both, or its fields `one` and `other`."""
    if isinstance(value, Wire):
        return getattr(value, one), getattr(value, other)
    return value, value


def to_json(encoded: Answer, one: str, others: str, table: str, encoding: str) -> dict[str, Any]:
    """Return an answer as JSON: the preamble, the one text, the list of the others, the usage.

    Args:
        encoded: its items are the one text, then the others.
        one, others: the answer's fields for them.
        table: the prefix of the names of arrays that are columns of one table, such as "pairs.".
        encoding: of arrays, "json" or "base64".
    """
    items = iter(encoded.items)
    first = next(items)

    def nest(item: AnswerItem) -> dict[str, Any]:
        """Return an item's fields and arrays, those of the table as one field."""
        fields, columns = {**item.facts}, dict[str, Array]()
        for name, array in item.arrays.items():
            short = name.removeprefix(table)
            (fields if short == name else columns)[short] = array
        if columns:
            fields[table[:-1]] = columns if encoding == "base64" else Records(columns, named=False)
        return fields

    rest = Each(map(nest, items))
    return {**encoded.preamble, one: first.facts, others: rest, "usage": encoded.usage}


def write_file(encoded: Answer, one: str, others: str) -> Iterator[bytes]:
    """Return an answer as a safetensors file, in pieces; arguments as of `to_json`."""
    items, arrays, facts = iter(encoded.items), dict[str, Array](), []
    first = next(items)
    for place, item in enumerate(items):
        index = item.facts.get("index", place)  # of the text in the request
        for name, array in item.arrays.items():
            arrays[f"{index}.{name}"] = array
            yield answer.NO_BYTES
        facts.append(item.facts)
    told = {one: first.facts, others: Each(facts)}
    fields = {**encoded.preamble, **told, "usage": encoded.usage}
    yield from answer.write_file(fields, arrays)
