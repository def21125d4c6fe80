"""Labels and a text in one sequence, as GLiNER reads them: the labels' names stand before the text.

    [CLS] <<ENT>> person <<ENT>> place <<SEP>> Ada lived in London . [SEP]

A text is cut into words first, and each is tokenized by itself. A word without a token, such as a
lone zero-width space, is none.

Source: gliner 0.2.29, data_processing/tokenizer.py (`WhitespaceTokenSplitter`), processor.py
(`prepare_inputs`, `tokenize_inputs`) and utils.py (`prepare_word_mask`).
"""

import re
from collections import deque
from collections.abc import Iterator
from collections.abc import Sequence as Many
from dataclasses import dataclass, replace
from itertools import islice
from typing import NamedTuple, TypeVar

from model.errors import LabelUnreadable, SequenceTooLong, TooManyWords
from model.text.frame import NOWHERE, Token, Tokenized
from model.text.pieces import Part, Reading
from model.text.tokenizer import Tokenizer, Truncate

WORD = re.compile(r"\w+(?:[-_]\w+)*|\S")
T = TypeVar("T")
PIECE = 256  # words or labels that are tokenized without a pause


class Word(NamedTuple):
    """One word of a text.

    Args:
        span: where it stands in the text, characters, [start, end).
        token_ids, tokens: its own.
        offsets: where each token stands in the text.
    """

    span: tuple[int, int]
    token_ids: list[int]
    tokens: list[str]
    offsets: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Spliced:
    """Labels and a text as the model reads them.

    Args:
        tokenized: the whole; the labels and their marks count as special tokens.
        text: as it came.
        labels: the place of each label's mark.
        words: the place of each word's first token.
        spans: where each word stands in the text, characters, [start, end).
    """

    tokenized: Tokenized
    text: str
    labels: list[int]
    words: list[int]
    spans: list[tuple[int, int]]


