"""ASGI: routes, error -> refusal; every answer counted and named.

What reaches it has passed guard.py: the body is within its limit, the request has an id.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from importlib.resources import files
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api import foreign, media
from service.api.dialect import Say
from service.api.document import document
from service.api.foreign import Handler
from service.api.native import call as native
from service.api.open_inference import call as inference_protocol
from service.api.open_inference.routes import VERSION_PART, InferenceRoutes
from service.edge.auth import Keys
from service.edge.guard import INFERENCE, REFUSAL
from service.encode.answer import JSON, SAFETENSORS, join
from service.encode.gateway import Gateway
from service.observe.metrics import OPENMETRICS, TEXT
from service.observe.observer import TRACEPARENT
from service.observe.record import REQUEST_ID
from service.refusals import UNROUTED, Refused, refusal

logger = logging.getLogger(__name__)

REPLICA, DEADLINE = "x-headlight-replica", "x-headlight-deadline-ms"
LONGEST_DEADLINE = 9  # digits of milliseconds
HTML = "text/html; charset=utf-8"

UNKNOWN = "other"  # the route, in metrics, of what no route takes


Scrape = Callable[[bool], Awaitable[bytes]]


def application(gateway: Gateway, scrape: Scrape) -> ASGIApp:
    """The routes of one replica.

    Args:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
    """
    routes = Routes(gateway, scrape)
    own = {
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
    rows: list[tuple[str, str, Handler, Say]]
    rows = [(path, method, do, native.problem) for path, (method, do) in own.items()]
    rows += [(path, *row) for path, row in foreign.rows(gateway, routes.seconds).items()]
    inference = InferenceRoutes(gateway, routes.seconds).paths()
    rows += [(path, *row, inference_protocol.problem) for path, row in inference.items()]
    says = {path: say for path, _, _, say in rows}
    app = Starlette(
        routes=[
            Route(path, _refusing(path, do, say), methods=[method])
            for path, method, do, say in rows
        ],
        exception_handlers={HTTPException: _unrouted(says)},
    )
    app.router.redirect_slashes = False
    awaited = {path: method for path, method, _, _ in rows if method == "POST" or path in own}
    labels = {_label(path): method for path, method in awaited.items()}
    gateway.metrics.expect(labels | {UNKNOWN: "GET"})
    shared = _shared(app, gateway.settings.cors_origins)
    return Counted(shared, gateway)


def _shared(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages of these origins ask and read; without any, no answer says a word of it."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("Authorization", REQUEST_ID, DEADLINE),
        expose_headers=(REQUEST_ID, REPLICA, "Retry-After"),
    )


class Counted:
    """Counts and names every answer of the app it wraps, whatever it is."""

    def __init__(self, app: ASGIApp, gateway: Gateway) -> None:
        self._app, self._gateway = app, gateway
        # the guard's come from its machine's environment, these with the deployment
        self._keys = Keys(gateway.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        with ExitStack() as counting:
            seen = counting.enter_context(self._gateway.observer.request(UNKNOWN, scope))
            held: list[Message] = []

            async def named(message: Message) -> None:
                if message["type"] == "http.response.start":
                    seen.code = message["status"]
                    headers = MutableHeaders(scope=message)
                    headers[REPLICA] = self._gateway.replica
                    if seen.trace:
                        headers[TRACEPARENT] = seen.trace.traceparent
                    # until the body is there: of a replica that dies before, others can be asked
                    held.append(message)
                    return
                seen.bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    counting.close()  # before the client can know, so that its count is ours
                while held:
                    await send(held.pop())
                await send(message)

            await self._app({**scope, **self._decided(scope), "seen": seen}, receive, named)

    def _decided(self, scope: Scope) -> dict[str, Any]:
        """Refuse whoever has no key, if the guard has not done so."""
        headers = scope["headers"]
        if any(name == REFUSAL for name, _ in headers) or self._keys.admit(scope):
            return {}
        return {"headers": [*headers, (REFUSAL, b"unauthorized")]}


class Routes:
    """What each path answers."""

    def __init__(self, gateway: Gateway, scrape: Scrape) -> None:
        self._gateway, self._scrape = gateway, scrape

    async def encode(self, request: Request) -> Response:
        """POST /v1/encode."""
        media_type = media.given(request, JSON, SAFETENSORS)
        deadline, seen = time.monotonic() + self.seconds(request), request.scope["seen"]
        accepted = media.accepted(request.headers.get("accept", "*/*"))
        most_json = self._gateway.settings.max_body_bytes
        with seen.stage("parse"):
            call = native.parse(await request.body(), media_type, accepted, most_json)
        dry = _flag(request, "dry_run")
        do = self._gateway.dry_run if dry else self._gateway.encode
        done = await do(call.request, deadline, seen, numbers=call.numbers)
        if isinstance(done, dict):
            return Response(orjson.dumps(done), media_type=JSON)
        with seen.stage("serialize"):
            body = await join(call.write(done), self._gateway.writing)
        return Response(body, media_type=call.media_type)

    async def attend(self, request: Request) -> Response:
        """POST /v1/attend: the mechanism without a model."""
        media.given(request, JSON)
        deadline, seen = time.monotonic() + self.seconds(request), request.scope["seen"]
        pieces = await self._gateway.lessons.attend(await request.body(), deadline, seen)
        with seen.stage("serialize"):
            return Response(await join(pieces, self._gateway.writing), media_type=JSON)

    async def explain(self, request: Request) -> Response:
        """POST /v1/explain: one text through one layer, step by step."""
        media.given(request, JSON)
        deadline, seen = time.monotonic() + self.seconds(request), request.scope["seen"]
        pieces = await self._gateway.lessons.explain(await request.body(), deadline, seen)
        with seen.stage("serialize"):
            return Response(await join(pieces, self._gateway.writing), media_type=JSON)

    async def heads(self, request: Request) -> Response:
        """GET /v1/heads: what each head of the model does, as measured."""
        deadline = time.monotonic() + self.seconds(request)
        return Response(orjson.dumps(await self._gateway.heads.answer(deadline)), media_type=JSON)

    async def live(self, request: Request) -> Response:
        """GET /live: the process answers."""
        return Response(b'{"status":"live"}', media_type=JSON)

    async def ready(self, request: Request) -> Response:
        """GET /ready: the forward path lately proved itself."""
        self._gateway.check_ready()
        return Response(b'{"status":"ready"}', media_type=JSON)

    async def info(self, request: Request) -> Response:
        """GET /info: the model and the limits."""
        return Response(orjson.dumps(foreign.info(self._gateway)), media_type=JSON)

    async def metrics(self, request: Request) -> Response:
        """GET /metrics: every replica's metrics."""
        openmetrics = _prefers_openmetrics(request.headers.get("accept", ""))
        media_type = OPENMETRICS if openmetrics else TEXT
        return Response(await self._scrape(openmetrics), 200, {"vary": "accept"}, media_type)

    async def docs(self, request: Request) -> Response:
        """GET /docs: the API for people, from a file of ours."""
        return Response(files("service").joinpath("page/docs.html").read_bytes(), media_type=HTML)

    async def openapi(self, request: Request) -> Response:
        """GET /openapi.json: the API for programs."""
        mounted = {"servers": [{"url": request.scope.get("root_path") or "/"}]}
        described = await asyncio.to_thread(document)  # the first is 0.1 s of work
        return Response(orjson.dumps(described | mounted), media_type=JSON)

    def seconds(self, request: Request) -> float:
        """How long this request may take; a header may shorten it."""
        given, most = request.headers.get(DEADLINE), self._gateway.settings.deadline_seconds
        if given is None:
            return most
        if not given.isdecimal() or not given.isascii() or len(given) > LONGEST_DEADLINE:
            raise Refused.at("out_of_range", DEADLINE)
        return min(int(given) / 1000, most)


