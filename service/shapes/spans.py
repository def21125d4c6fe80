"""Spans of a text, as clients write them: each [start, end) in characters."""

from typing import Annotated, Any, LiteralString

from pydantic import AfterValidator, BeforeValidator
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

MOST_SPANS = 2048  # of a request; each is a vector, as a sequence is

# Messages of validation errors
SPANS_EXPECTED: LiteralString = (
    "expected spans in characters, such as [[0, 120], [120, 260]]; the service cuts no text itself"
)
SPAN_ENDS: LiteralString = "expected [start, end] of each span, from 0 on, the start before the end"
TOO_MANY_SPANS: LiteralString = "expected at most {most} spans, received {count}"
EMPTY_SPAN: LiteralString = "a span ends where it starts"
SPANS_IN_ORDER: LiteralString = "expected spans in the order of their starts; they may overlap"


def _check_count(value: Any) -> Any:
    """Refuse a string, and more than MOST_SPANS spans."""
    if isinstance(value, str):
        raise PydanticCustomError("spans_by_name", SPANS_EXPECTED)
    if isinstance(value, list) and len(value) > MOST_SPANS:
        size = {"count": f"{len(value):,}", "most": f"{MOST_SPANS:,}"}
        raise PydanticCustomError("span_count", TOO_MANY_SPANS, size)
    return value


def _check_spans(spans: list[list[int]]) -> list[list[int]]:
    """Refuse spans that are not [start, end) or not in the order of their starts."""
    if not all(len(span) == 2 and 0 <= span[0] <= span[1] for span in spans):
        raise PydanticCustomError("span_ends", SPAN_ENDS)
    if any(start == end for start, end in spans):
        raise PydanticCustomError("span_empty", EMPTY_SPAN)
    if [*spans] != sorted(spans, key=lambda span: span[0]):
        raise PydanticCustomError("span_ends", SPANS_IN_ORDER)
    return spans


Ends = TypeAliasType("Ends", Annotated[list[int], FailFast()])
Spans = TypeAliasType(
    "Spans",
    Annotated[
        list[Ends],
        FailFast(),
        AfterValidator(_check_spans),
        BeforeValidator(_check_count, json_schema_input_type=list[list[int]]),
    ],
)
