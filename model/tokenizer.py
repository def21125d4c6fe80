"""Text -> ids, offsets, words, and back.

The arithmetic is the `tokenizers` library's; what a tokenizer.json stores about truncation and
padding is switched off, because the caller decides about the first and nothing here pads.
"""

from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from itertools import accumulate
from pathlib import Path
from typing import Literal

from tokenizers import Encoding
from tokenizers import Tokenizer as Library
from tokenizers.normalizers import Lowercase, Normalizer
from tokenizers.normalizers import Sequence as Normalizers

from model.errors import CheckpointError, SequenceTooLong

Truncate = Literal["refuse", "right", "left"]
NOWHERE = (0, 0)  # in the text, of a special token
Texts = tuple[str] | tuple[str, str]  # a text, or a pair of them


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


class Tokenizer:
    """The tokenizer of a checkpoint.

    Args:
        path: its tokenizer.json.
        lower_case: whether texts are lower-cased first; offsets are those of the text as it came.

    Raises:
        CheckpointError: the file is not a tokenizer that this library reads.
    """

    def __init__(self, path: Path, *, lower_case: bool = False) -> None:
        try:
            self._library = Library.from_file(str(path))
        except Exception as error:  # the library raises nothing narrower
            raise CheckpointError(f"{path.name} cannot be read: {error}") from error
        self._library.no_truncation()
        self._library.no_padding()
        self.lower_case = lower_case
        if lower_case:
            self._library.normalizer = _lower_case(self._library.normalizer)
        pair = self._library.encode("", "")
        # [UNK] and [MASK] too are special to the vocabulary, but a text reads as them
        around = zip(pair.ids, pair.special_tokens_mask, strict=True)
        self.special_ids = frozenset(id for id, added in around if added)
        ends = self._library.encode("").ids[-1:]  # [CLS] [SEP], or what a family has for them
        self.separator = ends[0] if ends else None

    def __call__(
        self, texts: Many[Texts], limit: int, truncate: Truncate = "refuse", prompt: str = ""
    ) -> list[Tokenized]:
        """Tokenize texts and pairs of texts.

        Args:
            limit: most tokens of a sequence, special ones included.
            truncate: what happens beyond: refuse, or cut at the end ("right") or at the
                start ("left"); of a pair the longer text is cut first.
            prompt: what goes before each text; its tokens have no place and no word, and it
                counts and is cut as the text's own.

        Raises:
            SequenceTooLong: a sequence exceeds the limit and truncate is "refuse".
        """
        texts = [(prompt + text[0], *text[1:]) for text in texts] if prompt else texts
        inputs = [text[0] if len(text) == 1 else text for text in texts]
        encodings = self._library.encode_batch(inputs)
        tokenized = []
        for index, (text, encoding) in enumerate(zip(texts, encodings, strict=True)):
            try:
                sequence = self._cut(text, encoding, limit, truncate)
            except SequenceTooLong as error:
                raise SequenceTooLong(error.length, error.limit, index) from None
            tokenized.append(_behind(prompt, sequence, encoding) if prompt else sequence)
        return tokenized

    def whole(self, texts: Many[str], *, special: bool) -> list[Tokenized]:
        """Tokenize texts of any length.

        Args:
            special: whether special tokens are added.
        """
        encodings = self._library.encode_batch(list(texts), add_special_tokens=special)
        return [_tokenized(one, one.offsets, len(one), len(one)) for one in encodings]

    def text(self, token_ids: Many[int], *, special: bool) -> str:
        """The text of ids that the vocabulary has; it leaves out others.

        Args:
            special: whether special tokens are part of it.
        """
        return self._library.decode(list(token_ids), skip_special_tokens=not special)

    def token(self, token_id: int) -> str | None:
        """The token of an id, None for an id that the vocabulary lacks."""
        return self._library.id_to_token(token_id)

    def highest(self) -> tuple[int, int]:
        """The highest token id and the highest token type that texts can get."""
        framed = [self._library.encode(""), self._library.encode("", "")]
        ids = {token_id for encoding in framed for token_id in encoding.ids}
        types = {type_ for encoding in framed for type_ in encoding.type_ids}
        return max({0, *ids, *self._library.get_vocab().values()}), max({0, *types})

    def _cut(self, text: Texts, encoding: Encoding, limit: int, truncate: Truncate) -> Tokenized:
        length, first = len(encoding), encoding.sequence_ids.count(0)
        offsets = encoding.offsets
        if length > limit:
            if truncate == "refuse":
                raise SequenceTooLong(length, limit)
            parts = self._parts(text, limit, truncate)
            pair = parts[1] if len(parts) == 2 else None
            encoding, first = self._library.post_process(parts[0], pair), len(parts[0])
            offsets = _offsets(encoding, parts)
        return _tokenized(encoding, offsets, first, length)

    def _parts(self, text: Texts, limit: int, truncate: Truncate) -> list[Encoding]:
        """The texts without special tokens, cut so that with them they fit the limit."""
        parts = [self._library.encode(part, add_special_tokens=False) for part in text]
        added = self._library.num_special_tokens_to_add(len(parts) == 2)
        room = limit - added
        if room < len(parts):
            raise SequenceTooLong(sum(map(len, parts)) + added, limit)
        for part, length in zip(parts, share(list(map(len, parts)), room), strict=True):
            part.truncate(length, direction=truncate)
        return parts