def _prefers_openmetrics(accept: str) -> bool:
    """Whether a scraper reads it at all; those that do read all of it."""
    names = (part.partition(";")[0].strip() for part in accept.lower().split(","))
    return OPENMETRICS.partition(";")[0] in names


def _flag(request: Request, name: str) -> bool:
    """A switch in the query; absent is off."""
    given = request.query_params.get(name, "false")
    if given not in ("true", "false"):
        raise Refused.at("out_of_range", name)
    return given == "true"


def _refusing(path: str, do: Handler, say: Say) -> Handler:
    """Answer a handler's errors in its dialect; the one place where they become refusals."""

    label = _label(path)

    async def answered(request: Request) -> Response:
        request.scope["seen"].route = label
        try:
            decided = request.headers.get(REFUSAL.decode())
            if decided:
                raise Refused(decided)
            return await do(request)
        except Exception as error:
            return _problem(request, refusal(error), say)

    return answered


def _label(path: str) -> str:
    """How metrics name a route: what is alike has one name, what cannot be answered none."""
    if path in foreign.OTHER_TASKS:
        return UNKNOWN
    alike = foreign.ALIKE.get(path, path).replace(VERSION_PART, "")
    return compile_path(alike)[1]


def _unrouted(says: Mapping[str, Say]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """What the router says when no route takes the request, in the words of the path's own API."""

    async def answered(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        routes = (route for route in request.app.routes if isinstance(route, Route))
        known = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
        route = next(known, None)
        request.scope["seen"].route = _label(route.path) if route else UNKNOWN
        say = says[route.path] if route else _family(request.url.path)
        decided = request.headers.get(REFUSAL.decode())
        response = _problem(request, Refused(decided or UNROUTED[error.status_code]), say)
        if not decided:
            response.headers.update(error.headers or {})
        return response

    return answered


def _family(path: str) -> Say:
    """How a path that no route takes is refused."""
    under = f"{path}/".startswith(INFERENCE)
    return inference_protocol.problem if under else native.problem


def _problem(request: Request, refused: Refused, say: Say) -> Response:
    seen = request.scope["seen"]
    seen.refused = refused.code
    if refused.code == "internal":
        logger.exception("request failed", extra=seen.names())
    said = say(refused, request.headers.get(REQUEST_ID, ""))
    response = Response(said.body, said.status, said.headers, said.media_type)
    if refused.retry_after is not None:
        response.headers["retry-after"] = str(refused.retry_after)
    if refused.code == "unauthorized":
        response.headers["www-authenticate"] = "Bearer"
    return response
