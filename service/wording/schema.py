"""What the schema finds wrong with a request -> faults, in words."""

from typing import Any

from pydantic_core import ErrorDetails

from service.wire import BODIES, FIELDS
from service.wording import syntax
from service.wording.fault import Fault
from service.wording.types import at, choices, expected, fields
from service.wording.words import counted, meant, quoted, received

# pydantic's error types; any other is invalid_type
CODES: dict[str, str] = {
    "missing": "missing_field",
    "extra_forbidden": "unknown_field",
    "exactly_one_input": "exactly_one_input",
    "string_unicode": "invalid_text",
    "finite_number": "non_finite",
    "greater_than_equal": "out_of_range",
    "less_than_equal": "out_of_range",
    "number_and_form": "out_of_range",
    "rows_and_form": "out_of_range",
    "weight_and_form": "out_of_range",
    "index_out_of_range": "index_out_of_range",
    "literal_error": "out_of_range",
    "batch_empty": "batch_empty",
    "batch_too_large": "batch_too_large",
    "pair_in_comparison": "unknown_field",
    "spans_by_name": "invalid_type",
    "span_count": "out_of_range",
    "span_ends": "out_of_range",
    "span_empty": "span_empty",
}
# those that a model of ours raises, with a message of ours
OURS = {"exactly_one_input", "number_and_form", "rows_and_form", "weight_and_form"}
OURS |= {"index_out_of_range", "batch_empty", "batch_too_large", "pair_in_comparison"}
OURS |= {"spans_by_name", "span_count", "span_ends", "span_empty"}
PATTERN = 'integers separated by commas, such as "0,3,-1"'  # the one pattern there is


def fault(error: ErrorDetails, body: str) -> Fault:
    """A validation error, located by indices and our own field names, never by the input's.

    Args:
        body: the request's type, as pydantic calls it.
    """
    loc = tuple(part for part in error["loc"] if isinstance(part, int) or part in FIELDS)
    if error["type"] == "json_invalid":
        return syntax.fault(str(error.get("ctx", {}).get("error", "")), loc)
    code = CODES.get(error["type"], "invalid_type")
    return Fault(loc, code, _detail(error, BODIES.get(body)))


def _detail(error: ErrorDetails, body: Any) -> str:
    """What is expected, and what came."""
    kinds = at(body, _own(error["loc"]))
    match error["type"]:
        case kind if kind in OURS:
            return error["msg"]
        case "missing":
            return f"this field is missing; it takes {expected(kinds)}"
        case "extra_forbidden":
            return _unknown(error["loc"], body)
        case "string_unicode":
            return "the text contains half a surrogate pair, which is not valid Unicode"
        case "finite_number":
            return "expected a finite number, received NaN or infinity"
        case "greater_than_equal":
            return f"expected at least {error['ctx']['ge']:g}, received a smaller number"
        case "less_than_equal":
            return f"expected at most {error['ctx']['le']:g}, received a larger number"
        case "string_pattern_mismatch" | "string_too_long":
            return f"expected {PATTERN}, received {received(error['input'])}"
        case _:
            near = meant(error["input"], choices(kinds))
            return f"expected {expected(kinds)}, received {received(error['input'])}{near}"


def _unknown(loc: tuple[str | int, ...], body: Any) -> str:
    """A field that nobody knows, by its length, which is all that may be said of its name."""
    *parents, name = loc
    names = fields(at(body, _own(tuple(parents))))
    size, near = counted(len(str(name)), "character"), meant(name, names) or "."
    return f"a field with a name of {size} is unknown{near} The fields are {quoted(names, 'and')}"


def _own(loc: tuple[str | int, ...]) -> tuple[str | int, ...]:
    """A place without the tags by which pydantic says which type of several it tried."""
    return tuple(part for part in loc if isinstance(part, int) or not part.startswith("<"))