@dataclass(frozen=True, slots=True)
class Splicer:
    """Reads texts behind labels.

    Args:
        mark: stands before each label.
        end: stands behind the last one.
        longest: words of a text, at most.
    """

    tokenizer: Tokenizer
    mark: Token
    end: Token
    longest: int

    def reading(
        self, labels: Many[str], texts: Many[str], limit: int, truncate: Truncate
    ) -> Reading[list[Spliced]]:
        """Read texts, with a pause after each bounded piece of work.

        Args:
            limit: most tokens of a sequence, labels and special ones included.
            truncate: what happens to a text beyond that, or of too many words: it is refused, or
                loses whole words at its end ("right") or start ("left").

        Raises:
            LabelUnreadable: a label has no token, or holds a mark.
            SequenceTooLong: a text is too long; where it may be cut, no word of it fits.
            TooManyWords: it has more words than the model takes.
        """
        prompt, places = yield from self._prompt(labels)
        spliced: list[Spliced] = []
        for text in texts:
            own = _Text(self.longest, keeps_last=truncate == "left")
            matches = WORD.finditer(text)
            while some := list(islice(matches, PIECE)):
                own.add(self._words(text, [match.span() for match in some]))
                yield
            length = prompt.length + own.tokens
            try:
                words = own.cut(length, limit, truncate)
            except SequenceTooLong as error:
                error.index = len(spliced)
                raise
            spliced.append(self._joined(prompt, places, text, words, length))
        return spliced

    def _prompt(self, labels: Many[str]) -> Reading[tuple[Tokenized, list[int]]]:
        """Tokenize labels with their marks and the special tokens; tell where each mark stands."""
        part, places = Part(), list[int]()
        before, _ = self.tokenizer.around
        marks = {self.mark.id, self.end.id}
        for start in range(0, len(labels), PIECE):
            some = labels[start : start + PIECE]
            for index, word in enumerate(self._pieces(some), start):
                if not word.token_ids or marks & {*word.token_ids}:
                    raise LabelUnreadable(index, marked=bool(word.token_ids))
                places.append(before + len(part.token_ids))
                part.token_ids += [self.mark.id, *word.token_ids]
                part.tokens += [self.mark.token, *word.tokens]
            yield
        part.token_ids.append(self.end.id)
        part.tokens.append(self.end.token)
        part.offsets = [NOWHERE] * len(part.token_ids)
        part.words = [None] * len(part.token_ids)
        framed = self.tokenizer.framed(part)
        return replace(framed, special=[True] * len(framed.special)), places

    def _words(self, text: str, spans: Many[tuple[int, int]]) -> Iterator[Word]:
        """Yield the words at some places of a text that have a token."""
        pieces = self._pieces([text[start:end] for start, end in spans])
        for (start, end), word in zip(spans, pieces, strict=True):
            if word.token_ids:
                offsets = [(start + a, start + b) for a, b in word.offsets]
                yield word._replace(span=(start, end), offsets=offsets)

    def _pieces(self, texts: Many[str]) -> list[Word]:
        """Tokenize short texts, each by itself."""
        words = [Word(NOWHERE, [], [], []) for _ in texts]
        part = self.tokenizer.words(texts)
        columns = zip(part.words, part.token_ids, part.tokens, part.offsets, strict=True)
        for number, token_id, token, offsets in columns:
            word = words[number or 0]
            word.token_ids.append(token_id)
            word.tokens.append(token)
            word.offsets.append(offsets)
        return words

    def _joined(
        self, prompt: Tokenized, places: list[int], text: str, words: Many[Word], length: int
    ) -> Spliced:
        """Put words behind the labels, before the last special tokens."""
        at = len(prompt.token_ids) - self.tokenizer.around[1]
        firsts, place = [], at
        for word in words:
            firsts.append(place)
            place += len(word.token_ids)
        count = place - at
        numbers = [number for number, word in enumerate(words) for _ in word.token_ids]

        def put(values: list[T], own: list[T]) -> list[T]:
            return [*values[:at], *own, *values[at:]]

        tokenized = Tokenized(
            put(prompt.token_ids, [id for word in words for id in word.token_ids]),
            put(prompt.tokens, [token for word in words for token in word.tokens]),
            put(prompt.types, [0] * count),
            put(prompt.offsets, [pair for word in words for pair in word.offsets]),
            put(prompt.words, [*numbers]),
            put(prompt.segments, [0] * count),
            put(prompt.special, [False] * count),
            length,
        )
        return Spliced(tokenized, text, places, firsts, [word.span for word in words])


class _Text:
    """The words of a text as far as they may be kept, and how many there are.

    Args:
        longest: words that may be kept.
        keeps_last: whether those are the last ones.
    """

    def __init__(self, longest: int, *, keeps_last: bool) -> None:
        self.words: deque[Word] = deque()
        self.count = self.tokens = 0
        self._longest, self._keeps_last = longest, keeps_last

    def add(self, words: Iterator[Word]) -> None:
        """Count words, and keep them while there is room."""
        for word in words:
            self.count += 1
            self.tokens += len(word.token_ids)
            if len(self.words) < self._longest or self._keeps_last:
                self.words.append(word)
            if len(self.words) > self._longest:
                self.words.popleft()

    def cut(self, length: int, limit: int, truncate: Truncate) -> Many[Word]:
        """Return the words that fit.

        Args:
            length: tokens of the whole sequence, and limit: most of them.
        """
        if truncate == "refuse" and self.count > self._longest:
            raise TooManyWords(self.count, self._longest)
        kept = length - self.tokens + sum(len(word.token_ids) for word in self.words)
        if kept > limit and truncate == "refuse":
            raise SequenceTooLong(length, limit)
        while kept > limit and self.words:
            cut = self.words.popleft() if self._keeps_last else self.words.pop()
            kept -= len(cut.token_ids)
        if kept > limit or (self.count and not self.words):
            raise SequenceTooLong(length, limit)
        return list(self.words)
