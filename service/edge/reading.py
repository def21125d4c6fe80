"""A request's body on its way in: within its limits, in time, and nothing left of it unread.

It is read whole before it is passed on, and looked through before anything is parsed.
"""

import asyncio
from collections.abc import Mapping
from functools import partial

from starlette.requests import ClientDisconnect, Request
from starlette.types import Message, Receive

from service.api import body
from service.edge.beside import Beside
from service.encode.answer import INFERENCE_HEADER, JSON, OCTETS, SAFETENSORS
from service.memory import Hold, NoRoom
from service.observe.families import OVERLOADED
from service.settings import HELD_OF_BODY, Settings

INFERENCE = "/v2/"  # routes of the Open Inference Protocol, but for the reranker's
INFER = "/v2/models/"  # those where a header may announce bytes, often without a media type
LONGEST_LENGTH = 18  # digits of a length in bytes; Python refuses to read 4,301
BODY_SECONDS = 10.0  # for the whole body to come; HAProxy's own limit for it is the same


class Bodies:
    """Reads the bodies of requests."""

    def __init__(self, settings: Settings) -> None:
        self._json, self._binary = settings.max_body_bytes, settings.max_binary_body_bytes
        self._bounds, self._beside = body.Bounds.of(settings), Beside()

    async def read(
        self, path: str, receive: Receive, headers: Mapping[str, str], hold: Hold
    ) -> tuple[str | None, bytes | None]:
        """The body, or the code of a refusal and none; neither of a client that has left."""
        limit = self._binary if _binary(path, headers) else self._json
        try:
            async with asyncio.timeout(BODY_SECONDS):
                content = await _body(receive, headers, limit, hold)
        except TimeoutError:
            return "request_timeout", b""
        except NoRoom:
            return f"{OVERLOADED}:memory", b""
        except ClientDisconnect:
            return None, None
        if content is None:
            return "body_too_large", b""
        code = await self._beside.run(len(content), partial(self._check, path, headers, content))
        return code, content if code is None else b""

    def _check(self, path: str, headers: Mapping[str, str], content: bytes) -> str | None:
        """The code of what is wrong with all of a body that a route would read as JSON."""
        media_type = headers.get("content-type", JSON).partition(";")[0].strip().lower()
        if media_type == SAFETENSORS:
            return body.check_file(content, self._json, self._bounds)
        if not path.startswith(INFER):
            return body.check(content, self._bounds) if media_type == JSON else None
        length = headers.get(INFERENCE_HEADER, "")
        announced = length.isdecimal() and len(length) < 10
        text = content[: int(length)] if announced else content
        return "body_too_large" if len(text) > self._json else body.check(text, self._bounds)


def announces(headers: Mapping[str, str]) -> bool:
    """Whether a body follows; a length of 0 is none."""
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def _binary(path: str, headers: Mapping[str, str]) -> bool:
    """Whether a body may hold arrays as bytes; how much of it is JSON is the route's to check."""
    announced = INFERENCE_HEADER in headers and path.startswith(INFER)
    return announced or headers.get("content-type", "").lower().startswith((OCTETS, SAFETENSORS))


async def _body(
    receive: Receive, headers: Mapping[str, str], limit: int, hold: Hold
) -> bytes | None:
    """The whole body, or None when it is larger than the limit; then the rest is not read.

    Raises:
        NoRoom: there is none for what came of it.
        ClientDisconnect: no more of it comes.
    """
    length = headers.get("content-length", "").lstrip("0") or "0"
    if length.isdecimal() and (len(length) > LONGEST_LENGTH or int(length) > limit):
        return None
    content = bytearray()
    while True:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientDisconnect
        piece = message.get("body", b"")
        hold.take(bodies=HELD_OF_BODY * len(piece))
        content += piece
        if len(content) > limit:
            return None
        if not message.get("more_body"):
            return bytes(content)


def replay(content: bytes | None, receive: Receive, hold: Hold) -> Receive:
    """A receive that gives the body once, then whether the client left; never more of a body.

    Args:
        hold: of the request, until the body is given; then it is the reader's to count.
    """
    kept = content

    async def replay() -> Message:
        nonlocal kept
        if kept is not None:
            body, kept = kept, None
            hold.keep("bodies", 0)
            return {"type": "http.request", "body": body, "more_body": False}
        while (message := await receive())["type"] == "http.request":
            pass  # of a body too large; Ray would keep all of it
        return message

    return replay


async def whole(request: Request) -> bytes:
    """A request's body, which its record now holds; `request.body()` would copy and keep it."""
    body = b"".join([piece async for piece in request.stream() if piece])
    request.scope["record"].hold.keep("bodies", HELD_OF_BODY * len(body))
    return body
