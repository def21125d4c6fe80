"""A text as one side of a late interaction reads it: its marker, and what fills it up.

    query      [CLS] [Q] why ? [SEP] [MASK] [MASK] [MASK]     filled up to its length
    document   [CLS] [D] it rains . [SEP]                     its punctuation gets no vector

Sources: Khattab and Zaharia 2020, "ColBERT"; PyLate's models/colbert.py, `tokenize` and `encode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from model.text.frame import NOWHERE, Tokenized

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is put into a text."""

    id: int
    token: str


@dataclass(frozen=True, slots=True)
class Role:
    """How texts of one side are read.

    Args:
        length: tokens of a sequence at most, the marker included.
        marker: what stands behind the first token; None: nothing.
        filling: what a text is filled up with; None: nothing.
        attended: whether other tokens look at the filling.
        skipped: ids that get no vector.
        floor: tokens that a text is filled up to; None: `length`.
        prompt: what goes before a text where the request names no prompt; None: the
            checkpoint's default.
        bare: special tokens at a text's start and end that are left out.
    """

    length: int
    marker: Token | None = None
    filling: Token | None = None
    attended: bool = False
    skipped: frozenset[int] = frozenset()
    floor: int | None = None
    prompt: str | None = None
    bare: tuple[int, int] = (0, 0)

    @property
    def added(self) -> int:
        """Tokens that the marker takes, less those that are left out."""
        return int(self.marker is not None) - sum(self.bare)

    @property
    def filled(self) -> int:
        """Tokens of a sequence at least, where there is a filling."""
        return self.length if self.floor is None else self.floor

    def frame(self, text: Tokenized) -> Tokenized:
        """A text with its marker and filling, or without special tokens."""
        if self.added < 0:
            return _without(text, *self.bare)
        if self.marker is not None:
            text = replace(_with(text, self.marker, 1), length=text.length + 1)
        missing = self.filled - len(text.token_ids)
        if self.filling is None or missing < 1:
            return text
        filled = _with(text, self.filling, len(text.token_ids), missing)
        return replace(filled, length=max(text.length, self.filled))

    def unseen(self, text: Tokenized) -> int:
        """Tokens at the end of a framed text that no token looks at, of the text without frame."""
        if self.filling is None or self.attended:
            return 0
        return max(0, self.filled - len(text.token_ids) - self.added)

    def choices(self) -> str:
        """All of it, in one order."""
        skipped = sorted(self.skipped)
        own = f"{self.length} {self.marker} {self.filling} {self.attended} {skipped}"
        return own if self.floor is None else f"{own} {self.floor}"

    def kept(self, token_ids: Sequence[int]) -> list[int]:
        """The places that get a vector."""
        return [place for place, id in enumerate(token_ids) if id not in self.skipped]


def _with(text: Tokenized, token: Token, place: int, count: int = 1) -> Tokenized:
    """A text with a special token, so many times, at a place."""

    def put(values: list[T], value: T) -> list[T]:
        # lists that nobody asked for are empty, and stay so
        return [*values[:place], *[value] * count, *values[place:]] if values else values

    return replace(
        text,
        token_ids=put(text.token_ids, token.id),
        tokens=put(text.tokens, token.token),
        types=put(text.types, 0),
        offsets=put(text.offsets, NOWHERE),
        words=put(text.words, None),
        segments=put(text.segments, max(text.segments[place - 1 : place], default=0)),
        special=put(text.special, True),
    )


def _without(text: Tokenized, first: int, last: int) -> Tokenized:
    """A text without so many tokens at its start and at its end."""

    def cut(values: list[T]) -> list[T]:
        return values[first : len(values) - last]

    return replace(
        text,
        token_ids=cut(text.token_ids),
        tokens=cut(text.tokens),
        types=cut(text.types),
        offsets=cut(text.offsets),
        words=cut(text.words),
        segments=cut(text.segments),
        special=cut(text.special),
        length=text.length - first - last,
    )
