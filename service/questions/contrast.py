"""Margins that are sums over the logits of some sequences, and the units that they rest on.

A text that stands in several of the sequences has its units once: their shares are added up.
"""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Literal, NamedTuple

import torch

from model.maps.choices import Level
from model.probes import Readout
from model.probes.frozen_heads import check_linear
from service.shapes.answer import Array
from service.shapes.work import Outputs, Work


class Segment(NamedTuple):
    """A part of a sequence: its text as the model reads it, and the option's name, if it is one."""

    part: Literal["instructions", "option", "state"]
    name: str | None
    text: str


class Contrast(NamedTuple):
    """A sequence whose logits, each with a weight, are a margin or a part of it.

    Args:
        segments: its texts, by the number that its work's facts give each token.
    """

    work: Work
    weights: Sequence[float]
    segments: Sequence[Segment]

    def bare(self) -> Work:
        """Return its work with its head alone."""
        return replace(self.work, outputs=Outputs(task_heads=self.work.outputs.task_heads))

    def readout(self) -> Work:
        """Return its work with what each token adds to the weighted logits."""
        (head,) = self.work.outputs.task_heads
        probe = Readout(check_linear(head), torch.tensor([self.weights]))
        return replace(self.work, outputs=Outputs(probes=(probe,)))


class ReasonUnit(NamedTuple):
    """A word or a token of a part.

    Args:
        start, end: its characters in the part's text.
        tokens: its tokens in the sequence of each contrast.
    """

    segment: Segment
    start: int
    end: int
    tokens: tuple[tuple[int, ...], ...]


def divide(contrasts: Sequence[Contrast], level: Level) -> list[ReasonUnit]:
    """Divide the parts of some sequences into words or tokens; one in several is one unit.

    A word ends where the tokenizer says so and at white space, which some tokenizers' words hold.
    What is white space alone is no unit.
    """
    tokens = dict[tuple[Segment, int], list[list[int]]]()  # by segment and first character
    ends = dict[tuple[Segment, int], int]()
    for number, contrast in enumerate(contrasts):
        key, last_word, stop = None, None, 0
        for token, segment, word, (start, end) in _read_tokens(contrast):
            inside = start < stop or (
                level == "word"
                and word == last_word
                and not any(part.isspace() for part in segment.text[max(0, start - 1) : start + 1])
            )
            if key is None or key[0] != segment or not inside:
                key = segment, start
            tokens.setdefault(key, [[] for _ in contrasts])[number].append(token)
            ends[key] = max(end, ends.get(key, 0))
            last_word, stop = word, end
    spans = {key: _trim(key[0].text, key[1], ends[key]) for key in tokens}
    return [
        ReasonUnit(key[0], *spans[key], tuple(map(tuple, own)))
        for key, own in tokens.items()
        if spans[key][0] < spans[key][1]
    ]


def _read_tokens(contrast: Contrast) -> Iterator[tuple[int, Segment, int | None, tuple[int, int]]]:
    """Yield each token that is not special: its place, segment, word and characters."""
    facts, names = contrast.work.facts, ("segments", "words", "offsets", "special")
    rows = enumerate(zip(*(facts[name] for name in names), strict=True))
    for token, (number, word, characters, special) in rows:
        if not special:
            yield token, contrast.segments[number], word, characters


def _trim(text: str, start: int, end: int) -> tuple[int, int]:
    """Return a span without white space at its ends."""
    part = text[start:end]
    first = start + len(part) - len(part.lstrip())
    return first, max(first, start + len(part.rstrip()))


def sum_tokens(
    units: Sequence[ReasonUnit], by_token: Sequence[Array]
) -> tuple[dict[ReasonUnit, float], float]:
    """Return the share of each unit, and that of all tokens that are of none.

    Args:
        by_token: the shares of the tokens of each contrast's sequence, (tokens,).
    """
    shares = {
        unit: float(sum(of[list(own)].sum() for of, own in zip(by_token, unit.tokens, strict=True)))
        for unit in units
    }
    return shares, float(sum(of.sum() for of in by_token)) - sum(shares.values())
