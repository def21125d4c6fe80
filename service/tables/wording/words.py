"""What was sent, by kind and size; what is taken, by name; and the name that was probably meant."""

import difflib
import math
import re
from collections.abc import Collection, Iterable
from dataclasses import dataclass

Loc = tuple[str | int, ...]  # place in a request: keys and indices


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request.

    Args:
        loc: where, as keys and indices.
        code: a code from service/tables/refusals.py.
        detail: what is expected there and what came, without the place and without a full stop.
    """

    loc: Loc
    code: str
    detail: str = ""


# A name that a refusal may repeat to its sender: that of a field, and no text
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,31}")
LONGEST_NAME = 32  # characters; a longer unknown name is not compared with known ones
# A suggested name's least similarity to what was sent (1: equal), and least lead over the next
LEAST_SIMILARITY, LEAST_LEAD = 0.6, 0.15


def describe_value(value: object) -> str:
    """Describe a JSON value by type and size, without its content."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            is_finite = math.isfinite(value)
            return "a number with a fraction or an exponent" if is_finite else "NaN or infinity"
        case str():
            return (
                f"a string of {count_noun(len(value), 'character')}" if value else "an empty string"
            )
        case list():
            return f"a list of {count_noun(len(value), 'value')}" if value else "an empty list"
        case dict():
            return f"an object of {count_noun(len(value), 'field')}" if value else "an empty object"
        case _:
            return "a value of another kind"


def count_noun(count: int, noun: str) -> str:
    """Format a count and its noun: 1 token, 2,048 tokens."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def show_name(name: str) -> str:
    """Write the name of a field that a client sent: a plain one itself, else its length."""
    return f'"{name}"' if PLAIN_NAME.fullmatch(name) else f"of {count_noun(len(name), 'character')}"


def list_names(names: Iterable[str], conjunction: str = "or") -> str:
    """Join names as in a sentence: a, b or c."""
    *first, last = names
    return f"{', '.join(first)} {conjunction} {last}" if first else last


def quote_names(names: Iterable[str], conjunction: str = "or") -> str:
    """Join names in double quotes as in a sentence: "a", "b" or "c"."""
    return list_names((f'"{name}"' for name in names), conjunction)


def capitalise(sentence: str) -> str:
    """Capitalise the first letter of a sentence, and leave the others as they are."""
    return sentence[:1].upper() + sentence[1:]


def end_sentence(sentence: str) -> str:
    """Add a full stop to a sentence unless it is empty or ends in a full stop or question mark."""
    return sentence if not sentence or sentence.endswith((".", "?")) else f"{sentence}."


def suggest_name(name: object, names: Collection[str]) -> str:
    """Return a question whether the nearest of `names` was meant; empty if none is near."""
    nearest = find_nearest(name, names)
    return f'; did you mean "{nearest}"?' if nearest else ""


def find_nearest(name: object, names: Collection[str]) -> str:
    """Return the one of the known `names` that is similar to `name`; "" if none or several are."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return ""
    matcher = difflib.SequenceMatcher(b=name.casefold())
    rated = [(0.0, ""), (0.0, "")]
    for known in names:
        matcher.set_seq1(known.casefold())
        rated.append((matcher.ratio(), known))
    (ratio, best), (next_ratio, _) = sorted(rated, reverse=True)[:2]
    return best if ratio >= LEAST_SIMILARITY and ratio - next_ratio >= LEAST_LEAD else ""


def write_place(loc: Loc) -> str:
    """Format a place in a request as a path: inputs[3].text."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".")
