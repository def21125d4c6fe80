"""ASGI: routes, error -> refusal; every answer counted and named.

What reaches it has passed service/guard.py: the body is within its limit, the request has an id.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Iterator
from contextlib import ExitStack
from importlib.resources import files

import orjson
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.answer import JSON, PIECE_BYTES, SAFETENSORS, Encoded
from service.dialects import native
from service.dialects.dialect import Call, Say
from service.gateway import Gateway
from service.guard import REFUSAL, REQUEST_ID
from service.metrics import CONTENT_TYPE
from service.openapi import document
from service.refusals import UNROUTED, Fault, Refused, refusal

logger = logging.getLogger(__name__)

REPLICA, DEADLINE = "x-headlight-replica", "x-headlight-deadline-ms"
LONGEST_DEADLINE = 9  # digits of milliseconds
HTML = "text/html; charset=utf-8"

Handler = Callable[[Request], Awaitable[Response]]


def application(gateway: Gateway, scrape: Callable[[], Awaitable[bytes]]) -> ASGIApp:
    """The routes of one replica.

    Args:
        scrape: the metrics of all replicas, as Prometheus text.
    """
    routes = Routes(gateway, scrape)
    paths = {
        "/v1/encode": ("POST", routes.encode),
        "/v1/attend": ("POST", routes.attend),
        "/v1/explain": ("POST", routes.explain),
        "/v1/heads": ("GET", routes.heads),
        "/live": ("GET", routes.live),
        "/ready": ("GET", routes.ready),
        "/info": ("GET", routes.info),
        "/metrics": ("GET", routes.metrics),
        "/docs": ("GET", routes.docs),
        "/openapi.json": ("GET", routes.openapi),
    }
    app = Starlette(
        routes=[
            Route(path, _refusing(do, native.problem), methods=[method])
            for path, (method, do) in paths.items()
        ],
        exception_handlers={HTTPException: _unrouted},
    )
    app.router.redirect_slashes = False
    return Counted(app, gateway, frozenset(paths))


class Counted:
    """Counts and names every answer of the app it wraps, whatever it is."""

    def __init__(self, app: ASGIApp, gateway: Gateway, routes: frozenset[str]) -> None:
        self._app, self._gateway, self._routes = app, gateway, routes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        route = scope["path"] if scope["path"] in self._routes else "other"
        with ExitStack() as counting:
            seen = counting.enter_context(self._gateway.metrics.request(route))

            async def named(message: Message) -> None:
                if message["type"] == "http.response.start":
                    seen.code = message["status"]
                    MutableHeaders(scope=message)[REPLICA] = self._gateway.replica
                elif not message.get("more_body"):
                    counting.close()  # before the client can know, so that its count is ours
                await send(message)

            await self._app({**scope, "seen": seen}, receive, named)


class Routes:
    """What each path answers."""

    def __init__(self, gateway: Gateway, scrape: Callable[[], Awaitable[bytes]]) -> None:
        self._gateway, self._scrape = gateway, scrape

    async def encode(self, request: Request) -> Response:
        """POST /v1/encode."""
        _check_media_type(request)
        deadline, seen = time.monotonic() + self._seconds(request), request.scope["seen"]
        call = native.parse(await request.body(), accepted(request.headers.get("accept", "*/*")))
        dry = _flag(request, "dry_run")
        do = self._gateway.dry_run if dry else self._gateway.encode
        done = await do(call.request, deadline, seen, numbers=call.numbers)
        if isinstance(done, dict):
            return Response(orjson.dumps(done), media_type=JSON)
        return await _written(call, done)

    async def attend(self, request: Request) -> Response:
        """POST /v1/attend: the mechanism without a model."""
        _check_media_type(request)
        deadline = time.monotonic() + self._seconds(request)
        pieces = await self._gateway.lessons.attend(await request.body(), deadline)
        return Response(await _join(pieces), media_type=JSON)

    async def explain(self, request: Request) -> Response:
        """POST /v1/explain: one text through one layer, step by step."""
        _check_media_type(request)
        deadline, seen = time.monotonic() + self._seconds(request), request.scope["seen"]
        pieces = await self._gateway.lessons.explain(await request.body(), deadline, seen)
        return Response(await _join(pieces), media_type=JSON)

    async def heads(self, request: Request) -> Response:
        """GET /v1/heads: what each head of the model does, as measured."""
        deadline = time.monotonic() + self._seconds(request)
        return Response(orjson.dumps(await self._gateway.heads.answer(deadline)), media_type=JSON)

    async def live(self, request: Request) -> Response:
        """GET /live: the process answers."""
        return Response(b'{"status":"live"}', media_type=JSON)

    async def ready(self, request: Request) -> Response:
        """GET /ready: the forward path lately proved itself."""
        try:
            self._gateway.check_health()
        except RuntimeError:
            logger.warning("not ready", exc_info=True)
            raise Refused("not_ready", retry_after=1) from None
        return Response(b'{"status":"ready"}', media_type=JSON)

    async def info(self, request: Request) -> Response:
        """GET /info: the model and the limits."""
        return Response(orjson.dumps(self._gateway.info()), media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: every replica's metrics."""
        return Response(await self._scrape(), media_type=CONTENT_TYPE)

    async def docs(self, request: Request) -> Response:
        """GET /docs: the API for people, from a file of ours."""
        return Response(files("service").joinpath("page/docs.html").read_bytes(), media_type=HTML)

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json: the API for programs."""
        return Response(orjson.dumps(document()), media_type=JSON)

    def _seconds(self, request: Request) -> float:
        """How long this request may take; a header may shorten it."""
        given, most = request.headers.get(DEADLINE), self._gateway.settings.deadline_seconds
        if given is None:
            return most
        if not given.isdecimal() or not given.isascii() or len(given) > LONGEST_DEADLINE:
            raise Refused("out_of_range", [Fault((DEADLINE,), "out_of_range")])
        return min(int(given) / 1000, most)


def accepted(accept: str) -> str:
    """The media type to answer in: JSON, or safetensors where it is preferred.

    Raises:
        Refused: the client accepts neither.
    """
    weights = {JSON: 0.0, SAFETENSORS: 0.0}
    exact: set[str] = set()
    for part in accept.lower().split(","):
        name, _, parameters = part.strip().partition(";")
        for media_type in weights:
            general = name.strip() in ("*/*", "application/*")
            if name.strip() == media_type or (general and media_type not in exact):
                weights[media_type] = _quality(parameters)
                exact |= set() if general else {media_type}
    best = max(weights, key=weights.__getitem__)  # of equals the first, JSON
    if not weights[best]:
        raise Refused("not_acceptable")
    return best


def _quality(parameters: str) -> float:
    name, _, value = parameters.strip().partition("=")
    if name.strip() != "q":
        return 1.0
    try:
        return min(max(float(value), 0.0), 1.0)
    except ValueError:
        return 0.0


def _check_media_type(request: Request) -> None:
    given = request.headers.get("content-type", JSON).partition(";")[0].strip().lower()
    coded = request.headers.get("content-encoding", "identity").strip().lower() != "identity"
    if given != JSON or coded:
        raise Refused("unsupported_media_type")


def _flag(request: Request, name: str) -> bool:
    """A switch in the query; absent is off."""
    given = request.query_params.get(name, "false")
    if given not in ("true", "false"):
        raise Refused("out_of_range", [Fault((name,), "out_of_range")])
    return given == "true"


async def _written(call: Call, encoded: Encoded) -> Response:
    return Response(await _join(call.write(encoded)), media_type=call.media_type)


async def _join(pieces: Iterator[bytes]) -> bytes:
    """A body from its pieces; other requests get a turn between large ones."""
    parts, since = [], 0
    for piece in pieces:
        parts.append(piece)
        since += len(piece)
        if since > PIECE_BYTES:
            since = 0
            await asyncio.sleep(0)
    return b"".join(parts)


def _refusing(do: Handler, say: Say) -> Handler:
    """Answer a handler's errors in its dialect; the one place where they become refusals."""

    async def answered(request: Request) -> Response:
        try:
            decided = request.headers.get(REFUSAL.decode())
            if decided:
                raise Refused(decided)
            return await do(request)
        except Exception as error:
            return _problem(request, refusal(error), say)

    return answered


async def _unrouted(request: Request, error: Exception) -> Response:
    """What the router says when no route takes the request."""
    if not isinstance(error, HTTPException):
        raise error
    response = _problem(request, Refused(UNROUTED[error.status_code]), native.problem)
    response.headers.update(error.headers or {})
    return response


def _problem(request: Request, refused: Refused, say: Say) -> Response:
    if refused.code == "internal":
        logger.exception("request failed")
    said = say(refused, request.headers.get(REQUEST_ID, ""))
    response = Response(said.body, said.status, said.headers, said.media_type)
    if refused.retry_after is not None:
        response.headers["retry-after"] = str(refused.retry_after)
    return response
