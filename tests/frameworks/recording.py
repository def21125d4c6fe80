"""Requests of other people's clients, as they were sent, with the shapes of their answers."""

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from starlette.types import ASGIApp, Message, Receive, Scope, Send

STORED = Path(__file__).with_name("recorded.json")
# of the headers those that may change an answer; others tell of the client's machine
HEADERS = ("accept", "accept-encoding", "authorization", "content-type")


class Recorder:
    """Keeps what passes through to an application, and the shape of what comes back."""

    def __init__(self, app: ASGIApp) -> None:
        self._app = app
        self.requests: list[dict[str, Any]] = []

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        sent, answered = bytearray(), bytearray()
        request: dict[str, Any] = {"method": scope["method"], "path": scope["path"]}

        async def hear() -> Message:
            message = await receive()
            sent.extend(message.get("body", b""))
            return message

        async def say(message: Message) -> None:
            request["status"] = message.get("status", request.get("status"))
            answered.extend(message.get("body", b""))
            await send(message)

        await self._app(scope, hear, say)
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        request["headers"] = {name: headers[name] for name in HEADERS if name in headers}
        request |= {"body": sent.decode(), "answer": shape(json.loads(answered))}
        self.requests.append(request)


def shape(value: Any) -> Any:
    """What a client relies on: names, kinds, lengths; the kinds of a list's entries once each."""
    if isinstance(value, dict):
        return {name: shape(entry) for name, entry in value.items()}
    if isinstance(value, list):
        return [len(value), *_once(map(shape, value))]
    return type(value).__name__


def _once(shapes: Iterable[Any]) -> list[Any]:
    kinds: list[Any] = []
    for one in shapes:
        if one not in kinds:
            kinds.append(one)
    return kinds
