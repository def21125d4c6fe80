"""How a question, its options and a state become one sequence, as Laya reads them.

    [CLS] choice question: Whose is it? [SEP] [MASK] billing [MASK] sales: new [SEP] state [SEP]

Each part is tokenized by itself. What does not fit is cut in this order: each option to 48 tokens;
all options, if they leave fewer than LEAST_ROOM tokens for the instructions; the instructions; the
state. Source: laya 0.4.15, `laya.common.build_head` and `build_sequence`.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

OPTION_TOKENS = 48  # of an option, its mask token not counted
LEAST_ROOM = 16  # tokens of the instructions that options must leave, or be cut
LEAST_OPTION = 4  # tokens that an option keeps, its mask token counted
LEAST_INSTRUCTIONS = 8  # tokens that the instructions keep
FRONT_TOKENS, END_TOKENS = 3, 1  # special tokens before the state, and after it


class Window(NamedTuple):
    """The tokens that a sequence may have, and of these its instructions and options."""

    sequence: int
    question: int


@dataclass(frozen=True, slots=True)
class Fit:
    """How many tokens of each part are kept.

    Args:
        options: of each, its mask token not counted.
        state: at most `room`.
        room: tokens of a state that there is room for.
        total: tokens of the sequence, which ends after so many.
        last_marker: place of the last option's mask token.
    """

    instructions: int
    options: tuple[int, ...]
    state: int
    room: int
    total: int
    last_marker: int


def fit_question(window: Window, instructions: int, options: Sequence[int], state: int) -> Fit:
    """Return how much of each part fits, given the tokens that each has.

    Example:
        >>> fit_question(Window(64, 32), 20, [2, 60], 50)
        Fit(instructions=20, options=(2, 7), state=29, room=29, total=64, last_marker=25)
    """
    kept = [1 + min(count, OPTION_TOKENS) for count in options]
    left = window.question - sum(kept)
    if left < LEAST_ROOM:
        most = max(LEAST_OPTION, (window.question - LEAST_ROOM) // len(kept))
        kept = [min(count, most) for count in kept]
        left = window.question - sum(kept)
    head = min(instructions, max(LEAST_INSTRUCTIONS, left))
    front = FRONT_TOKENS + head + sum(kept)
    room = max(0, window.sequence - front - END_TOKENS)
    read = min(state, room)
    return Fit(
        head,
        tuple(count - 1 for count in kept),
        read,
        room,
        min(window.sequence, front + read + END_TOKENS),
        FRONT_TOKENS - 1 + head + sum(kept[:-1]),
    )
