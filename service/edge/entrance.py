"""The application that Ray's server calls instead of Ray's own: this process's door, or a wall.

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
from collections.abc import Callable
from functools import partial

from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import refusals
from service.edge import transport
from service.observe.record import REQUEST_ID
from service.refusals import MEDIA_TYPE, Refused

logger = logging.getLogger(__name__)

PROBE, ROUTES = "/-/healthz", "/-/routes"  # Ray's: the probe, and where applications are mounted
UNREADY = refusals.REFUSALS["not_ready"].status
PLACED_SECONDS = 2.0  # until Ray is asked again where we are mounted
# A probe with any of these headers is more than a probe: it goes to the door, which refuses it
BODIES = frozenset((b"content-length", b"transfer-encoding", b"upgrade"))


class Doorway:
    """Where a replica leaves its door for Ray's server, which is made after it."""

    door: ASGIApp | None = None
    loop: asyncio.AbstractEventLoop | None = None  # the loop in which it serves
    stays: Callable[[], bool] = staticmethod(lambda: False)  # if it serves on though Ray says no


HERE = Doorway()


def outermost() -> list[Middleware]:
    """Install our protocol in uvicorn, and return the middleware around Ray's application.

    Ray calls this before it starts a server.
    """
    transport.install()
    return [Middleware(Entrance)]


class Entrance:
    """Leads requests past Ray's application to the door.

    Args:
        ray: Ray's application.
        doorway: where the door will be found.
    """

    def __init__(self, ray: ASGIApp, doorway: Doorway = HERE) -> None:
        self._ray, self._doorway = ray, doorway
        self._place: str | None = None  # the part of a request's path that is Ray's
        self._until = 0.0  # when to ask Ray again
        self._place_task: asyncio.Task[None] | None = None

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "websocket":  # we serve none, so no key and no host lets it in
            return await send({"type": "websocket.close"})
        if scope["type"] != "http" or self._probes(scope):
            return await self._ray({**scope, "headers": []}, receive, partial(self._pass_on, send))
        door = self._doorway.door
        if door and time.monotonic() >= self._until:
            await self._find_place()
        if door is None or self._place is None:
            return await _refuse(send)
        scope["root_path"] = scope.get("root_path", "") + self._place
        await door(scope, receive, send)

    def _probes(self, scope: Scope) -> bool:
        """Tell whether a request is Ray's probe and nothing more."""
        if scope["path"] != scope.get("root_path", "") + PROBE:
            return False
        named = {name for name, _ in scope["headers"]}
        return scope["method"] in ("GET", "HEAD") and named.isdisjoint(BODIES)

    async def _pass_on(self, send: Send, message: Message) -> None:
        """Pass on what Ray says to the probe, but not that a replica leaves while it stays."""
        if message.get("status") == UNREADY and self._doorway.stays():
            message = {**message, "status": 200}
        await send(message)

    async def _find_place(self) -> None:
        """Ask Ray where we are mounted; requests that arrive meanwhile await the same answer."""
        if self._place_task is None or self._place_task.done():
            self._place_task = asyncio.create_task(self._ask_ray())
        await asyncio.shield(self._place_task)  # a client that leaves does not end it for others

    async def _ask_ray(self) -> None:
        messages = list[Message]()

        async def receive() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        async def send(message: Message) -> None:
            messages.append(message)

        loop = self._doorway.loop or asyncio.get_running_loop()
        question = {"type": "http", "method": "GET", "path": ROUTES, "query_string": b""}
        try:
            if loop is not asyncio.get_running_loop():
                raise RuntimeError("RAY_SERVE_RUN_USER_CODE_IN_SEPARATE_THREAD must not be 1")
            async with asyncio.timeout(PLACED_SECONDS):
                await self._ray({**question, "headers": []}, receive, send)
            if messages[0]["status"] == 200:  # else Ray has not mounted us yet
                body = b"".join(message.get("body", b"") for message in messages)
                self._place = max(json.loads(body), key=len).rstrip("/")
        except Exception:
            logger.exception("place unknown")
        finally:
            self._until = time.monotonic() + PLACED_SECONDS


async def _refuse(send: Send) -> None:
    """Say that no replica answers here, or not yet; HAProxy asks another one."""
    request_id, refused = uuid.uuid4().hex, Refused("not_ready", retry_after=1)
    headers = {
        "content-type": MEDIA_TYPE,
        "retry-after": "1",
        "connection": "close",  # a body may follow, and is not read
        "x-content-type-options": "nosniff",
        REQUEST_ID: request_id,
    }
    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refused.status, "headers": raw})
    body = refusals.problem_details(refused, request_id)
    await send({"type": "http.response.body", "body": body, "more_body": False})
