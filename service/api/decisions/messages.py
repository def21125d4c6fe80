"""What a decision is about and asks, in OpenAI's words: messages, calls of tools, parts."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from service.api.deciding import write_json
from service.tables.refusals import Refused
from service.tables.wording.words import Loc, describe_value, list_names, quote_names

BREAKPOINT = "prompt_cache_breakpoint"  # of a part: where a cache may end, which changes no answer
PICTURE = "input_image"
TEXTS, OUTPUTS = {"input_text": "text"}, {"output_text": "text", "refusal": "refusal"}
ANY_TEXT = {**TEXTS, "input_json": "data"}
# Parts of a message by its role, and the field that holds what each type of part says
PARTS: Mapping[str, Mapping[str, str]] = {
    "user": ANY_TEXT,
    "developer": TEXTS,
    "system": TEXTS,
    "assistant": OUTPUTS,
}
# What an item of `input` that is no message needs, by its type; the last one may have parts
ITEMS: Mapping[str, Sequence[str]] = {
    "function_call": ("call_id", "name", "arguments"),
    "custom_tool_call": ("call_id", "name", "input"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call_output": ("call_id", "output"),
}
OUTPUT_END = "_output"  # of a type: the rest is that of its call
# Details of refusals
NO_PICTURES = "it is a picture, and texts are all that is read"
NO_MESSAGE = "expected a text, or one message or more, received none"
NO_CALL = "no {kind} before it has this call_id"
TYPES = {str: "a string", bool: "a boolean", list: "a list", dict: "an object"}
NOT_TAKEN = "expected {expected}, received {received}"


def read_messages(items: Sequence[Any]) -> list[dict[str, Any]]:
    """Return messages, calls of tools and their outputs, each as the model is to read it.

    Raises:
        Refused: there is none; one is none of these, holds a picture, or is the output of no call
            before it.
    """
    if not items:
        raise Refused.at("batch_empty", "input", detail=NO_MESSAGE)
    read = [_read_item(item, number) for number, item in enumerate(items)]
    _check_calls(read)
    return read


def read_text(said: str | list[Any], *place: str | int) -> str:
    """Return a text, or its parts a line each: texts as they are, JSON as one line of it."""
    if isinstance(said, str):
        return said
    parts = read_parts(said, ANY_TEXT, *place)
    return "\n".join(write_json(part[ANY_TEXT[part["type"]]]) for part in parts)


def _read_item(item: Any, number: int) -> dict[str, Any]:
    """Return a message, or a call of a tool or its output, as the model is to read it.

    Raises:
        Refused: it is none of these, or holds a picture.
    """
    at = partial(read_field, place=("input", number))
    if not isinstance(item, dict):
        raise not_taken("an object", item, "input", number)
    kind = item.get("type") or "message"
    if kind == "message":
        role = at(item, "role", tuple(PARTS))
        content = at(item, "content", (str, list))
        return {**item, "content": read_parts(content, PARTS[role], "input", number, "content")}
    *fields, last = ITEMS[at(item, "type", ("message", *ITEMS))]
    for field in fields:
        at(item, field, (str,))
    if last != "output":
        at(item, last, (str,))
        return item
    output = at(item, last, (str, list))
    return {**item, last: read_parts(output, TEXTS, "input", number, last)}


def read_parts(said: str | list[Any], takes: Mapping[str, str], *place: str | int) -> Any:
    """Return a text, or its parts without the marks of caches.

    Args:
        takes: the field that holds what each type of part says, by the type.

    Raises:
        Refused: a part is of no such type, or a picture.
    """
    if isinstance(said, str):
        return said
    parts = []
    for number, part in enumerate(said):
        if not isinstance(part, dict):
            raise not_taken("an object", part, *place, number)
        if part.get("type") == PICTURE:
            raise Refused.at("out_of_range", *place, number, "type", detail=NO_PICTURES)
        kind = read_field(part, "type", tuple(takes), (*place, number))
        types = (dict, list) if takes[kind] == "data" else (str,)
        read_field(part, takes[kind], types, (*place, number))
        parts.append({name: value for name, value in part.items() if name != BREAKPOINT})
    return parts


def read_field(item: Mapping[str, Any], name: str, takes: Sequence[Any], place: Loc) -> Any:
    """Return a field of an object of the body.

    Args:
        takes: the types that it may have, or all its values.
        place: of the object.

    Raises:
        Refused: it is missing, or something else.
    """
    value, is_type = item.get(name), isinstance(takes[0], type)
    if value is not None and (isinstance(value, tuple(takes)) if is_type else value in takes):
        return value
    expected = list_names([TYPES[each] for each in takes]) if is_type else quote_names(takes)
    if value is None:
        detail = f"this field is missing; it takes {expected}"
        raise Refused.at("missing_field", *place, name, detail=detail)
    code = "invalid_type" if is_type else "out_of_range"
    raise not_taken(expected, value, *place, name, code=code)


def not_taken(expected: str, value: Any, *place: str | int, code: str = "invalid_type") -> Refused:
    """Return the refusal of a value of another kind than what is expected."""
    detail = NOT_TAKEN.format(expected=expected, received=describe_value(value))
    return Refused.at(code, *place, detail=detail)


def _check_calls(items: Sequence[Mapping[str, Any]]) -> None:
    """Refuse the output of a tool that no item before it has called."""
    called = set[tuple[str, str]]()
    for number, item in enumerate(items):
        kind = item.get("type") or "message"
        call = kind.removesuffix(OUTPUT_END)
        if call in ITEMS and kind == call:
            called.add((call, item["call_id"]))
        elif call in ITEMS and (call, item["call_id"]) not in called:
            detail = NO_CALL.format(kind=call)
            raise Refused.at("out_of_range", "input", number, "call_id", detail=detail)
