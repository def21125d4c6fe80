"""pydantic's errors -> faults, in words that repeat nothing from the request.

pydantic's own words are kept if they say enough. It mentions one member of a union, and never what
it received: where that matters, the type of the place says what is expected there.

    EncodeRequest at ("attention", "layers")        "all" or a list
"""

import json
import re
from collections.abc import Iterable, Sequence
from types import NoneType, UnionType
from typing import Annotated, Any, Literal, Union, get_args, get_origin

from pydantic_core import ErrorDetails, from_json
from typing_extensions import TypeAliasType

from service.wire import FIELD_NAMES, REQUEST_TYPES, Wire
from service.wording.words import (
    Fault,
    Loc,
    count_noun,
    describe_value,
    list_names,
    quote_names,
    suggest_name,
)

# Our codes by error type: of the errors that our models raise in our own words, and of
# pydantic's; any other is invalid_type
RAISED_CODES = {
    "exactly_one_input": "exactly_one_input",
    "number_and_form": "out_of_range",
    "rows_and_form": "out_of_range",
    "weight_and_form": "out_of_range",
    "steps_of_length_1": "out_of_range",
    "labels_distinct": "out_of_range",
    "template_hole": "out_of_range",
    "index_out_of_range": "index_out_of_range",
    "batch_empty": "batch_empty",
    "batch_too_large": "batch_too_large",
    "pair_in_comparison": "unknown_field",
    "spans_by_name": "invalid_type",
    "span_count": "out_of_range",
    "span_ends": "out_of_range",
    "span_empty": "span_empty",
    "named_twice": "out_of_range",
}
ERROR_CODES = RAISED_CODES | {
    "missing": "missing_field",
    "extra_forbidden": "unknown_field",
    "string_unicode": "invalid_text",
    "finite_number": "non_finite",
    "greater_than_equal": "out_of_range",
    "less_than_equal": "out_of_range",
    "literal_error": "out_of_range",
}
HALF_PAIR_ERROR = "hex escape"  # in what the parser says of one that stands alone
SURROGATE_MARK, MARKED_END = "\ufffd", b'\\ufffd"'  # ends a string where the parser stopped
HALF_SURROGATE = "a \\u escape is half a surrogate pair, which is not valid Unicode,"
# What the parser says of JSON that it cannot read -> our words and code; for anything else, the
# parser's own words and invalid_json
PARSER_FAULTS = {
    "lone leading surrogate in hex escape": (HALF_SURROGATE, "invalid_text"),
    "unexpected end of hex escape": (HALF_SURROGATE, "invalid_text"),
    "number out of range": ("the number has too many digits", "out_of_range"),
    "expected ident": ("expected true, false or null", "invalid_json"),
}
TYPE_WORDS = {
    bool: ("true", "false"),
    int: ("an integer",),
    float: ("a number",),
    str: ("a string",),
    list: ("a list",),
    dict: ("an object",),
    NoneType: ("null",),
}
INDICES_PATTERN = 'integers separated by commas, such as "0,3,-1"'  # the only pattern


def locate_fault(error: ErrorDetails, body: str) -> Fault:
    """Locate a validation error by indices and our own field names, never by the input's.

    Args:
        body: the request's type, as pydantic calls it.
    """
    if error["type"] == "json_invalid":
        said = error["ctx"]["error"]
        return word_unreadable(
            said,
            _own_names(_broken_string(error["input"], said)) if HALF_PAIR_ERROR in said else (),
        )
    loc = _own_names(error["loc"])
    code = ERROR_CODES.get(error["type"], "invalid_type")
    return Fault(loc, code, _word_detail(error, REQUEST_TYPES.get(body)))


def _own_names(loc: Iterable[str | int]) -> Loc:
    """Return a place without names that are not ours."""
    return tuple(part for part in loc if isinstance(part, int) or part in FIELD_NAMES)


