"""Short texts of answers, for notebooks: shapes of arrays, tokens in a line, nothing empty."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any, TypeVar

import numpy as np

MOST_TOKENS, MOST_ENTRIES = 12, 3  # shown of a list of tokens, of any other
MOST_CHARACTERS = 60  # of a text
# what says less than the rest, and is there by its name
HIDDEN = {"token_ids", "offsets", "words", "special", "segments", "weights", "numerics", "usage"}


Class = TypeVar("Class", bound=type)


def with_short_repr(kind: Class) -> Class:
    """Have the objects of a class show themselves by short_repr; decorates a class."""
    kind.__repr__ = short_repr  # type: ignore[method-assign,assignment]  # a NamedTuple takes none
    return kind


def short_repr(answer: Any) -> str:
    """Return the class of a dataclass or named tuple with its fields, each shortened."""
    shown = (f"{name}={shorten(value)}" for name, value in _fields(answer) if name not in HIDDEN)
    return f"{type(answer).__name__}({', '.join(shown)})"


def shorten(value: Any) -> str:
    """Return a value in few characters."""
    if hasattr(value, "_fields"):
        return short_repr(value)
    match value:
        case np.ndarray():
            return f"{value.dtype}{value.shape}"
        case float():
            return f"{value:.4g}"
        case str() if len(value) > MOST_CHARACTERS:
            return repr(f"{value[: MOST_CHARACTERS - 3]}...")
        case Mapping():
            kept = {name: entry for name, entry in value.items() if name not in HIDDEN}
            return f"{{{_join([f'{name!r}: {shorten(entry)}' for name, entry in kept.items()])}}}"
        case [*tokens] if all(
            one is None or isinstance(one, str) and " " not in one for one in tokens
        ):
            return f"[{_join([token or '?' for token in tokens], ' ', MOST_TOKENS)}]"
        case list() | tuple():
            start, end = "[]" if isinstance(value, list) else "()"
            return f"{start}{_join([shorten(entry) for entry in value])}{end}"
    return repr(value)


def _fields(answer: Any) -> Iterator[tuple[str, Any]]:
    """Yield the fields of a dataclass or named tuple that are not None or empty."""
    names = [one.name for one in fields(answer)] if is_dataclass(answer) else answer._fields
    for name in names:
        value = getattr(answer, name)
        if value is not None and not (isinstance(value, list | dict | tuple) and not value):
            yield name, value


def _join(entries: Sequence[str], between: str = ", ", most: int = MOST_ENTRIES) -> str:
    """Join the first entries; say how many there are if these are not all."""
    more = [f"... {len(entries)} in all"] if len(entries) > most else []
    return between.join([*entries[:most], *more])
