"""Where special tokens stand around a text or a pair of them, and what that makes of it."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import accumulate

from tokenizers import Encoding
from tokenizers import Tokenizer as Library

from model.errors import SequenceTooLong
from model.text.pieces import Part

NOWHERE = (0, 0)  # in the text, of a special token


@dataclass(frozen=True, slots=True)
class Tokenized:
    """One text, or pair of texts, as the model reads it; all lists have one entry per token.

    Args:
        tokens: the tokens as the vocabulary writes them.
        types: token types: 0, and 1 for the second text of a pair.
        offsets: where each token stands in its own text, characters, [start, end).
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
    """A place in a sequence: of a text, or of a special token.

    Args:
        text: which text; None of a special token.
        type: of its tokens.
        added: the special token.
    """

    text: int | None
    type: int
    added: Part = field(default_factory=Part)


BARE = (Slot(0, 0),)  # a lone text without special tokens


def frame(library: Library, texts: int) -> list[Slot]:
    """Where special tokens go around a text or a pair: what becomes of texts of one token."""
    words = ("a", *library.get_vocab())
    one = next(filter(len, (library.encode(word, add_special_tokens=False) for word in words)))
    one.truncate(1)
    whole = library.post_process(one, one if texts == 2 else None)
    numbers = iter(range(texts))
    return [
        Slot(None, type, Part([id], [token], [NOWHERE], [None]))
        if special
        else Slot(next(numbers), type)
        for id, token, type, special in zip(
            whole.ids, whole.tokens, whole.type_ids, whole.special_tokens_mask, strict=True
        )
    ]


def untyped(slots: Sequence[Slot]) -> list[Slot]:
    """The same places, all tokens of type 0."""
    return [replace(slot, type=0) for slot in slots]


def framed(parts: Sequence[Part], frame: Sequence[Slot]) -> Tokenized:
    """A text or a pair, with the special tokens of a frame."""
    one = Tokenized([], [], [], [], [], [], [], 0)
    text = 0
    for slot in frame:
        text = text if slot.text is None else slot.text
        part = slot.added if slot.text is None else parts[text]
        count = len(part.tokens)
        one.token_ids.extend(part.token_ids)
        one.tokens.extend(part.tokens)
        one.types.extend([slot.type] * count)
        one.offsets.extend(part.offsets)
        one.words.extend(part.words)
        one.segments.extend([text] * count)
        one.special.extend([slot.text is None] * count)
    return replace(one, length=len(one.token_ids))


def uncut(encoding: Encoding, limit: int, facts: bool = True, *, typed: bool = True) -> Tokenized:
    """A sequence that is not cut; it may be refused, before anything is made of it.

    Args:
        facts: whether more is wanted than ids, types and length.
        typed: whether it has the tokenizer's types; else all are 0.
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
        _segments(special, first),
        special,
        len(encoding),
    )


def _segments(special: list[bool], first: int) -> list[int]:
    """Which text each token belongs to, when the first text has `first` tokens."""
    counts = accumulate(not added for added in special)
    return [int(count > first) for count in counts]
