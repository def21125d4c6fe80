"""A request's type -> what it takes at a place: found by the place, said in words.

EncodeRequest at ("attention", "layers")        "all" or a list of integers
"""

import json
from collections.abc import Iterator
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from typing_extensions import TypeAliasType

from service.wire import Wire
from service.wording.fault import Loc
from service.wording.words import listed

WORDS = {
    int: "an integer",
    float: "a number",
    str: "a string",
    NoneType: "null",
}
PLURALS = {bool: "booleans", int: "integers", float: "numbers", str: "strings"}


def at(kind: Any, loc: Loc) -> list[Any]:
    """The plain types that a place of a type takes.

    A part that leads nowhere is skipped: it is how pydantic names which type of several it tried.
    """
    kinds = list(_plain(kind))
    for part in loc:
        kinds = [inner for outer in kinds for inner in _within(outer, part)] or kinds
    return kinds


def expected(kinds: list[Any]) -> str:
    """Plain types in words."""
    words = dict.fromkeys(word for kind in kinds for word in _words(kind))
    return listed(words) if words else "another value"


def fields(kinds: list[Any]) -> list[str]:
    """The fields of those that are objects."""
    objects = [kind for kind in kinds if _is_wire(kind)]
    return list(dict.fromkeys(name for kind in objects for name in kind.named_fields()))


def choices(kinds: list[Any]) -> list[str]:
    """The words that are taken, where some are."""
    literals = (kind for kind in kinds if get_origin(kind) is Literal)
    return [value for kind in literals for value in get_args(kind) if isinstance(value, str)]


def _plain(kind: Any) -> Iterator[Any]:
    """A type without its names and notes, a union as its members."""
    origin = get_origin(kind)
    if isinstance(kind, TypeAliasType):
        yield from _plain(kind.__value__)
    elif origin is Annotated:
        yield from _plain(get_args(kind)[0])
    elif origin in (Union, UnionType):
        for member in get_args(kind):
            yield from _plain(member)
    elif kind in WORDS or kind is bool or origin in (Literal, list, dict) or _is_wire(kind):
        yield kind  # any other comes by no JSON


def _within(kind: Any, part: str | int) -> Iterator[Any]:
    """What stands at one step into a plain type."""
    if _is_wire(kind) and part in kind.named_fields():
        yield from _plain(kind.named_fields()[part].annotation)
    elif isinstance(part, int) == (get_origin(kind) is list) and get_origin(kind) in (list, dict):
        yield from _plain(get_args(kind)[-1])


def _words(kind: Any) -> Iterator[str]:
    """A plain type in words; those of a literal one by one."""
    if kind is bool:
        yield from ("true", "false")
    elif get_origin(kind) is Literal:
        yield from map(json.dumps, get_args(kind))
    elif get_origin(kind) is list:
        yield f"a list of {_plural(get_args(kind)[0])}"
    elif get_origin(kind) is dict:
        yield f"an object of {_plural(get_args(kind)[1])}"
    else:
        yield WORDS.get(kind, "an object")


def _plural(kind: Any) -> str:
    """What a list or an object holds."""
    return listed(dict.fromkeys(map(_many, _plain(kind)))) if kind is not Any else "values"


def _many(kind: Any) -> str:
    """Several of a plain type."""
    if get_origin(kind) is list:
        return f"lists of {_plural(get_args(kind)[0])}"
    return PLURALS.get(kind, "objects")


def _is_wire(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Wire)
