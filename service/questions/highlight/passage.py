"""A document in units: its sentences by a rule, or the tokenizer's words or tokens.

A unit is removed together with the characters before the next one; then the white space at the
text's end is removed too.
"""

import hashlib
import random
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from math import comb

from model.text.sentences import find_sentences
from service.shapes.work import Work

DRAWS = 8  # most random choices of units for each document

Span = tuple[int, int]  # [start, end)


@dataclass(frozen=True, slots=True)
class Passage:
    """A document divided into units, as far as it was not cut.

    Args:
        text: the whole document.
        start, stop: the characters of the text that were read, [start, stop).
        spans: the characters of each unit, without white space around it.
        numbers: each unit's range, [first, end), among sentences, words or the text's tokens.
        owners: the unit of each token of the sequence; -1 of special ones, a prompt or a query.
    """

    text: str
    start: int
    stop: int
    spans: Sequence[Span]
    numbers: Sequence[Span]
    owners: Sequence[int]

    def without(self, units: Collection[int]) -> str:
        """Return the text that was read, without some units."""
        kept, position, starts = [], self.start, [start for start, _ in self.spans]
        for unit in sorted(units):
            kept.append(self.text[position : starts[unit]])
            position = starts[unit + 1] if unit + 1 < len(starts) else self.stop
        return "".join([*kept, self.text[position : self.stop]]).rstrip()

    def controls(self, marked: Sequence[int]) -> list[str]:
        """Return the text without the marked units, then without random others."""
        return [self.without(units) for units in (marked, *self.draw_others(marked))]

    def draw_others(self, marked: Sequence[int]) -> list[tuple[int, ...]]:
        """Return `count_draws` random choices of as many units as are marked, of the others.

        No two choices are the same, and a text always gets the same ones.
        """
        others = sorted({*range(len(self.spans))} - {*marked})
        count, choices = count_draws(len(others), len(marked)), dict[tuple[int, ...], None]()
        text = self.text[self.start : self.stop]
        # of `random`, the one method whose numbers stay the same in every version of Python
        chance = random.Random(hashlib.sha256(text.encode("utf-8", "replace")).digest()).random
        while len(choices) < count:
            units = others.copy()
            for place in range(len(marked)):  # the first steps of a Fisher-Yates shuffle
                other = place + int(chance() * (len(units) - place))
                units[place], units[other] = units[other], units[place]
            choices[tuple(sorted(units[: len(marked)]))] = None
        return [*choices]


def count_draws(others: int, marked: int) -> int:
    """Return how many choices of `marked` units of `others` to draw; 0 if only one is possible."""
    if others <= marked:
        return 0
    return DRAWS if others >= DRAWS else min(DRAWS, comb(others, marked))


def make_passage(text: str, work: Work, unit: str, *, most: int, whole: bool = False) -> Passage:
    """Divide a document into units; of a pair it is the second text.

    Args:
        text: of the document.
        work: its sequence, whose facts locate its tokens in the text.
        unit: "sentence", "word" or "token".
        most: most sentences to find.
        whole: whether the part that was cut off is divided too.
    """
    facts = work.facts
    segments = facts.get("segments") or [1] * len(facts["special"])
    tokens = [
        (token, start, end)
        for token, (start, end) in enumerate(facts["offsets"])
        if end > start and not facts["special"][token] and segments[token] == 1
    ]
    cut = work.truncated and tokens and not whole
    start, stop = (tokens[0][1], tokens[-1][2]) if cut else (0, len(text))
    if unit == "sentence":
        read = takewhile(lambda span: span[0] < stop, find_sentences(text))
        clipped = ((max(a, start), min(b, stop)) for a, b in read)
        kept = (_trim(text, a, b) for a, b in clipped if text[a:b].strip())
        spans = list(islice(kept, most))
        numbers = [(place, place + 1) for place in range(len(spans))]
    else:
        spans, numbers = _group_words(text, tokens, facts["words"] if unit == "word" else None)
    starts, owners = [a for a, _ in spans], [-1] * len(facts["special"])
    for token, a, b in tokens:
        owners[token] = bisect_right(starts, _trim(text, a, b)[0]) - 1
    return Passage(text, start, stop, spans, numbers, owners)


def _group_words(
    text: str, tokens: Sequence[tuple[int, int, int]], words: Sequence[int | None] | None
) -> tuple[list[Span], list[Span]]:
    """Return the spans and the numbers, as in Passage, of words or of tokens.

    Tokens that share a character are one unit.

    Args:
        tokens: (index, start, end) of each token of the text, in characters.
        words: the word of each token of the sequence; None: units are tokens.
    """
    spans, numbers, end, last_word = list[Span](), list[Span](), 0, None
    for number, (token, start, stop) in enumerate(tokens):
        word = words[token] if words else None
        first, last = _trim(text, start, stop)
        if first == last:
            continue
        if spans and (start < end or (word is not None and word == last_word)):
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
            numbers[-1] = (numbers[-1][0], number + 1)
        else:
            spans.append((first, last))
            numbers.append((number, number + 1))
        end, last_word = stop, word
    if words is not None:
        numbers = [(place, place + 1) for place in range(len(spans))]
    return spans, numbers


def _trim(text: str, start: int, end: int) -> Span:
    """Return a span without white space at its ends; an empty one at `end` if it has only that."""
    part = text[start:end]
    first = end - len(part.lstrip())
    return first, first + len(part.strip())
