"""Which works of a question run together, what follows from them, and what answers it."""

from collections.abc import Awaitable, Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from service.shapes.answer import AnswerItem
from service.shapes.price import Price
from service.shapes.record import Record
from service.shapes.side import Side
from service.shapes.work import Work


class Step(NamedTuple):
    """Works that run together, and what follows: from a question to admission.

    Args:
        works: those of a request's first step begin with one for each text.
        then: returns the next step, once these have their results; None: there is none.
        follow: examples of works that may follow, and how often: admitted with these.
        held: bytes that a first step keeps until the end, besides the answer.
    """

    works: Sequence[Work]
    then: "Callable[[], Awaitable[Step | None]] | None" = None
    follow: Sequence[tuple[Work, int]] = ()
    held: int = 0

    @property
    def every(self) -> list[tuple[Work, int]]:
        """Return the works and those that may follow, each with how often it runs."""
        return [*((work, 1) for work in self.works), *self.follow]

    @property
    def tokens(self) -> int:
        """Return the number of tokens of the works and of those that may follow."""
        tokens = sum(map(len, self.works))
        for work, count in self.follow:
            tokens += len(work) * count
        return tokens

    @property
    def sequences(self) -> int:
        """Return the number of works, with those that may follow."""
        return len(self.works) + (sum(count for _, count in self.follow) if self.follow else 0)


Read = Callable[[Side], Awaitable[list[Work]]]  # reads a side to works, one for each text


class Plan(NamedTuple):
    """How a request that was read is run, priced and answered: from a question to the gateway.

    Args:
        step: the first step, which leads to the others.
        price: bytes of memory that the answer takes, besides those that the step holds.
        make_items: returns the answer's items, in their order, once the works have their results.
    """

    step: Step
    price: Price
    make_items: Callable[[], Awaitable[Iterable[AnswerItem]]]


class Question(Protocol):
    """One request: how it is read, then run and answered; Ask says how it is written.

    It is made of the request, or raises Refused for what this model lacks. What follows from its
    texts stands in its plan alone.

    Attributes:
        sides: the sides to read.
    """

    sides: Sequence[Side]

    async def plan(self, works: list[Work], read: Read, deadline: float, record: Record) -> Plan:
        """Return what is done with the works.

        Args:
            works: of all sides, in their order.
            read: reads further sides, whose texts are made on the way.
            deadline: when the answer must be ready, on time.monotonic's clock.
            record: of the request, to which what is read on the way is added.
        """
