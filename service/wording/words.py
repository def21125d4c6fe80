"""What was sent, by kind and size; what is taken, by name; and the name that was probably meant."""

import difflib
from collections.abc import Collection, Iterable
from dataclasses import dataclass

Loc = tuple[str | int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a request.

    Args:
        loc: where, as keys and indices.
        code: a code from service/refusals.py.
        detail: what is expected there and what came, without the place and without a full stop.
    """

    loc: Loc
    code: str
    detail: str = ""


LONGEST_NAME = 32  # characters of a name compared with ours; a longer one is no misspelling
SIMILAR, CLEAR = 0.6, 0.15  # of 1: how similar a meant name is, and its lead over the next


def describe_value(value: object) -> str:
    """Describe a value by kind and size, which reveals nothing of its content."""
    match value:
        case None:
            return "null"
        case bool():
            return "a boolean"
        case int():
            return "an integer"
        case float():
            return "a number with a fraction or an exponent"
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
    """Return a count and its noun: 1 token, 2,048 tokens."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"


def list_names(names: Iterable[str], word: str = "or") -> str:
    """List names as in a sentence: a, b or c."""
    *first, last = names
    return f"{', '.join(first)} {word} {last}" if first else last


def quote_names(names: Iterable[str], word: str = "or") -> str:
    """List names that a request may hold in the same way, quoted."""
    return list_names((f'"{name}"' for name in names), word)


def capitalise(sentence: str) -> str:
    """Capitalise the first letter of a sentence, and change no other."""
    return sentence[:1].upper() + sentence[1:]


def end_sentence(sentence: str) -> str:
    """End a sentence with a full stop."""
    return sentence if not sentence or sentence.endswith((".", "?")) else f"{sentence}."


def suggest_name(name: object, names: Collection[str]) -> str:
    """Ask whether the nearest of our names was meant; empty if none is near."""
    near = find_nearest(name, names)
    return f'; did you mean "{near}"?' if near else ""


def find_nearest(name: object, names: Collection[str]) -> str:
    """Find the one of our names that is near; empty if none is, or several are."""
    if not isinstance(name, str) or len(name) > LONGEST_NAME:
        return ""
    matcher = difflib.SequenceMatcher(b=name.casefold())
    near = []
    for one in names:
        matcher.set_seq1(one.casefold())
        near.append((matcher.ratio(), one))
    (most, best), (next_most, _) = sorted([*near, (0, ""), (0, "")], reverse=True)[:2]
    return best if most >= SIMILAR and most - next_most >= CLEAR else ""


def write_place(loc: Loc) -> str:
    """Write a place in a request: inputs[3].text."""
    parts = (f"[{part}]" if isinstance(part, int) else f".{part}" for part in loc)
    return "".join(parts).removeprefix(".")
