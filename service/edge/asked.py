"""One request on its way through the door, and the time it may take."""

import asyncio
import math
import time
from collections.abc import Awaitable, Mapping
from typing import TYPE_CHECKING, TypeVar

from service.api.dialect import Wording
from service.edge.gate import Place
from service.memory import Hold
from service.observe.record import Record
from service.refusals import Refused

if TYPE_CHECKING:  # a route's handler takes one of these
    from service.edge.routes import Way

DEADLINE = "x-headlight-deadline-ms"
LONGEST = 9  # digits of milliseconds

Result = TypeVar("Result")


async def in_time(work: Awaitable[Result], deadline: float) -> Result:
    """Return the result of some work if it arrives in time.

    Args:
        deadline: when it is due, on time.monotonic's clock.

    Raises:
        Refused: it is late; work that never awaits cannot be late.
    """
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await work
    except TimeoutError:
        raise Refused("deadline_exceeded") from None


def seconds(headers: Mapping[str, str], most: float) -> float:
    """Return the seconds this request may take, at most `most`.

    Raises:
        Refused: the header is not a number of milliseconds.
    """
    header = headers.get(DEADLINE)
    if header is None:
        return most
    if not header.isdecimal() or not header.isascii() or len(header) > LONGEST:
        detail = f"expected a number of milliseconds of up to {LONGEST} digits"
        raise Refused.at("out_of_range", DEADLINE, detail=detail)
    return min(int(header) / 1000, most)


class Asked:
    """A request as the door and the handlers see it.

    Args:
        path: its own, below the prefix under which a cluster mounts us, which is `root_path`.
        headers: by lower-case name; the first where a name occurs twice.

    Attributes:
        media_type: of its body, lower case, without parameters; None if it names none.
        body: the whole body, once it has been read.
        record: what is known of it, once it has `begun`: it has arrived whole or is refused.
        key: the name of its API key.
        wording: how it is refused, where its path alone does not decide that.
        ignored: fields of its body that its route does not know, where that is no fault.
        place: its place at the gate; waited: the seconds it waited there.
        shed: the bound it met, where it is turned away.
        given: the seconds it gives us, counted from when it has arrived whole.
        until: when the door ends it, on time.monotonic's clock; late: whether the door has.
        closing: whether its connection ends with it because a body is left unread.
    """

    __slots__ = (
        *("begun", "body", "closing", "given", "headers", "hold", "ignored", "key"),
        *("late", "media_type", "method", "path", "path_params", "place", "query", "record"),
        *("request_id", "root_path", "route", "shed", "task", "until", "waited", "wording"),
    )

    task: "asyncio.Task[object]"
    route: "Way | None"
    path_params: Mapping[str, str]
    record: Record

    def __init__(
        self,
        method: str,
        root_path: str,
        path: str,
        query: bytes,
        headers: Mapping[str, str],
        hold: Hold,
    ) -> None:
        self.method, self.root_path, self.path, self.query = method, root_path, path, query
        self.headers, self.hold = headers, hold
        self.media_type: str | None = None
        if (named := headers.get("content-type")) is not None:
            self.media_type = named.partition(";")[0].strip().lower()
        self.body, self.request_id, self.key = b"", "", ""
        self.wording: Wording | None = None
        self.ignored: dict[str, None] = {}
        self.place: Place | None = None
        self.shed: str | None = None
        self.waited, self.given, self.until = 0.0, math.inf, math.inf
        self.begun = self.late = self.closing = False

    def take_body(self) -> bytes:
        """Return the body, which from then on belongs to the caller alone."""
        body, self.body = self.body, b""
        return body
