"""The outermost layer: makes a request safe to pass on.

It wraps whatever takes connections, each replica or Ray's Python proxy: reads the body up to the
limit, drops the headers by which a client could steer Ray, and gives the request its id.
"""

import uuid

from starlette.datastructures import Headers, MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import settings
from service.answer import INFERENCE_HEADER, OCTETS, SAFETENSORS

REQUEST_ID = "x-request-id"
INFERENCE = "/v2/"  # routes where a header may announce bytes, often without a media type
REFUSAL = b"x-headlight-refusal"  # to the routes: answer this, there is no body
# Ray Serve obeys these; from outside they would switch its protections off
RAYS_OWN = (
    b"x-request-timeout-seconds",
    b"x-request-disconnect-disabled",
    b"x-serve-router-",
    b"serve_multiplexed_model_id",
    b"serve-multiplexed-model-id",
    REFUSAL,
)
ID_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
LONGEST_ID = 128


def outermost() -> list[Middleware]:
    """What wraps replicas and Ray's proxy alike; limits come from the HEADLIGHT_* variables."""
    limits = settings.load({})
    return [
        Middleware(
            Guard,
            max_body_bytes=limits.max_body_bytes,
            max_binary_body_bytes=limits.max_binary_body_bytes,
        )
    ]


class Guard:
    """Makes a request safe to pass on: a body within its limit, no header of Ray's, an id."""

    def __init__(self, app: ASGIApp, max_body_bytes: int, max_binary_body_bytes: int) -> None:
        self._app = app
        self._json, self._binary = max_body_bytes, max_binary_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        headers = [pair for pair in scope["headers"] if not pair[0].startswith(RAYS_OWN)]
        headers, request_id = _with_id(headers)
        binary = _binary(scope["path"], Headers(raw=headers))
        body = await _body(receive, headers, self._binary if binary else self._json)
        if body is None:
            headers.append((REFUSAL, b"body_too_large"))

        async def named(message: Message) -> None:
            if message["type"] == "http.response.start":
                MutableHeaders(scope=message)[REQUEST_ID] = request_id  # once, whoever set it too
            await send(message)

        await self._app({**scope, "headers": headers}, _replay(body or b"", receive), named)


def _binary(path: str, headers: Headers) -> bool:
    """Whether a body may hold arrays as bytes; how much of it is JSON is the route's to check."""
    announced = INFERENCE_HEADER in headers and path.startswith(INFERENCE)
    return announced or headers.get("content-type", "").lower().startswith((OCTETS, SAFETENSORS))


def _with_id(headers: list[tuple[bytes, bytes]]) -> tuple[list[tuple[bytes, bytes]], str]:
    """The headers with exactly one request id: the client's if it is harmless, else a new one."""
    name = REQUEST_ID.encode()
    given = [value for key, value in headers if key == name]
    fine = (
        len(given) == 1 and 0 < len(given[0]) <= LONGEST_ID and ID_CHARACTERS.issuperset(given[0])
    )
    request_id = given[0] if fine else uuid.uuid4().hex.encode()
    return [*(pair for pair in headers if pair[0] != name), (name, request_id)], request_id.decode()


async def _body(receive: Receive, headers: list[tuple[bytes, bytes]], limit: int) -> bytes | None:
    """The whole body, or None when it is larger than the limit; then the rest is not read."""
    declared = Headers(raw=headers).get("content-length", "0")
    if declared.isdecimal() and int(declared) > limit:
        return None
    body = bytearray()
    while True:
        message = await receive()
        body += message.get("body", b"")
        if len(body) > limit:
            return None
        if not message.get("more_body"):
            return bytes(body)


def _replay(body: bytes, receive: Receive) -> Receive:
    """A receive that gives the body once, then whatever the client does next."""
    given = False

    async def replayed() -> Message:
        nonlocal given
        if given:
            return await receive()
        given = True
        return {"type": "http.request", "body": body, "more_body": False}

    return replayed
