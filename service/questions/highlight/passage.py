"""A document in units: its sentences by a rule, or the tokenizer's words or tokens.

A text that lacks units is a text. With a unit goes what stands before the next one, and at last
the white space at the text's end.
"""

import hashlib
import random
from bisect import bisect_right
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from itertools import islice, takewhile
from math import comb

from model.text.sentences import find_sentences
from service.engine.work import Work

DRAWS = 8  # of random units, for each document, at most

Span = tuple[int, int]


@dataclass(frozen=True, slots=True)
class Passage:
    """A document in units, as far as it was read.

    Args:
        start, stop: what was read of the text, characters.
        spans: of each unit, characters [start, end), without white space around it.
        numbers: of each unit: its place among sentences or words, or those of its tokens.
        owners: the unit of each token of the sequence; -1 of special ones, a prompt or a query.
    """

    text: str
    start: int
    stop: int
    spans: Sequence[Span]
    numbers: Sequence[Span]
    owners: Sequence[int]

    def without(self, units: Collection[int]) -> str:
        """Return the text that lacks some units."""
        kept, at, starts = [], self.start, [start for start, _ in self.spans]
        for unit in sorted(units):
            kept.append(self.text[at : starts[unit]])
            at = starts[unit + 1] if unit + 1 < len(starts) else self.stop
        return "".join([*kept, self.text[at : self.stop]]).rstrip()

    def draws(self, marked: Sequence[int]) -> list[tuple[int, ...]]:
        """Draw as many random units as are marked, of the others, `draws` times.

        No two draws are the same; all are whenever the text comes.
        """
        others = sorted({*range(len(self.spans))} - {*marked})
        count, made = draws(len(others), len(marked)), dict[tuple[int, ...], None]()
        read = self.text[self.start : self.stop]
        # of `random`, the one method whose numbers stay the same in every version of Python
        chance = random.Random(hashlib.sha256(read.encode("utf-8", "replace")).digest()).random
        while len(made) < count:
            units = others.copy()
            for place in range(len(marked)):
                other = place + int(chance() * (len(units) - place))
                units[place], units[other] = units[other], units[place]
            made[tuple(sorted(units[: len(marked)]))] = None
        return [*made]


def draws(others: int, marked: int) -> int:
    """Count the draws of as many others as are marked: none where they have no two choices."""
    if others <= marked:
        return 0
    return DRAWS if others >= DRAWS else min(DRAWS, comb(others, marked))


def make_passage(text: str, work: Work, unit: str, *, most: int, whole: bool = False) -> Passage:
    """Return a document in units, by what was read of it; of a pair it is the second text.

    Args:
        most: sentences that are looked for.
        whole: whether what was not read of it counts too.
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
    """Return the characters and the numbers of words, or of tokens that share no character."""
    spans, numbers, end, word = list[Span](), list[Span](), 0, None
    for number, (token, start, stop) in enumerate(tokens):
        own = words[token] if words else None
        first, last = _trim(text, start, stop)
        if first == last:
            continue
        if spans and (start < end or (own is not None and own == word)):
            spans[-1] = (spans[-1][0], max(last, spans[-1][1]))
            numbers[-1] = (numbers[-1][0], number + 1)
        else:
            spans.append((first, last))
            numbers.append((number, number + 1))
        end, word = stop, own
    if words is not None:
        numbers = [(place, place + 1) for place in range(len(spans))]
    return spans, numbers


def _trim(text: str, start: int, end: int) -> Span:
    """Return a span without the white space around it; an empty one at its end if it is all."""
    part = text[start:end]
    first = end - len(part.lstrip())
    return first, first + len(part.strip())