def _broken_string(body: str | bytes, said: str) -> Loc:
    """Return the place of the string whose \\u escape is broken; () where it is a key."""
    read = body.encode() if isinstance(body, str) else body
    line, column = map(int, re.findall(r"\d+", said.rpartition(" at line ")[2]))
    before = read.split(b"\n")[:line]
    end = sum(map(len, before[:-1])) + line - 1 + column
    stopped = read.rfind(b"\\u", 0, end)
    try:
        at = from_json(read[:stopped] + MARKED_END, allow_partial=True)
    except ValueError:  # the escape before is the half
        at = from_json(read[: stopped - len("\\u0000")] + MARKED_END, allow_partial=True)
    place: list[str | int] = []
    while at and isinstance(at, dict | list):
        place.append(last := [*at][-1] if isinstance(at, dict) else len(at) - 1)
        at = at[last]
    return tuple(place) if isinstance(at, str) and at.endswith(SURROGATE_MARK) else ()


def word_unreadable(said: str, loc: Loc = ()) -> Fault:
    """Return the fault for JSON that the parser cannot read: what, and where."""
    words, _, place = said.partition(" at line ")
    ours, code = PARSER_FAULTS.get(words, (words, "invalid_json"))
    return Fault(loc, code, f"{ours} at line {place}" if place else ours)


def _word_detail(error: ErrorDetails, body: Any) -> str:
    """Say what is expected, and what came."""
    kinds, came = _types_at(body, error["loc"]), describe_value(error["input"])
    match error["type"]:
        case kind if kind in RAISED_CODES:
            return error["msg"]
        case "missing":
            return f"this field is missing; it takes {_word_expected(kinds)}"
        case "extra_forbidden":
            return _word_unknown(error["loc"], body)
        case "string_unicode":
            return "the text contains half a surrogate pair, which is not valid Unicode"
        case "finite_number":
            return "expected a finite number, received NaN or infinity"
        case "greater_than_equal" | "less_than_equal":
            return error["msg"].replace("Input should be", "expected a number")
        case "string_pattern_mismatch" | "string_too_long":
            return f"expected {INDICES_PATTERN}, received {came}"
        case _:
            words = (word for kind in kinds for word in get_args(kind) if isinstance(word, str))
            suggestion = suggest_name(error["input"], [*words])
            return f"expected {_word_expected(kinds)}, received {came}{suggestion}"


def _word_unknown(loc: Loc, body: Any) -> str:
    """Say which fields there are; only the length of an unknown name may be repeated."""
    *parents, name = loc
    objects = (kind for kind in _types_at(body, parents) if _is_wire(kind))
    names = dict.fromkeys(name for kind in objects for name in kind.named_fields())
    size, near = count_noun(len(str(name)), "character"), suggest_name(name, names) or "."
    return f"unknown field ({size}){near} The fields are {quote_names(names, 'and')}"


def _types_at(body: Any, loc: Sequence[str | int]) -> list[Any]:
    """Return the plain types that a place in a type takes.

    A part that leads nowhere is skipped: with it, pydantic says which of several types it tried.
    """
    kinds = _plain_types(body)
    for part in loc:
        inner = (each for kind in kinds for each in _types_inside(kind, part))
        kinds = [plain for each in inner for plain in _plain_types(each)] or kinds
    return kinds


def _plain_types(kind: Any) -> list[Any]:
    """Return a type without aliases and annotations; a union as its members."""
    origin = get_origin(kind)
    if isinstance(kind, TypeAliasType):
        return _plain_types(kind.__value__)
    if origin is Annotated:
        return _plain_types(get_args(kind)[0])
    if origin in (Union, UnionType):
        return [plain for member in get_args(kind) for plain in _plain_types(member)]
    return [kind]


def _types_inside(kind: Any, part: str | int) -> Iterable[Any]:
    """Return what one step into a plain type may lead to."""
    if _is_wire(kind):
        field = kind.named_fields().get(part)
        return [field.annotation] if field else []
    fits = get_origin(kind) is (list if isinstance(part, int) else dict)
    return get_args(kind)[-1:] if fits else ()


def _word_expected(kinds: Iterable[Any]) -> str:
    """Name plain types in words."""
    words = dict.fromkeys(word for kind in kinds for word in _word_type(kind))
    return list_names(words) if words else "another value"


def _word_type(kind: Any) -> Iterable[str]:
    """Name a plain type, a literal by its values; one that JSON cannot hold has no name."""
    if get_origin(kind) is Literal:
        return map(json.dumps, get_args(kind))
    return ("an object",) if _is_wire(kind) else TYPE_WORDS.get(get_origin(kind) or kind, ())


def _is_wire(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Wire)
