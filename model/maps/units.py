"""Units: the rows and columns of an attention answer, tokens or words, special ones or not.

A word's row is the mean over its tokens' rows, its column the sum over their columns: then rows
still sum to 1. Source: Clark et al. 2019, "What Does BERT Look At?", section 4.1.
"""

from bisect import bisect_left, bisect_right
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor

from model.maps.choices import Level, Specials


@dataclass(frozen=True, slots=True)
class Units:
    """The units of one sequence, and which of them an answer shows.

    Args:
        spans: the tokens of every unit, [first, last); end to end they are the sequence.
        axis: the units that are shown, as rows and as columns, in order.
        renormalize: whether rows are scaled to sum to 1 over the units shown.
    """

    spans: tuple[tuple[int, int], ...]
    axis: tuple[int, ...]
    renormalize: bool = False

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the sequence."""
        return self.spans[-1][1]

    @property
    def is_token_level(self) -> bool:
        """Tell whether every unit is one token and shown: maps are as the forward pass had them."""
        return len(self.axis) == self.tokens

    @property
    def has_merged_tokens(self) -> bool:
        """Tell whether a unit shown is more than one token."""
        return any(self.spans[unit][1] - self.spans[unit][0] > 1 for unit in self.axis)

    def members(self) -> tuple[Tensor, Tensor]:
        """Return the tokens of the units shown, and their units' places on the axis."""
        pairs = [
            (token, place)
            for place, unit in enumerate(self.axis)
            for token in range(*self.spans[unit])
        ]
        tokens, places = torch.tensor(pairs, dtype=torch.int64).view(-1, 2).T.contiguous()
        return tokens, places

    def merge(self, x: Tensor, axis: int, members: tuple[Tensor, Tensor] | None = None) -> Tensor:
        """Sum up the tokens of each unit shown, along an axis that then has a place for each.

        Args:
            members: of `members()`, where they are at hand, on x's device.
        """
        tokens, places = members or (part.to(x.device) for part in self.members())
        if len(tokens) < x.shape[axis]:
            x = x.index_select(axis, tokens)
        if len(tokens) == len(self.axis):
            return x
        shape = list(x.shape)
        shape[axis] = len(self.axis)
        return x.new_zeros(shape).index_add_(axis, places, x)

    def places(self, units: Many[int]) -> list[int]:
        """Return the places of units that are shown on the axis."""
        place = {unit: place for place, unit in enumerate(self.axis)}
        return [place[unit] for unit in units]

    def place_of_token(self, token: int) -> int | None:
        """Return the place on the axis of a token's unit; None where it is not shown."""
        unit = bisect_right(self.spans, token, key=lambda span: span[0]) - 1
        place = bisect_left(self.axis, unit)
        return place if unit in self.axis[place : place + 1] else None


def divide_into_units(
    tokens: int,
    *,
    level: Level = "token",
    specials: Specials = "keep",
    words: Many[int | None] = (),
    segments: Many[int] = (),
    special: Many[bool] = (),
) -> Units:
    """Divide a sequence into units.

    Args:
        words: of each token, the word of its text; needed for level word.
        segments: of each token, its text in a pair; empty is one text.
        special: of each token, whether it is special: such a one stays a unit of its own.
            Needed unless all are kept.

    Example:
        >>> special = [True, False, False, True]
        >>> divide_into_units(4, level="word", words=[None, 0, 0, None], special=special)
        Units(spans=((0, 1), (1, 3), (3, 4)), axis=(0, 1, 2), renormalize=False)
    """
    firsts = list(range(tokens))
    if level == "word":
        segments = segments or [0] * tokens
        firsts = [
            token
            for token in firsts
            if token == 0
            or special[token]
            or special[token - 1]
            or (segments[token], words[token]) != (segments[token - 1], words[token - 1])
        ]
    spans = tuple(zip(firsts, [*firsts[1:], tokens], strict=True))
    axis = [i for i, (first, _) in enumerate(spans) if specials == "keep" or not special[first]]
    return Units(spans, tuple(axis), specials == "renormalize")
