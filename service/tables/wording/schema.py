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

from model.maps.choices import HEAD_NAME
from service.tables.wording.changing_fields import CHANGING_FIELDS
from service.tables.wording.wire import FIELD_NAMES, REQUEST_TYPES, ForeignRequest, Wire
from service.tables.wording.words import (
    Fault,
    Loc,
    describe_value,
    list_names,
    quote_names,
    show_name,
    suggest_name,
)

# Refusal codes by pydantic error type: those that our own validators raise, then with pydantic's
# built-in ones; any other error gets invalid_type
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
HALF_PAIR_ERROR = "hex escape"  # in the parser's message for half a surrogate pair
# Closes a string that is cut before its broken escape, so that the cut body can be parsed
SURROGATE_MARK, MARKED_END = "\ufffd", b'\\ufffd"'
HALF_SURROGATE = "a \\u escape is half a surrogate pair, which is not valid Unicode,"
# The JSON parser's message -> our detail and code; any other message is kept, with invalid_json
PARSER_FAULTS = {
    "lone leading surrogate in hex escape": (HALF_SURROGATE, "invalid_text"),
    "unexpected end of hex escape": (HALF_SURROGATE, "invalid_text"),
    "number out of range": ("the number has too many digits", "out_of_range"),
    "expected ident": ("expected true, false or null", "invalid_json"),
    "expected value": ("expected a value", "invalid_json"),
    "key must be a string": ("expected a key in double quotes", "invalid_json"),
    "trailing comma": ("a value is missing after a comma", "invalid_json"),
    "trailing characters": ("expected nothing more after the value", "invalid_json"),
    "recursion limit exceeded": ("lists and objects are nested too deep", "invalid_json"),
    "invalid unicode code point": ("a text is not UTF-8", "invalid_json"),
    "invalid escape": ("a backslash begins no escape of JSON", "invalid_json"),
    "invalid number": ("expected a number as JSON has it", "invalid_json"),
    "EOF while parsing a value": ("the body ends where a value is expected", "invalid_json"),
    **{
        f"EOF while parsing {what}": (f"the body ends within {what}", "invalid_json")
        for what in ("a string", "a list", "an object")
    },
    "control character (\\u0000-\\u001F) found while parsing a string": (
        "a string has a line feed or another control character, which JSON writes as an escape",
        "invalid_json",
    ),
}
TYPE_WORDS = {  # how a detail names the values of each type
    bool: ("true", "false"),
    int: ("an integer",),
    float: ("a number",),
    str: ("a string",),
    list: ("a list",),
    dict: ("an object",),
    NoneType: ("null",),
}
NOT_FOLLOWED = "it changes answers of other services, and this route does not follow it"
# What the patterns in our models match, in words: those of lists have a greatest length too
HEAD_WORDS = 'a number, or a name such as "L5H11"'
INDICES_WORDS = 'integers separated by commas, such as "0,3,-1"'


def locate_fault(error: ErrorDetails, title: str) -> Fault:
    """Convert a pydantic error to a Fault, whose place holds only indices and our field names.

    Args:
        title: the request's type, as pydantic's ValidationError.title names it.
    """
    if error["type"] == "json_invalid":
        message = error["ctx"]["error"]
        loc = _locate_broken_escape(error["input"], message) if HALF_PAIR_ERROR in message else ()
        return _word_parse_error(message, _drop_unknown_keys(loc))
    loc = _drop_unknown_keys(error["loc"])
    code = ERROR_CODES.get(error["type"], "invalid_type")
    return Fault(loc, code, _word_detail(error, REQUEST_TYPES.get(title)))


def _drop_unknown_keys(loc: Iterable[str | int]) -> Loc:
    """Return a place without the keys that are no fields of our request models."""
    return tuple(part for part in loc if isinstance(part, int) or part in FIELD_NAMES)


def _locate_broken_escape(body: str | bytes, message: str) -> Loc:
    """Return the place of the string whose \\u escape is broken; () where it is a key.

    Args:
        message: the JSON parser's, which ends in the line and column where it stopped.
    """
    raw = body.encode() if isinstance(body, str) else body
    line, column = map(int, re.findall(r"\d+", message.rpartition(" at line ")[2]))
    before = raw.split(b"\n")[:line]
    end = sum(map(len, before[:-1])) + line - 1 + column
    escape = raw.rfind(b"\\u", 0, end)
    try:
        value = from_json(raw[:escape] + MARKED_END, allow_partial=True)
    except ValueError:  # the escape before it is the half
        value = from_json(raw[: escape - len("\\u0000")] + MARKED_END, allow_partial=True)
    loc: list[str | int] = []
    while value and isinstance(value, dict | list):
        loc.append(last := [*value][-1] if isinstance(value, dict) else len(value) - 1)
        value = value[last]
    return tuple(loc) if isinstance(value, str) and value.endswith(SURROGATE_MARK) else ()


