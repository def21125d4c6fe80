"""What one round of the event loop begins: requests that no admission bounds yet take turns.

A round does all that is ready. A page, a wrong key or a dry run, and what is read and then refused,
is done in one piece, before anything counts it as inside: thirty that arrive together would hold
the loop, and whoever asks whether the service lives, for the sum of them. So a round begins what
has ROUND_BYTES, or one request that is larger; the others wait for later rounds, and API keys take
turns. Bytes stand for time, since they are known before the work.

What no admission bounds is refused once it has waited for LATE_SECONDS, or while the loop is as
late.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable
from functools import partial
from typing import TypeVar

from starlette.requests import ClientDisconnect

from service.api import query
from service.api.own import DRY_RUN
from service.door.request import Request
from service.door.transport import Client
from service.door.under_way import UnderWay
from service.engine.fair.rotation import FairRoom
from service.observe.families import LATE, METRICS_PATH
from service.tables.refusals import Refused, overloaded
from service.tables.settings import KIB

T = TypeVar("T")

ROUND_BYTES = 16 * KIB  # begun in one round; texts of one character take some 40 ms a request
REQUEST_BYTES = KIB  # what the head of each counts, and all of a request without a body
LATE_SECONDS = 0.25  # that the loop, or a round of it, may be late for what no admission bounds


class Rounds(FairRoom):
    """Begins requests, as many in each round of the event loop as it has bytes for.

    Args:
        under_way: knows how late the loop is.
    """

    def __init__(self, under_way: UnderWay) -> None:
        super().__init__(ROUND_BYTES)
        self._under_way = under_way

    async def begin(self, request: Request, client: Client, most: float) -> None:
        """Wait for a round that may begin a request; refuse it after `most` seconds.

        Raises:
            Refused: no round could in time, or the loop is late for what nothing else bounds.
            ClientDisconnect: its client has left.
        """
        if request.unbounded:
            self.refuse_late(request)
        size = REQUEST_BYTES + len(request.body)
        if self.take_at_once(size):
            return
        came = time.monotonic()
        try:
            async with asyncio.timeout(most):
                await unless_left(request, client, partial(self.wait, request.key, size))
        except TimeoutError:
            raise too_late(request, LATE) from None
        finally:
            request.late += time.monotonic() - came

    def refuse_late(self, request: Request) -> None:
        """Refuse a request while the loop is late."""
        if self._under_way.late > LATE_SECONDS:
            raise overloaded(LATE)

    def _take(self, size: int) -> None:
        """Count bytes as begun in this round, which ends before the next one's first callback."""
        if not self.taken:
            asyncio.get_running_loop().call_soon(self._end_round)
        self.taken += size

    def release(self, size: int = 1) -> None:
        """Give nothing back: what a request has begun is over with its round."""

    def _end_round(self) -> None:
        """Give the next round to those that wait, a request of each key in turn, while they fit."""
        self.taken = 0
        if self._lines:
            self.hand_on()


def is_unbounded(request: Request) -> bool:
    """Tell whether no admission bounds a request: one without a body to read, or a dry run.

    A scrape is asked again and again by few, and tells how late the loop is.
    """
    if request.endpoint and request.endpoint.label == METRICS_PATH:
        return False
    if request.method != "POST" or request.endpoint is None:
        return True
    takes = request.query and DRY_RUN in request.endpoint.query
    return bool(takes) and query.read_flag(request.query, DRY_RUN)


def too_late(request: Request, bound: str) -> Refused:
    """Return the refusal of a request whose turn has not come in time."""
    return overloaded(bound) if request.unbounded else Refused("deadline_exceeded", bound=bound)


async def unless_left(request: Request, client: Client, turn: Callable[[], Awaitable[T]]) -> T:
    """Await a request's turn and return its result.

    Raises:
        ClientDisconnect: its client has left.
    """
    if not client.bind(request.task):
        raise ClientDisconnect
    try:
        return await turn()
    except asyncio.CancelledError:
        if not client.left:
            raise
        request.task.uncancel()
        raise ClientDisconnect from None
    finally:
        client.unbind(request.task)