def _lower_case(normalizer: Normalizer | None) -> Normalizer:
    """A normaliser that lower-cases before all else, as sentence-transformers makes it.

    One with a Lowercase among its steps is left as it is.
    """
    if normalizer is None:
        return Lowercase()
    steps = [normalizer]
    if isinstance(normalizer, Normalizers):
        steps = [normalizer[index] for index in range(len(normalizer))]
    if any(isinstance(step, Lowercase) for step in steps):
        return normalizer
    return Normalizers([Lowercase(), *steps])


def _tokenized(
    encoding: Encoding, offsets: list[tuple[int, int]], first: int, length: int
) -> Tokenized:
    """A sequence whose first text has `first` tokens."""
    special = [bool(flag) for flag in encoding.special_tokens_mask]
    return Tokenized(
        encoding.ids,
        encoding.tokens,
        encoding.type_ids,
        offsets,
        encoding.word_ids,
        _segments(special, first),
        special,
        length,
    )


def _behind(prompt: str, sequence: Tokenized, uncut: Encoding) -> Tokenized:
    """A sequence that starts with a prompt, as its text without the prompt counts.

    Args:
        uncut: the same before truncation.
    """
    length = len(prompt)
    inside = zip(uncut.sequence_ids, uncut.offsets, uncut.word_ids, strict=True)
    words = [word for text, place, word in inside if text == 0 and place[1] > length]
    first = min((word for word in words if word is not None), default=0)
    offsets, numbers = list(sequence.offsets), list(sequence.words)
    for index, ((start, end), word) in enumerate(
        zip(sequence.offsets, sequence.words, strict=True)
    ):
        if sequence.special[index] or sequence.segments[index]:
            continue
        if end <= length:
            offsets[index], numbers[index] = NOWHERE, None
        else:
            offsets[index] = max(0, start - length), end - length
            numbers[index] = None if word is None else word - first
    return replace(sequence, offsets=offsets, words=numbers)


def _offsets(whole: Encoding, parts: list[Encoding]) -> list[tuple[int, int]]:
    """The offsets of texts with special tokens, from those without.

    RoBERTa's post-processor takes a token's leading space out of its offsets each time it runs,
    so behind the second time they are those of the parts.
    """
    own = iter([place for part in parts for place in part.offsets])
    return [NOWHERE if added else next(own) for added in whole.special_tokens_mask]


def _segments(special: list[bool], first: int) -> list[int]:
    """Which text each token belongs to, when the first text has `first` tokens."""
    counts = accumulate(not added for added in special)
    return [int(count > first) for count in counts]


def share(lengths: list[int], room: int) -> list[int]:
    """Divide `room` tokens among texts so that only the longer is cut until both are equal.

    The rule of the tokenizers library's "longest_first".

    Example:
        >>> share([10, 3], 9), share([10, 8], 9), share([9], 4)
        ([6, 3], [5, 4], [4])
    """
    if len(lengths) == 1:
        return [min(lengths[0], room)]
    shorter, longer = sorted(lengths)
    if shorter + longer <= room:
        return lengths
    longer = max(shorter, room - shorter)
    if shorter + longer > room:
        shorter, longer = room // 2, room - room // 2
    return [longer, shorter] if lengths[0] > lengths[1] else [shorter, longer]
