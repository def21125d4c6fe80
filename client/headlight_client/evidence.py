"""JSON answers of POST /v1/highlight -> typed values."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

from headlight_client.answers import Answer
from headlight_client.errors import expect_format
from headlight_client.formats import to_pair
from headlight_client.reprs import with_short_repr

# of Evidence, as they are in the answer
FACT_FIELDS = ("index", "score", "method", "rest", "without", "truncated", "length")


class Highlight(NamedTuple):
    """A sentence, a word or a token of a document.

    Args:
        characters: where it stands in the document, [start, end).
        share: what it adds to the score, what the score loses without it, or its own score; see
            Evidence.method.
        units: its number among the document's sentences or words, or those of its tokens.
    """

    characters: tuple[int, int]
    text: str
    share: float
    units: tuple[int, int]


class Control(NamedTuple):
    """The document's score without as many random other units: mean and standard deviation."""

    without_random: float  # mean
    deviation: float


@with_short_repr
@dataclass(frozen=True, slots=True)
class Evidence:
    """The parts of one document that carry its score.

    Args:
        index: its place among the documents.
        method: how shares are found; with "sum" and "maxsim" they and `rest` sum to the score.
        highlights: strongest first.
        rest: the shares of all other units; None with "occlusion" and "alone".
        without: the score without the highlights; None without control, or with nothing left.
        control: None without control, or with too few other units.
        pruned: the shortened document, where `prune` was given.
        length: tokens before truncation.
    """

    index: int
    score: float
    method: Literal["alone", "occlusion", "sum", "maxsim"]
    highlights: Sequence[Highlight]
    rest: float | None
    without: float | None
    control: Control | None
    pruned: str | None
    truncated: bool  # whether tokens were cut off
    length: int


@dataclass(frozen=True, slots=True, kw_only=True, repr=False)
class Highlighted(Answer):
    """The evidence of some documents, best first.

    Args:
        space: of the documents' vectors, where scores are cosines.
    """

    results: Sequence[Evidence]
    space: str | None = None


@expect_format()
def read_highlighted(answer: Any) -> Highlighted:
    """Read the JSON answer of POST /v1/highlight.

    Raises:
        NoAnswer: it is not in that format.
    """
    results = [_read_evidence(one) for one in answer["results"]]
    fields = Answer.read_fields(answer)
    return Highlighted(**fields, results=results, space=answer.get("space"))


def _read_evidence(answer: Any) -> Evidence:
    """Read one document's part of the answer."""
    highlights = [
        Highlight(to_pair(one["characters"]), one["text"], one["share"], to_pair(one["units"]))
        for one in answer["highlights"]
    ]
    control = answer["control"]
    read = {
        "highlights": highlights,
        "control": None if control is None else Control(**control),
        "pruned": answer.get("pruned"),
    }
    return Evidence(**{name: answer[name] for name in FACT_FIELDS}, **read)
