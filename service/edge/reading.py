"""Reads a request's body: within its limits, in time, and leaving none of it unread.

The body is read whole before it is passed on, and scanned before anything is parsed.
"""

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from service.api import body
from service.edge.asked import Asked
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS
from service.engine.fair.rotation import Thread
from service.memory import Hold, NoRoom
from service.observe.families import OVERLOADED
from service.refusals import Refused, refusal
from service.settings import BODY_FACTOR, KIB, Settings

Result = TypeVar("Result")

INFER = "/v2/models/"  # where a header may announce bytes, often without a media type
LONGEST_LENGTH = 18  # digits of a length in bytes; Python refuses to read 4,301
BODY_SECONDS = 10.0  # for the whole body to arrive; the same as HAProxy's own limit
TOO_LATE = f"the limit is {BODY_SECONDS:g} s for the whole body"
LARGE_BYTES = 16 * KIB  # whatever fewer bytes hold takes a few ms at most


class BodyWorker:
    """One thread, apart from the event loop, for work on large bodies.

    Parsing a body keeps other threads waiting until it is done: several at once would keep the
    event loop waiting for all of them. Keys take turns. The cores belong to the model.
    """

    def __init__(self) -> None:
        self._thread = Thread("bodies")

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """Return the result of work on a body of this many bytes."""
        if size <= LARGE_BYTES:
            return work()
        return await self._thread.run(partial(_refusing, work))


def _refusing(work: Callable[[], Result]) -> Result:
    """Do work on a body; its faults are worded here too, which takes as long as parsing."""
    try:
        return work()
    except ValidationError as error:
        raise refusal(error) from None


class Bodies:
    """Reads the bodies of requests."""

    def __init__(self, settings: Settings, worker: BodyWorker) -> None:
        self._json, self._binary = settings.max_body_bytes, settings.max_binary_body_bytes
        self._bounds, self._worker = body.Bounds.of(settings), worker

    async def read(self, asked: Asked, receive: Receive) -> bytes:
        """Return the whole body; one that is too large is not read to its end.

        Raises:
            Refused: it is too large, there is no room for it, or no route reads its kind.
            ClientDisconnect: the rest of it never arrives.
        """
        limit = self._binary if _binary(asked) else self._json
        length = asked.headers.get("content-length", "").lstrip("0") or "0"
        if length.isdecimal() and (len(length) > LONGEST_LENGTH or int(length) > limit):
            raise self._refused("body_too_large")
        asked.until = time.monotonic() + BODY_SECONDS
        try:
            content = await self._whole(receive, limit, asked.hold)
        except NoRoom:
            asked.shed = "memory"
            raise Refused(OVERLOADED, retry_after=1) from None
        asked.until = math.inf
        if len(content) <= LARGE_BYTES:
            wrong = self._check(asked, content)
        else:
            wrong = await self._worker.run(len(content), partial(self._check, asked, content))
        if wrong:
            raise self._refused(wrong)
        return content

    async def _whole(self, receive: Receive, limit: int, hold: Hold) -> bytes:
        content = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece: bytes = message.get("body", b"")
            hold.take(bodies=BODY_FACTOR * len(piece))
            if len(content) + len(piece) > limit:
                raise self._refused("body_too_large")
            more = message.get("more_body", False)
            if not content and not more:
                return piece
            content += piece
            if not more:
                return bytes(content)

    def _check(self, asked: Asked, content: bytes) -> str | None:
        """Return the error code of a whole body that a route would read as JSON, if any."""
        media_type = JSON if asked.media_type is None else asked.media_type
        if not asked.path.startswith(INFER):
            return body.check(content, self._bounds) if media_type == JSON else None
        length = asked.headers.get(INFERENCE_HEADER, "")
        announced = length.isdecimal() and len(length) < 10
        text = content[: int(length)] if announced else content
        return "body_too_large" if len(text) > self._json else body.check(text, self._bounds)

    def _refused(self, code: str) -> Refused:
        """Return the refusal of a body, saying what is expected of one.

        Args:
            code: with the key it is about after a colon; see service/api/body.py.
        """
        code, _, key = code.partition(":")
        bounds = self._bounds
        details = {
            "duplicate_key": (
                f"a key of {key} characters" if key.isdecimal() else f'the key "{key}"'
            )
            + " occurs twice in one object",
            "too_many_values": f"the limits are {bounds.objects:,} objects, {bounds.lists:,} lists,"
            f" {bounds.strings:,} strings, {bounds.values:,} commas, and {body.MOST_KEYS} keys in"
            " one object",
            "body_too_large": f"the limit is {self._json:,} bytes of JSON, or {self._binary:,}"
            " bytes with binary tensors",
        }
        return Refused(code, detail=details[code])


def late() -> Refused:
    """Return the refusal of a body that does not arrive whole in time."""
    return Refused("request_timeout", detail=TOO_LATE)


def _binary(asked: Asked) -> bool:
    """Tell whether a body may hold arrays as bytes; the route checks how much of it is JSON."""
    if asked.media_type == OCTETS:
        return True
    return INFERENCE_HEADER in asked.headers and asked.path.startswith(INFER)
