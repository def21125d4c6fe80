"""What every dialect, the API of some clients, is made of: routes, parsers, answers, refusals.

A dialect is one file or folder that ends in ROUTES and knows nothing of HTTP's server side:

    parse(body, head, served)   returns a Call: the native request, and how to write its answer
    problem(refused, id)        returns a refusal in that API's form

No dialect imports another; what two of them share stands here and in the files next to this one.
The query is read alike in all of them.
"""

from abc import abstractmethod
from collections.abc import (
    Awaitable,
    Callable,
    Iterator,
    Mapping,
    Sequence,
)
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar, Protocol, TypeVar

import orjson

from service.engine.fair.turns import in_turns
from service.pipeline.write import answer
from service.shapes.answer import JSON, Answer
from service.shapes.call import Call, Reply, RequestHead, Turn
from service.tables import refusals
from service.tables.refusals import Refused
from service.tables.wording.words import Loc, write_place

if TYPE_CHECKING:  # the chart is rendered where there is no torch
    from service.pipeline.replica import Replica


def json_reply(value: Any, status: int = 200) -> Reply:
    """Return a response whose body is a value as JSON."""
    return Reply(orjson.dumps(value), status, media_type=JSON)


class JSONCall(Call):
    """A call that is answered with one JSON value.

    Attributes:
        needs_all: whether all items are made before the answer begins, as it is of them together.
    """

    needs_all: ClassVar[bool] = False

    @abstractmethod
    def to_json(self, encoded: Answer) -> Any:
        """Return the answer as nested JSON, with arrays, Records and Each as leaves."""

    def write_small(self, encoded: Answer) -> Reply | None:
        if not encoded.is_small:
            return None
        # computes the items, which may raise Refused
        computed = Answer(encoded.preamble, list(encoded.items), encoded.usage)
        return self.reply(
            answer.write_whole(self.to_json(computed), self.request.chosen("encoding", "json"))
        )

    def pieces(self, encoded: Answer) -> Iterator[bytes]:
        """Return the answer's body in pieces, to be joined in order."""
        return answer.write_pieces(self.to_json(encoded), self.request.chosen("encoding", "json"))

    async def write(self, encoded: Answer, turn: Turn) -> Reply:
        if self.needs_all:
            encoded = replace(encoded, items=[item async for item in in_turns(encoded.items)])
        return self.reply(await answer.collect_body(self.pieces(encoded), turn))


Read = TypeVar("Read")


class RouteContext(Protocol):
    """What the handler of a route that does not encode may use of the replica.

    Attributes:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
        targets: host:port of each replica, by its model's prefix; None where none has an address.
    """

    replica: "Replica"
    scrape: Callable[[bool, bool], Awaitable[bytes]]
    targets: Callable[[bool], Awaitable[Mapping[str, list[str]]]] | None

    async def document(self, root: str) -> bytes:
        """Return the OpenAPI document as JSON, for a service mounted below `root`."""

    def names(self, head: RequestHead) -> Sequence[str]:
        """Return what clients may call the models of this address."""

    def models(self, head: RequestHead) -> Sequence[Any]:
        """Return all models of this address; none where the request is for this one alone."""

    def find_unready(self, head: RequestHead) -> Sequence[str]:
        """Return the names of models of this address that do not answer; refuse if none does."""

    def deadline(self, head: RequestHead) -> float:
        """Return when the answer is due, on time.monotonic's clock."""

    async def read(self, head: RequestHead, parse: Callable[[bytes], Read]) -> Read:
        """Parse a request's JSON body and return the result."""

    async def write(self, head: RequestHead, pieces: Iterator[bytes]) -> Reply:
        """Write pieces of JSON as the answer, before its deadline."""


def explain_refusal(refused: Refused, names: Mapping[str, str]) -> str:
    """Return a refusal in one line, for people: what is wrong, where, and the numbers that help.

    Args:
        names: the API's names of fields that it names differently, by the native ones.
    """

    def where(loc: Loc) -> str:
        """Format a place by the API's own names, a name twice in a row only once."""
        first, *rest = (names.get(str(loc[0]), loc[0]), *loc[1:]) if loc else ("",)
        return write_place((first, *(rest[1:] if rest[:1] == [first] else rest)))

    return refusals.word_refusal(refused, refused.faults, where)