def _word_parse_error(message: str, loc: Loc) -> Fault:
    """Return the fault for a JSON parser's message, with the line and column that it names."""
    words, _, position = message.partition(" at line ")
    detail, code = PARSER_FAULTS.get(words, (words, "invalid_json"))
    return Fault(loc, code, f"{detail} at line {position}" if position else detail)


def _word_detail(error: ErrorDetails, request_type: Any) -> str:
    """Describe what was expected at a pydantic error's place, and what was received."""
    kinds, received = _types_at(request_type, error["loc"]), describe_value(error["input"])
    match error["type"]:
        case kind if kind in RAISED_CODES:
            return error["msg"]
        case "missing":
            return f"this field is missing; it takes {_word_expected(kinds)}"
        case "extra_forbidden":
            return _word_unknown_field(error["loc"], request_type)
        case "string_unicode":
            return "the text contains half a surrogate pair, which is not valid Unicode"
        case "finite_number":
            return "expected a finite number, received NaN or infinity"
        case "greater_than_equal" | "less_than_equal":
            (bound,) = error["ctx"].values()
            side = "least" if error["type"] == "greater_than_equal" else "most"
            return f"expected a number of at {side} {f'{bound:,}'.removesuffix('.0')}"
        case "string_pattern_mismatch" | "string_too_long":
            is_head = error["ctx"].get("pattern") == f"^{HEAD_NAME.pattern}$"
            return f"expected {HEAD_WORDS if is_head else INDICES_WORDS}, received {received}"
        case _:
            words = (word for kind in kinds for word in get_args(kind) if isinstance(word, str))
            suggestion = suggest_name(error["input"], [*words])
            return f"expected {_word_expected(kinds)}, received {received}{suggestion}"


def _word_unknown_field(loc: Loc, request_type: Any) -> str:
    """Name an unknown field, and those that exist."""
    *parents, name = loc
    objects = [kind for kind in _types_at(request_type, parents) if _is_wire(kind)]
    names = dict.fromkeys(name for kind in objects for name in kind.named_fields())
    suggestion = suggest_name(name, names) or "."
    foreign = name in CHANGING_FIELDS and any(issubclass(kind, ForeignRequest) for kind in objects)
    wrong = NOT_FOLLOWED if foreign else f"unknown field {show_name(str(name))}"
    return f"{wrong}{suggestion} The fields are {quote_names(names, 'and')}"


def _types_at(request_type: Any, loc: Sequence[str | int]) -> list[Any]:
    """Return the plain types that are allowed at a place in a request.

    A part of `loc` that is no key or index is skipped: with it, pydantic names the union member.
    """
    kinds = _plain_types(request_type)
    for part in (part for part in loc if not str(part).startswith("<")):
        inner = (value_type for kind in kinds for value_type in _types_inside(kind, part))
        kinds = [plain for value_type in inner for plain in _plain_types(value_type)] or kinds
    return kinds


def _plain_types(kind: Any) -> list[Any]:
    """Return a type as a list of its union's members, without aliases and Annotated."""
    origin = get_origin(kind)
    if isinstance(kind, TypeAliasType):
        return _plain_types(kind.__value__)
    if origin is Annotated:
        return _plain_types(get_args(kind)[0])
    if origin in (Union, UnionType):
        return [plain for member in get_args(kind) for plain in _plain_types(member)]
    return [kind]


def _types_inside(kind: Any, part: str | int) -> Iterable[Any]:
    """Return the types of the value at one key or index of a plain type; none if it has none."""
    if _is_wire(kind):
        field = kind.named_fields().get(part)
        return [field.annotation] if field else []
    fits = get_origin(kind) is (list if isinstance(part, int) else dict)
    return get_args(kind)[-1:] if fits else ()


def _word_expected(kinds: Iterable[Any]) -> str:
    """List plain types in words: a string, a list or null."""
    words = dict.fromkeys(word for kind in kinds for word in _word_type(kind))
    return list_names(words) if words else "another value"


def _word_type(kind: Any) -> Iterable[str]:
    """Return words for a plain type, or a literal's values; none for a type JSON cannot hold."""
    if get_origin(kind) is Literal:
        return map(json.dumps, get_args(kind))
    return ("an object",) if _is_wire(kind) else TYPE_WORDS.get(get_origin(kind) or kind, ())


def _is_wire(kind: Any) -> bool:
    """Tell whether a type is one of our request models, a JSON object."""
    return isinstance(kind, type) and issubclass(kind, Wire)
