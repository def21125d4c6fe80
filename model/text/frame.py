"""The special tokens around a text or a pair of texts.

One side of a late interaction reads a text by its role, with a marker and a filling:

    query      [CLS] [Q] why ? [SEP] [MASK] [MASK] [MASK]     filled up to its length
    document   [CLS] [D] it rains . [SEP]                     its punctuation gets no vector

Sources: Khattab and Zaharia 2020, "ColBERT"; PyLate's models/colbert.py, `tokenize` and `encode`.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate
from typing import TypeVar

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

from model.errors import SequenceTooLong
from model.text.pieces import ReadTokens

NO_OFFSETS = (0, 0)  # of a special token, which has no characters


@dataclass(frozen=True, slots=True)
class Tokenized:
    """One text, or pair of texts, as the model reads it; all lists have one entry per token.

    Args:
        tokens: the tokens as the vocabulary writes them.
        types: token types: 0, and 1 for the second text of a pair.
        offsets: characters of each token in its own text, [start, end).
        words: which word of its text a token belongs to, None for special tokens.
        segments: 0, or 1 for tokens of a pair's second text; a special token belongs to the
            text before it.
        special: True for a token that the tokenizer added.
        length: tokens before truncation.
    """

    token_ids: list[int]
    tokens: list[str]
    types: list[int]
    offsets: list[tuple[int, int]]
    words: list[int | None]
    segments: list[int]
    special: list[bool]
    length: int


@dataclass(frozen=True, slots=True)
class Slot:
    """A part of a sequence: a text, or a special token.

    Args:
        text: the index of the text; None for a special token.
        type: token type of its tokens.
        added: the special token; empty for a text.
    """

    text: int | None
    type: int
    added: ReadTokens = field(default_factory=ReadTokens)


BARE_FRAME = (Slot(0, 0),)  # a lone text without special tokens


def find_frame(library: Library, texts: int) -> list[Slot]:
    """Return the slots of a text (1) or a pair (2), as the tokenizer frames texts of one token."""
    words = ("a", *library.get_vocab())
    one = next(filter(len, (library.encode(word, add_special_tokens=False) for word in words)))
    one.truncate(1)
    whole = library.post_process(one, one if texts == 2 else None)
    numbers = iter(range(texts))
    return [
        Slot(None, type, ReadTokens([id], [token], [NO_OFFSETS], [None]))
        if special
        else Slot(next(numbers), type)
        for id, token, type, special in zip(
            whole.ids, whole.tokens, whole.type_ids, whole.special_tokens_mask, strict=True
        )
    ]


def frame_parts(parts: Sequence[ReadTokens], frame: Sequence[Slot]) -> Tokenized:
    """Return a text or a pair with the special tokens of a frame."""
    framed = Tokenized([], [], [], [], [], [], [], 0)
    text = 0
    for slot in frame:
        text = text if slot.text is None else slot.text
        part = slot.added if slot.text is None else parts[text]
        count = len(part.tokens)
        framed.token_ids.extend(part.token_ids)
        framed.tokens.extend(part.tokens)
        framed.types.extend([slot.type] * count)
        framed.offsets.extend(part.offsets)
        framed.words.extend(part.words)
        framed.segments.extend([text] * count)
        framed.special.extend([slot.text is None] * count)
    return replace(framed, length=len(framed.token_ids))


def read_uncut(
    encoding: Encoding, limit: int, facts: bool = True, *, typed: bool = True
) -> Tokenized:
    """Return an encoding as a sequence, uncut.

    Args:
        limit: most tokens.
        facts: whether more is needed than ids, types and length.
        typed: whether it has the tokenizer's types; else all are 0.

    Raises:
        SequenceTooLong: it exceeds the limit.
    """
    if len(encoding) > limit:
        raise SequenceTooLong(len(encoding), limit)
    types = encoding.type_ids if typed else [0] * len(encoding)
    if not facts:
        return Tokenized(encoding.ids, [], types, [], [], [], [], len(encoding))
    first = encoding.sequence_ids.count(0)
    special = [bool(flag) for flag in encoding.special_tokens_mask]
    return Tokenized(
        encoding.ids,
        encoding.tokens,
        types,
        encoding.offsets,
        encoding.word_ids,
        [int(texts > first) for texts in accumulate(not added for added in special)],
        special,
        len(encoding),
    )


T = TypeVar("T")  # of the values of a list


@dataclass(frozen=True, slots=True)
class Token:
    """A token that is inserted into texts, by its id and as the vocabulary writes it."""

    id: int
    token: str


@dataclass(frozen=True, slots=True)
class Role:
    """How the texts of one side, queries or documents, are read.

    Args:
        length: most tokens of a sequence, the marker included.
        marker: inserted after the first token; None: no marker.
        filling: token that short texts are filled up with; None: they are not.
        attended: whether other tokens attend to the filling.
        skipped: ids of tokens that get no vector.
        floor: tokens that a text is filled up to; None: `length`.
        prompt: put before a text where the request names no prompt; None: the checkpoint's
            default.
    """

    length: int
    marker: Token | None = None
    filling: Token | None = None
    attended: bool = False
    skipped: frozenset[int] = frozenset()
    floor: int | None = None
    prompt: str | None = None

    def changes_nothing(self, most: int) -> bool:
        """Tell whether the role, prompt aside, changes no text of at most `most` tokens."""
        return self.length >= most and self.marker is None and self.filling is None

    @property
    def marker_tokens(self) -> int:
        """Count the tokens that the marker takes."""
        return int(self.marker is not None)

    @property
    def filled_length(self) -> int:
        """Return the length to which shorter sequences are filled, where there is a filling."""
        return self.length if self.floor is None else self.floor

    def frame_text(self, text: Tokenized) -> Tokenized:
        """Insert the marker behind the first token, and fill a short text up."""
        if self.marker is not None:
            text = replace(_insert_token(text, self.marker, 1), length=text.length + 1)
        missing = self.filled_length - len(text.token_ids)
        if self.filling is None or missing < 1:
            return text
        filled = _insert_token(text, self.filling, len(text.token_ids), missing)
        return replace(filled, length=max(text.length, self.filled_length))

    def count_unseen(self, text: Tokenized) -> int:
        """Count the last tokens that are hidden as keys once this text is framed."""
        if self.filling is None or self.attended:
            return 0
        return max(0, self.filled_length - len(text.token_ids) - self.marker_tokens)

    def describe(self) -> str:
        """Return all fields but the prompt as one string, for a digest."""
        skipped = sorted(self.skipped)
        own = f"{self.length} {self.marker} {self.filling} {self.attended} {skipped}"
        return own if self.floor is None else f"{own} {self.floor}"

    def kept_places(self, token_ids: Sequence[int]) -> list[int]:
        """Return the places of the tokens that get a vector."""
        return [place for place, id in enumerate(token_ids) if id not in self.skipped]


def _insert_token(text: Tokenized, token: Token, place: int, count: int = 1) -> Tokenized:
    """Return a text with a special token inserted `count` times at a place."""

    def insert(values: list[T], value: T) -> list[T]:
        """Return one list of `text` with the value of the token inserted."""
        # lists that are not needed are empty, and stay so
        return [*values[:place], *[value] * count, *values[place:]] if values else values

    return replace(
        text,
        token_ids=insert(text.token_ids, token.id),
        tokens=insert(text.tokens, token.token),
        types=insert(text.types, 0),
        offsets=insert(text.offsets, NO_OFFSETS),
        words=insert(text.words, None),
        segments=insert(text.segments, max(text.segments[place - 1 : place], default=0)),
        special=insert(text.special, True),
    )
