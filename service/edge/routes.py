"""ASGI: routes, error -> refusal; every answer counted and named.

What reaches it has passed guard.py: the body is within its limit, the request has an id.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route, compile_path
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api.dialect import Wording
from service.api.native import call as native
from service.api.open_inference import call as open_inference
from service.api.openai import call as openai
from service.api.operations import (
    INFER_MODEL,
    NATIVE,
    OPERATIONS,
    PAGES,
    VERSION_PART,
    Operation,
)
from service.api.tei import call as tei
from service.edge.auth import Keys
from service.edge.deadline import DEADLINE
from service.edge.encoding import Encoding, Handler
from service.edge.guard import INFERENCE, REFUSAL
from service.edge.handlers import Handlers, Scrape
from service.observe.record import REQUEST_ID, TRACEPARENT
from service.refusals import UNROUTED, Refused, refusal
from service.replica import Replica

logger = logging.getLogger(__name__)

REPLICA = "x-headlight-replica"
UNKNOWN = "other"  # the route, in metrics, of what no route takes
ALIKE = {"/": "/embed"}  # one route by two paths


def application(replica: Replica, scrape: Scrape) -> ASGIApp:
    """The routes of one replica.

    Args:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
    """
    handlers = bound(replica, scrape)
    rows = [*OPERATIONS, *PAGES]
    says = {_pattern(row.path): row.api.problem for row in rows}
    app = Starlette(
        routes=[
            Route(
                _pattern(row.path),
                _refusing(row, handlers[row.path, row.method]),
                methods=[row.method.upper()],
            )
            for row in rows
        ],
        exception_handlers={HTTPException: _unrouted(says)},
    )
    app.router.redirect_slashes = False
    awaited = (row for row in rows if row.method == "post" or row.api is NATIVE)
    labels = {_label(row.path): row.method.upper() for row in awaited}
    replica.metrics.expect(labels | {UNKNOWN: "GET"})
    return Counted(_shared(app, replica.settings.cors_origins), replica)


def bound(replica: Replica, scrape: Scrape) -> dict[tuple[str, str], Handler]:
    """What each path and method of the table does."""
    encoding, other = Encoding(replica), Handlers(replica, scrape)
    handlers: dict[tuple[str, str], Handler] = {
        ("/v1/encode", "post"): encoding.native(),
        ("/v1/attend", "post"): other.attend,
        ("/v1/explain", "post"): other.explain,
        ("/v1/heads", "get"): other.heads,
        ("/live", "get"): other.live,
        ("/ready", "get"): other.ready,
        ("/info", "get"): other.info,
        ("/metrics", "get"): other.metrics,
        ("/docs", "get"): other.docs,
        ("/openapi.json", "get"): other.openapi,
        ("/v1/embeddings", "post"): encoding.plain(openai.parse),
        ("/v1/models", "get"): other.models,
        ("/v1/models/{id}", "get"): other.model,
        ("/", "post"): encoding.plain(tei.embed),
        ("/embed", "post"): encoding.plain(tei.embed),
        ("/embed_all", "post"): encoding.plain(tei.embed_all),
        ("/similarity", "post"): encoding.plain(tei.similarity),
        ("/tokenize", "post"): other.tokenize,
        ("/decode", "post"): other.decode,
        ("/health", "get"): other.health,
        ("/v2", "get"): other.server,
        ("/v2/health/live", "get"): other.server_live,
        ("/v2/health/ready", "get"): other.server_ready,
    }
    handlers |= {(path, "post"): other.other_task for path in tei.OTHER_TASKS}
    for path in (INFER_MODEL, INFER_MODEL + VERSION_PART):
        handlers[path, "get"] = other.described
        handlers[f"{path}/ready", "get"] = other.model_ready
        handlers[f"{path}/infer", "post"] = encoding.infer()
    return handlers


class ModelConvertor(PathConvertor):
    """A model's name in a path: it may hold slashes, but not the verb that ends the path."""

    regex = "(?:(?!/infer$|/ready$).)*"


