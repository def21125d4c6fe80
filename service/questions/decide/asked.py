"""What a question becomes before it is run: works, and how their results are read."""

import random
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import factorial
from typing import Protocol, TypeVar

import numpy as np

from service.engine.fair.turns import PIECE_ENTRIES, give_turn
from service.questions.contrast import Contrast
from service.questions.decide import DecisionQuestion
from service.shapes.answer import Array
from service.shapes.side import Side
from service.shapes.step import Read
from service.shapes.work import Work

# Bytes of what is kept of a sequence, of a token of it, and of what is told of a token, as
# tests/service/questions/decide/test_marked.py measures them
WORK_BYTES, TOKEN_BYTES, FACT_BYTES = 1200, 16, 250
Entry = TypeVar("Entry")
QUESTION_OPTIONS = 8  # options that take as long as a question without one
ORDER_SEED = 0  # of the other orders in which options are read
Order = Sequence[int]  # the option that each place has


@dataclass(frozen=True, slots=True)
class AskedQuestion:
    """A question with the works that answer it.

    Args:
        works: those that answer it.
        logits: returns its options' logits, in its own order, from such works' results, float64.
        temperature: what they are divided by.
        cut: what of it was cut; None: nothing.
        orders: the other orders that its options are read in, with the works of each.
        contrast: returns the sequences that make the margin of one option over another, by their
            numbers; what it needs of the works is there where a reason is asked for.
    """

    question: DecisionQuestion
    works: Sequence[Work]
    logits: Callable[[Sequence[Work]], Array]
    contrast: Callable[[int, int], list[Contrast]]
    temperature: float = 1.0
    cut: Mapping[str, int] | None = None
    orders: Sequence[tuple[Order, Sequence[Work]]] = ()

    @property
    def every(self) -> list[Work]:
        """Return all its works, those that answer it first."""
        return [*self.works, *(work for _, works in self.orders for work in works)]

    def rank(self, logits: Array) -> tuple[int, int]:
        """Return the options whose margin is told: yes and no, or the first and the second."""
        if self.question.type == "noul":
            return 1, 0
        first, second = np.argsort(-logits, kind="stable")[:2].tolist()
        return first, second


async def by_options(
    questions: Sequence[DecisionQuestion], more: Iterable[Entry]
) -> AsyncIterator[tuple[DecisionQuestion, Entry]]:
    """Yield questions, each with an entry, and wait for a turn after some options of them."""
    passed = 0
    for question, entry in zip(questions, more, strict=False):
        yield question, entry
        passed += QUESTION_OPTIONS + len(question.options)
        if passed > PIECE_ENTRIES:
            await give_turn(passed)
            passed = 0


class Way(Protocol):
    """How a kind of model answers questions.

    Attributes:
        sides: what is read before anything is planned.
    """

    sides: Sequence[Side]

    async def ask(self, works: Sequence[Work], read: Read) -> list[AskedQuestion]:
        """Return the questions with their works, in order.

        Raises:
            Refused: one does not fit, or its options cannot be told apart.
        """


def own_order(question: DecisionQuestion) -> Order:
    """Return the order that a question's options are read in."""
    return range(len(question.options)) if question.order is None else question.order


def count_orders(question: DecisionQuestion, most: int) -> int:
    """Return in how many other orders a question's options are read, at most `most`."""
    options = len(question.options)
    return min(most, factorial(options) - 1 if options < 5 else most)


def draw_orders(question: DecisionQuestion, most: int) -> list[Order]:
    """Draw other orders of a question's options, no two of which are the same."""
    # of `random`, the one method whose numbers stay the same in every version of Python
    chance, first = random.Random(ORDER_SEED).random, tuple(own_order(question))
    drawn, count = dict[tuple[int, ...], None](), count_orders(question, most)
    while len(drawn) < count:
        order = list(first)
        for place in range(len(order) - 1):  # a Fisher-Yates shuffle
            other = place + int(chance() * (len(order) - place))
            order[place], order[other] = order[other], order[place]
        if tuple(order) != first:
            drawn[tuple(order)] = None
    return [*drawn]


def count_held(works: Sequence[Work]) -> int:
    """Return the bytes that works keep."""
    tokens = sum(len(work) * (TOKEN_BYTES + FACT_BYTES * bool(work.facts)) for work in works)
    return WORK_BYTES * len(works) + tokens
