"""What every dialect of HTTP clients is: a parser into the native request, a writer of its answer.

A dialect has two functions and knows nothing of HTTP's server side:

    parse(body, ...)        a Call: the native request, and how to write its answer
    problem(refused, id)    a refusal as that API's clients know it
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from service.answer import Encoded
from service.refusals import Refused
from service.schema import EncodeRequest


@dataclass(frozen=True, slots=True)
class Problem:
    """A refusal as it is sent."""

    status: int
    body: bytes
    media_type: str
    headers: dict[str, str] = field(default_factory=dict)


class Call(Protocol):
    """One request, and how its answer is written.

    Args:
        numbers: whether arrays are written as JSON numbers, which take several times their bytes.
        media_type: of the answer.
    """

    @property
    def request(self) -> EncodeRequest: ...

    @property
    def numbers(self) -> bool: ...

    @property
    def media_type(self) -> str: ...

    def write(self, encoded: Encoded) -> Iterator[bytes]: ...


class Say(Protocol):
    """How a dialect words a refusal."""

    def __call__(self, refused: Refused, request_id: str, /) -> Problem: ...
