"""Spans of a text in characters -> its tokens, each span of which gets a vector of its own."""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, LiteralString

from pydantic import AfterValidator, BeforeValidator
from pydantic.types import FailFast
from pydantic_core import PydanticCustomError
from typing_extensions import TypeAliasType

from service.refusals import Refused

MOST_SPANS = 2048  # of a request; each is a vector, as a sequence is

CUT: LiteralString = (
    "expected spans in characters, such as [[0, 120], [120, 260]]; the service cuts no text itself"
)
ENDS: LiteralString = "expected [start, end] of each span, from 0 on, the start before the end"
MANY: LiteralString = "it holds {count} spans, and the limit is {most}"
EMPTY: LiteralString = "a span ends where it starts"
ORDER: LiteralString = "expected spans in the order of their starts; they may overlap"


def _few(value: Any) -> Any:
    """Refuse words, and what is too much to look at."""
    if isinstance(value, str):
        raise PydanticCustomError("spans_by_name", CUT)
    if isinstance(value, list) and len(value) > MOST_SPANS:
        size = {"count": f"{len(value):,}", "most": f"{MOST_SPANS:,}"}
        raise PydanticCustomError("span_count", MANY, size)
    return value


def _in_order(spans: list[list[int]]) -> list[list[int]]:
    if not all(len(span) == 2 and 0 <= span[0] <= span[1] for span in spans):
        raise PydanticCustomError("span_ends", ENDS)
    if any(start == end for start, end in spans):
        raise PydanticCustomError("span_empty", EMPTY)
    if [*spans] != sorted(spans, key=lambda span: span[0]):
        raise PydanticCustomError("span_ends", ORDER)
    return spans


Ends = TypeAliasType("Ends", Annotated[list[int], FailFast()])
Spans = TypeAliasType(
    "Spans",
    Annotated[
        list[Ends],
        FailFast(),
        AfterValidator(_in_order),
        BeforeValidator(_few, json_schema_input_type=list[list[int]]),
    ],
)


@dataclass(frozen=True, slots=True)
class Span:
    """One span of a text.

    Args:
        characters: as the request has it, [start, end).
        tokens: those with a character in it, [first, last).
        extent: the characters of these tokens, which are more where an edge is inside of one, and
            fewer where the span begins or ends with spaces, or the text was cut.
    """

    characters: tuple[int, int]
    tokens: tuple[int, int]
    extent: tuple[int, int]

    def facts(self) -> dict[str, Any]:
        """What the answer says of it."""
        return {"characters": self.characters, "tokens": self.tokens, "extent": self.extent}


def locate(
    spans: Sequence[Sequence[int]],
    text: str,
    offsets: Sequence[tuple[int, int]],
    special: Sequence[bool],
    index: int,
) -> list[Span]:
    """The tokens of each span of a text.

    Args:
        offsets: of each token, characters, [start, end); neither starts nor ends go back.
        special: whether each token is special; no span holds such a one.
        index: of the input.

    Raises:
        Refused: a span ends behind the text, or holds no token; `loc` says which.
    """
    places = [
        (token, start, end)
        for token, ((start, end), added) in enumerate(zip(offsets, special, strict=True))
        if end > start and not added
    ]
    starts, ends = [start for _, start, _ in places], [end for _, _, end in places]
    located = []
    for number, (first, last) in enumerate(spans):
        loc = ("inputs", index, "spans", number)
        if last > len(text):
            detail = f"the text has {len(text):,} characters, and the span ends behind them"
            raise Refused.at("out_of_range", *loc, detail=detail)
        opening, closing = bisect_right(ends, first), bisect_left(starts, last)
        if opening >= closing:
            raise Refused.at("span_empty", *loc, detail="no token of the text is in it")
        (begin, start, _), (end, _, stop) = places[opening], places[closing - 1]
        located.append(Span((first, last), (begin, end + 1), (start, stop)))
    return located
