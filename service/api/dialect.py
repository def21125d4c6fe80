"""A dialect of HTTP clients: a parser into the native request, a writer of its answer.

A dialect has two functions and knows nothing of HTTP's server side:

    parse(body, sent, served)   a Call: the native request, and how to write its answer
    problem(refused, id)        a refusal as that API's clients know it
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

from service import refusals
from service.encode import answer
from service.encode.answer import JSON, Encoded
from service.encode.request import Request
from service.engine.fair.rotation import Lock
from service.refusals import BY_BODY, BY_HEADERS, Refused
from service.wording.words import Loc, place

# What may be refused by any route, by one that takes a body, by one that encodes
ALWAYS = (*BY_HEADERS, "method_not_allowed", "unknown_field", "internal")
TAKING = (
    *BY_BODY,
    "invalid_json",
    "invalid_text",
    "too_many_tokens",
    "unsupported_media_type",
    "invalid_type",
    "out_of_range",
    "missing_field",
    "batch_empty",
    "batch_too_large",
    "sequence_empty",
    "text_too_long",
    "token_out_of_range",
    "prompt_not_found",
    "overloaded",
    "deadline_exceeded",
    *ALWAYS,
)
ENCODING = (
    *TAKING,
    "answer_too_large",
    "deadline_unreachable",
    "sequence_too_long",
    "prompt_without_text",
    "nonfinite_output",
)


@dataclass(frozen=True, slots=True)
class Problem:
    """A refusal as sent."""

    status: int
    body: bytes
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)


class Answer(NamedTuple):
    """An answer's body in pieces, and the headers that go with it."""

    pieces: Sequence[bytes]
    headers: Mapping[str, str] = {}


class Served(NamedTuple):
    """What parsers know of the replica.

    Args:
        name, tasks, layers: of the model.
        most_json: bytes of JSON that are read.
        most_sequences: in a request.
    """

    name: str
    tasks: Sequence[str]
    layers: int
    most_json: int
    most_sequences: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(ABC):
    """One request, and how its answer is written.

    Args:
        seconds: how long the request says it may take.
        media_type: of the answer.
    """

    request: Request
    seconds: float = math.inf
    media_type: str = JSON

    def at_once(self, encoded: Encoded) -> Answer | None:
        """Return the answer as sent if it is small; otherwise it has to be written."""
        return None

    @abstractmethod
    async def write(self, encoded: Encoded, turn: Lock) -> Answer:
        """Return the answer as sent.

        Args:
            turn: held while a large answer is written; see service/encode/answer.py.
        """


class JSONCall(Call):
    """A call that is answered with one tree of JSON."""

    @abstractmethod
    def tree(self, encoded: Encoded) -> Any:
        """Return the answer as nested JSON, with the arrays, Records and Each of answer.py."""

    def at_once(self, encoded: Encoded) -> Answer | None:
        if not encoded.small:
            return None
        made = Encoded(encoded.preamble, list(encoded.items), encoded.usage)  # may raise Refused
        return Answer([answer.whole(self.tree(made), self.request.encoding)])

    def pieces(self, encoded: Encoded) -> Iterator[bytes]:
        """Return the answer in pieces, end to end."""
        return answer.in_pieces(self.tree(encoded), self.request.encoding)

    async def write(self, encoded: Encoded, turn: Lock) -> Answer:
        return Answer(await answer.collect(self.pieces(encoded), turn))


class Wording(Protocol):
    """How a dialect words a refusal."""

    def __call__(self, refused: Refused, request_id: str, /) -> Problem: ...


class Sent(Protocol):
    """What parsers know of a request apart from its body.

    Attributes:
        media_type: of the body, one that the route takes; None is JSON.
        wording: how it is refused, if its path alone does not decide.
    """

    headers: Mapping[str, str]
    media_type: str | None
    path_params: Mapping[str, str]
    wording: Wording | None


Parse = Callable[[bytes, Sent, Served], Call]


def sentence(refused: Refused, names: Mapping[str, str]) -> str:
    """Return a refusal in one line, for people: what is wrong, where, and the numbers that help.

    Args:
        names: of fields that the API names differently from the native request.
    """

    def where(loc: Loc) -> str:
        first, *rest = (names.get(str(loc[0]), loc[0]), *loc[1:]) if loc else ("",)
        return place((first, *(rest[1:] if rest[:1] == [first] else rest)))

    return refusals.explain(refused, refused.faults, where)
