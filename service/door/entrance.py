"""The ASGI application that Ray's server calls instead of Ray's own: the replica's Door, or a 503.

A replica's process has a door once the replica has started. A process of Ray's proxy has none:
HAProxy carries the requests, and none may go through Ray's proxy, which knows none of our limits.
Ray's own application answers Ray's probe, and says where Ray has mounted us: a Serve
configuration's `route_prefix`, which may change while we serve. Requests bypass it
(docs/decisions/0023).

Ray's proxy, which has no model, imports this file too: it imports nothing large.
"""

import asyncio
import json
import logging
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.cluster import choose_model
from service.door import transport
from service.shapes.record import REQUEST_ID
from service.tables import refusals
from service.tables.refusals import MEDIA_TYPE, Refused

logger = logging.getLogger(__name__)

PROBE, ROUTES = "/-/healthz", "/-/routes"  # Ray's: the probe, and where applications are mounted
UNREADY = refusals.REFUSALS["not_ready"].status  # that of Ray's answer while a replica leaves
PLACED_SECONDS = 2.0  # until Ray is asked again where we are mounted
# A probe with any of these headers is more than a probe: it goes to the door, which refuses it
BODY_HEADERS = frozenset((b"content-length", b"transfer-encoding", b"upgrade"))


class Doorway:
    """Holds a replica's door for Ray's server, which is made after the replica."""

    door: ASGIApp | None = None  # answers the replica's requests; None in Ray's proxy
    loop: asyncio.AbstractEventLoop | None = None  # the loop in which it serves
    stays: Callable[[], bool] = staticmethod(lambda: False)  # whether it serves while Ray drains it
    names: Mapping[
        str, Sequence[str]
    ] = {}  # what HAProxy is told of the model (cluster/choose_model.py)


HERE = Doorway()  # of this process


def outermost() -> list[Middleware]:
    """Install our HTTP protocol in uvicorn, and return the middleware around Ray's application.

    Ray calls this before it starts a server (service/cluster/ingress.py names it).
    """
    transport.install()
    return [Middleware(Entrance)]


class Entrance:
    """ASGI middleware that sends requests to the door, and only Ray's probe to Ray's application.

    Args:
        ray: Ray's application.
        doorway: holds the door once the replica has started.
    """

    def __init__(self, ray: ASGIApp, doorway: Doorway = HERE) -> None:
        self._ray, self._doorway = ray, doorway
        self._prefix: str | None = None  # where Ray has mounted us; None: not known, or not yet
        self._prefix_expires = 0.0  # when to ask Ray again, on time.monotonic's clock
        self._prefix_task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer a connection: the probe by Ray, a request by the door, or 503 without a door."""
        if scope["type"] == "websocket":  # we serve none, so no key and no host lets it in
            return await send({"type": "websocket.close"})
        if scope["type"] != "http" or self._is_probe(scope):
            send_probe = partial(self._send_probe_answer, send)
            return await self._ray({**scope, "headers": []}, receive, send_probe)
        door = self._doorway.door
        if door and _is_at(scope, choose_model.NAMES):
            return await _send(send, 200, json.dumps(self._doorway.names).encode(), {})
        if door and time.monotonic() >= self._prefix_expires:
            await self._refresh_prefix()
        if door is None or self._prefix is None:
            return await _refuse(send, scope["path"])
        scope["root_path"] = scope.get("root_path", "") + self._prefix
        await door(scope, receive, send)

    def _is_probe(self, scope: Scope) -> bool:
        """Tell whether a request is Ray's probe, without a body or an upgrade."""
        if not _is_at(scope, PROBE):
            return False
        names = {name for name, _ in scope["headers"]}
        return scope["method"] in ("GET", "HEAD") and names.isdisjoint(BODY_HEADERS)

    async def _send_probe_answer(self, send: Send, message: Message) -> None:
        """Send Ray's answer to the probe, with 200 in place of 503 while the replica stays."""
        if message.get("status") == UNREADY and self._doorway.stays():
            message = {**message, "status": 200}
        await send(message)

    async def _refresh_prefix(self) -> None:
        """Ask Ray where we are mounted; requests that arrive meanwhile await the same answer."""
        if self._prefix_task is None or self._prefix_task.done():
            self._prefix_task = asyncio.create_task(self._ask_ray())
        await asyncio.shield(self._prefix_task)  # a client that leaves does not end it for others

    async def _ask_ray(self) -> None:
        """Set the prefix by Ray's answer to GET /-/routes; a failure leaves it as it was."""
        messages = list[Message]()

        async def receive() -> Message:
            """Return the whole of an empty body."""
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            """Collect a part of Ray's answer."""
            messages.append(message)

        loop = self._doorway.loop or asyncio.get_running_loop()
        scope = {"type": "http", "method": "GET", "path": ROUTES, "query_string": b""}
        try:
            if loop is not asyncio.get_running_loop():
                raise RuntimeError("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD must not be 1")
            async with asyncio.timeout(PLACED_SECONDS):
                await self._ray({**scope, "headers": []}, receive, send)
            if messages[0]["status"] == 200:  # else Ray has not mounted us yet
                body = b"".join(message.get("body", b"") for message in messages)
                self._prefix = max(json.loads(body), key=len).rstrip("/")
        except Exception:
            logger.exception("place unknown")
        finally:
            self._prefix_expires = time.monotonic() + PLACED_SECONDS


def _is_at(scope: Scope, path: str) -> bool:
    """Tell whether a request is sent to a path in this very spelling, encoded nowhere."""
    return bool(scope["raw_path"] == (scope.get("root_path", "") + path).encode())


async def _refuse(send: Send, path: str) -> None:
    """Answer 503: no replica serves in this process, or not yet; HAProxy asks another one."""
    request_id, refused = uuid.uuid4().hex, Refused("not_ready", retry_after=1)
    headers = {
        "content-type": MEDIA_TYPE,
        "retry-after": "1",
        "connection": "close",  # a body may follow, and is not read
        "x-content-type-options": "nosniff",
        REQUEST_ID: request_id,
    }
    body = refusals.problem_details(refused, request_id, path)
    await _send(send, refused.status, body, headers)


async def _send(send: Send, status: int, body: bytes, headers: Mapping[str, str]) -> None:
    """Send an answer whole."""
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": raw})
    await send({"type": "http.response.body", "body": body, "more_body": False})