register_url_convertor("model", ModelConvertor())


def _pattern(path: str) -> str:
    """A path of the table as the router matches it: names of models may hold slashes."""
    return path.replace("{model}", "{model:model}").replace("{id}", "{id:path}")


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

    def __init__(self, app: ASGIApp, replica: Replica) -> None:
        self._app, self._replica = app, replica
        # the guard's come from its machine's environment, these with the deployment
        self._keys = Keys(replica.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        with ExitStack() as counting:
            record = counting.enter_context(self._replica.observer.request(UNKNOWN, scope))
            held: list[Message] = []

            async def named(message: Message) -> None:
                if message["type"] == "http.response.start":
                    record.code = message["status"]
                    headers = MutableHeaders(scope=message)
                    headers[REPLICA] = self._replica.label
                    if record.trace:
                        headers[TRACEPARENT] = record.trace.traceparent
                    # until the body is there: of a replica that dies before, others can be asked
                    held.append(message)
                    return
                record.bytes += len(message.get("body", b""))
                if not message.get("more_body"):
                    counting.close()  # before the client can know, so that its count is ours
                while held:
                    await send(held.pop())
                await send(message)

            await self._app({**scope, **self._decided(scope), "record": record}, receive, named)

    def _decided(self, scope: Scope) -> dict[str, Any]:
        """Refuse whoever has no key, if the guard has not done so."""
        headers = scope["headers"]
        if any(name == REFUSAL for name, _ in headers) or self._keys.admit(scope):
            return {}
        return {"headers": [*headers, (REFUSAL, b"unauthorized")]}


def _refusing(row: Operation, handler: Handler) -> Handler:
    """Answer a handler's errors in its dialect; the one place where they become refusals."""
    label, say = _label(row.path), row.api.problem

    async def answered(request: Request) -> Response:
        request.scope["record"].route = label
        try:
            decided = request.headers.get(REFUSAL.decode())
            if decided:
                raise Refused(decided)
            return await handler(request)
        except Exception as error:
            return _problem(request, refusal(error), say)

    return answered


def _label(path: str) -> str:
    """How metrics name a route: what is alike has one name, what cannot be answered none."""
    if path in tei.OTHER_TASKS:
        return UNKNOWN
    return ALIKE.get(path, path).replace(VERSION_PART, "")


def _unrouted(says: Mapping[str, Wording]) -> Callable[[Request, Exception], Awaitable[Response]]:
    """What the router says when no route takes the request, in the words of the path's own API."""

    async def answered(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        routes = (route for route in request.app.routes if isinstance(route, Route))
        known = (route for route in routes if route.matches(request.scope)[0] is not Match.NONE)
        route = next(known, None)
        request.scope["record"].route = _label(_path(route.path)) if route else UNKNOWN
        say = says[route.path] if route else _family(request.url.path)
        decided = request.headers.get(REFUSAL.decode())
        response = _problem(request, Refused(decided or UNROUTED[error.status_code]), say)
        if not decided:
            response.headers.update(error.headers or {})
        return response

    return answered


def _path(pattern: str) -> str:
    """A path as the table has it, from the router's pattern."""
    return compile_path(pattern)[1]


def _family(path: str) -> Wording:
    """How a path that no route takes is refused."""
    under = f"{path}/".startswith(INFERENCE)
    return open_inference.problem if under else native.problem


def _problem(request: Request, refused: Refused, say: Wording) -> Response:
    record = request.scope["record"]
    record.refused = refused.code
    if refused.code == "internal":
        logger.exception("request failed", extra=record.names())
    said = say(refused, request.headers.get(REQUEST_ID, ""))
    response = Response(said.body, said.status, said.headers, said.media_type)
    if refused.retry_after is not None:
        response.headers["retry-after"] = str(refused.retry_after)
    if refused.code == "unauthorized":
        response.headers["www-authenticate"] = "Bearer"
    return response
