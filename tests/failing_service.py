"""A service that fails first: what a client of ours must get over."""

import asyncio
import time
from dataclasses import dataclass, field
from typing import Any

import orjson
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.tables.refusals import MEDIA_TYPE, Refused, problem_details

Failure = tuple[int, dict[str, str]] | Refused | None


@dataclass
class FailingService:
    """An application whose first answers to POST /v1/encode are not its own.

    Args:
        failures: how it fails in turn: a status and headers, a refusal of the service's own, or
            None: the connection breaks.
        seconds: how long it thinks before its own answers.
        limits: what GET /info says of its limits where they are not the application's.
        says: the same of the rest of GET /info.
    """

    app: ASGIApp
    failures: list[Failure] = field(default_factory=list)
    seconds: float = 0.0
    limits: dict[str, int] = field(default_factory=dict)
    says: dict[str, str] = field(default_factory=dict)
    came: list[float] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    bodies: list[Any] = field(default_factory=list)
    busy: int = 0
    most: int = 0  # requests at once

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["path"] == "/info":
            return await self.info(scope, receive, send)
        if scope["path"] != "/v1/encode":
            return await self.app(scope, receive, send)
        body = b""
        while (message := await receive())["type"] == "http.request":
            body += message["body"]
            if not message.get("more_body"):
                break
        self.came.append(time.monotonic())
        self.headers.append({name.decode(): value.decode() for name, value in scope["headers"]})
        self.bodies.append(orjson.loads(body))
        if self.failures:
            return await self.fail(self.failures.pop(0), send)
        self.busy += 1
        self.most = max(self.most, self.busy)
        await asyncio.sleep(self.seconds)
        try:
            await self.app(scope, replay(body, receive), send)
        finally:
            self.busy -= 1

    async def info(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application's own, with other limits."""

        async def limited(message: Message) -> None:
            if message["type"] == "http.response.start":
                del MutableHeaders(scope=message)["content-length"]
            elif message["body"]:
                told = orjson.loads(message["body"])
                told["limits"] |= self.limits
                message["body"] = orjson.dumps(told | self.says)
            await send(message)

        await self.app(scope, receive, limited)

    async def fail(self, how: Failure, send: Send) -> None:
        """Fail; the server closes a connection of which less came than was promised."""
        body = b"busy"
        if isinstance(how, Refused):
            body = problem_details(how, "r1")
            how = how.status, {"content-type": MEDIA_TYPE}
        status, headers = how or (200, {"content-length": "1000"})
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": status, "headers": raw})
        await send({"type": "http.response.body", "body": body, "more_body": how is None})


def replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives a body once."""
    left: list[Message] = [{"type": "http.request", "body": body, "more_body": False}]

    async def replayed() -> Message:
        return left.pop() if left else await receive()

    return replayed
