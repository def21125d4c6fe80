"""ASGI: routes, error -> refusal; every answer counted and named.

What reaches it has passed guard.py: the body is within its limit, the request has an id.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import ExitStack

from starlette.applications import Starlette
from starlette.convertors import PathConvertor, register_url_convertor
from starlette.datastructures import MutableHeaders
from starlette.exceptions import HTTPException
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.api import query
from service.api.dialect import Wording
from service.api.native import call as native
from service.api.open_inference import call as open_inference
from service.api.operations import (
    INFER_MODEL,
    NATIVE,
    OPERATIONS,
    PAGES,
    PART,
    VERSION_PART,
    Operation,
)
from service.edge.auth import Keys, own_path
from service.edge.beside import Beside
from service.edge.deadline import DEADLINE
from service.edge.encoding import WORDING, Encoding, Handler
from service.edge.guard import REFUSAL, RawHeaders, expected
from service.edge.handlers import Handlers, Scrape, Targets
from service.edge.pieces import pieces
from service.edge.reading import INFERENCE
from service.engine.fair.rotation import OWNER
from service.memory import PROCESS
from service.observe.families import LATE, NO_INPUT, OVERLOADED, PROBE
from service.observe.record import CLIENT_CLOSED, REQUEST_ID, TRACEPARENT, Record
from service.refusals import UNROUTED, Refused, refusal
from service.replica import Replica
from service.settings import Settings
from service.wording.words import meant

logger = logging.getLogger(__name__)

REPLICA, WEIGHTS = "x-headlight-replica", "x-headlight-weights"
UNKNOWN = "other"  # the route, in metrics, of what no route takes
ALWAYS = ("/live", "/v2/health/live", "/metrics")  # answered by a replica that knows itself wrong
# one route by several paths; probes are as many as APIs have them
ALIKE = {
    ("post", "/"): "/embed",
    ("post", "/embeddings"): "/v1/embeddings",
    ("get", "/"): "/docs",
    ("get", "/metrics/targets"): "/metrics",
    ("get", "/health"): PROBE,
    ("get", "/v2/health/ready"): PROBE,
    ("get", f"{INFER_MODEL}/ready"): PROBE,
    ("get", "/v2/health/live"): "/live",
}
NONE = Match.NONE  # neither path nor method are a route's


def application(replica: Replica, scrape: Scrape, targets: Targets | None = None) -> ASGIApp:
    """The routes of one replica.

    Args:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
        targets: host:port of each replica; None where none has an address of its own.
    """
    beside = Beside()
    own = Handlers(replica, scrape, targets, beside)
    handlers = Encoding(replica, beside).handlers() | own.handlers()
    rows = [*OPERATIONS, *PAGES]
    dialects = {row.path: row.api.problem for row in rows}
    ends = {
        (row.path, row.method.upper()): _endpoint(row, handlers[row.path, row.method], replica)
        for row in rows
    }
    app = Starlette(
        routes=[
            Route(_pattern(path), endpoint, methods=[method])
            for (path, method), endpoint in ends.items()
        ],
        exception_handlers={HTTPException: _not_routed(dialects, replica.settings)},
    )
    app.router.redirect_slashes = False
    plain = {place: end for place, end in ends.items() if "{" not in place[0]}
    published = (row for row in rows if row.method == "post" or row.api is NATIVE)
    replica.metrics.expect(
        {_label(row.path, row.method): row.inputs for row in published} | {UNKNOWN: NO_INPUT}
    )
    return RecordMiddleware(_cors(Straight(plain, app), replica.settings.cors_origins), replica)


class Straight:
    """To an endpoint whose path is the request's own at once; the router finds every other.

    Args:
        ends: by path and method, of paths without parameters.
    """

    def __init__(self, ends: Mapping[tuple[str, str], Handler], app: ASGIApp) -> None:
        self._ends, self._app = ends, app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        end = self._ends.get((own_path(scope), scope["method"])) if "method" in scope else None
        if end is None:
            return await self._app(scope, receive, send)
        response = await end(Request(scope, receive))
        await response(scope, receive, send)


class ModelConvertor(PathConvertor):
    """A model's name in a path: it may hold slashes, but not the verb that ends the path."""

    regex = "(?:(?!/infer$|/ready$).)*"


register_url_convertor("model", ModelConvertor())


def _pattern(path: str) -> str:
    """A path of the table as the router matches it: names of models may hold slashes."""
    return path.replace("{model}", "{model:model}").replace("{id}", "{id:path}")


def _cors(app: ASGIApp, origins: Sequence[str]) -> ASGIApp:
    """Let pages of these origins ask and read; without any, no answer says a word of it."""
    if not origins:
        return app
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("Authorization", REQUEST_ID, DEADLINE),
        expose_headers=(REQUEST_ID, REPLICA, WEIGHTS, "Retry-After"),
    )


class RecordMiddleware:
    """Counts and names every answer of the app it wraps, whatever it is."""

    def __init__(self, app: ASGIApp, replica: Replica) -> None:
        self._app, self._replica = app, replica
        # the guard's come from its machine's environment, these with the deployment
        self._keys = Keys(replica.settings)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return await self._app(scope, receive, send)
        self._replica.share()
        limit = self._replica.settings.max_held_bytes
        with PROCESS.hold(limit) as hold, ExitStack() as stack:
            observer = self._replica.observer
            record = observer.begin(UNKNOWN, scope, hold)
            stack.callback(observer.end, record)
            head: list[Message] = []
            status = record.code

            async def send_with_names(message: Message) -> None:
                nonlocal status
                if message["type"] == "http.response.start":
                    status = message["status"]
                    headers = MutableHeaders(scope=message)
                    headers[REPLICA] = self._replica.label
                    headers[WEIGHTS] = self._replica.identity.weights
                    if record.trace:
                        headers[TRACEPARENT] = record.trace.traceparent
                    # until the body is there: of a replica that dies before, others can be asked
                    head.append(message)
                    return
                for piece in pieces(message, hold):
                    record.bytes += len(piece["body"])
                    if not piece["more_body"]:
                        record.code = status
                        stack.close()  # before the client can know, so that its count is ours
                    while head:
                        await send(head.pop())
                    await send(piece)  # waits for the reader
                    if piece["more_body"]:
                        hold.keep("answers", max(0, hold.bytes["answers"] - len(piece["body"])))
                        await asyncio.sleep(0)  # others, and word that the client has left

            scope = {**scope, "headers": self._headers(scope, record), "record": record}
            await self._app(scope, receive, send_with_names)

    def _headers(self, scope: Scope, record: Record) -> RawHeaders:
        """The request's, with a refusal of whoever has no key, if the guard has not done so."""
        headers: RawHeaders = scope["headers"]
        key = self._keys.admit(scope, own_path(scope))
        record.key = key.name if key else ""
        if self._keys.several:
            OWNER.set(record.key)  # the guard may be in another process
        if key or any(name == REFUSAL for name, _ in headers):
            return headers
        return [*headers, (REFUSAL, b"unauthorized")]


def _endpoint(row: Operation, handler: Handler, replica: Replica) -> Handler:
    """Answer a handler's errors in its dialect; the one place where they become refusals."""
    label, say, names = _label(row.path, row.method), row.api.problem, query.known(row.path)
    trusts = row.path not in ALWAYS

    async def endpoint(request: Request) -> Response:
        request.scope["record"].route = label
        try:
            if refused := _by_guard(request, replica.settings):
                raise refused
            query.check(request, names)
            if trusts:
                replica.trust()
            response = await handler(request)
            if trusts:
                replica.trust()  # it may have become wrong meanwhile
            return response
        except ClientDisconnect:
            return Response(status_code=CLIENT_CLOSED)  # nobody reads it, but it is counted
        except Exception as error:
            return _problem(request, refusal(error), request.scope.get(WORDING, say))

    return endpoint


def _label(path: str, method: str = "post") -> str:
    """How metrics name a route: what is alike has one name."""
    if path.startswith(PART):
        return "/docs"  # the pages for people are one
    path = path.replace(VERSION_PART, "")
    return ALIKE.get((method, path), path)


def _not_routed(
    dialects: Mapping[str, Wording], settings: Settings
) -> Callable[[Request, Exception], Awaitable[Response]]:
    """What the router says when no route takes the request, in the words of the path's own API."""

    async def answer(request: Request, error: Exception) -> Response:
        if not isinstance(error, HTTPException):
            raise error
        routes = (route for route in request.app.routes if isinstance(route, Route))
        paths = (route.path_format for route in routes if route.matches(request.scope)[0] != NONE)
        path = next(paths, None)
        request.scope["record"].route = _label(path) if path else UNKNOWN
        own = own_path(request.scope)
        say = dialects[path] if path else _family(own)
        refused = _by_guard(request, settings)
        response = _problem(request, refused or _unrouted(error, own), say)
        if not refused:
            response.headers.update(error.headers or {})
        return response

    return answer


def _by_guard(request: Request, settings: Settings) -> Refused | None:
    """What the outermost layer refuses; of what is turned away it says which bound was met."""
    code, _, about = request.headers.get(REFUSAL.decode(), "").partition(":")
    if code == OVERLOADED or code in LATE:
        request.scope["record"].shed = about
        return Refused(code, retry_after=1 if code == OVERLOADED else None)
    return Refused(code, detail=expected(code, about, settings)) if code else None


def _unrouted(error: HTTPException, path: str) -> Refused:
    """What the router says, with the methods of the path or the path that was probably meant."""
    allowed = ", ".join(sorted((error.headers or {}).get("Allow", "").split(", ")))
    near = meant(path, [row.path for row in OPERATIONS]).removeprefix("; ")
    detail = f"it takes {allowed}" if allowed else near or "GET /docs lists the paths"
    return Refused(UNROUTED[error.status_code], detail=detail)


def _family(path: str) -> Wording:
    """How a path that no route takes is refused."""
    return open_inference.problem if f"{path}/".startswith(INFERENCE) else native.problem


def _problem(request: Request, refused: Refused, say: Wording) -> Response:
    record = request.scope["record"]
    record.refused = refused.code
    if refused.code == "internal":
        logger.exception("request failed", extra=record.names())
    problem = say(refused, request.headers.get(REQUEST_ID, ""))
    response = Response(problem.body, problem.status, problem.headers, problem.media_type)
    if refused.retry_after is not None:
        response.headers["retry-after"] = str(refused.retry_after)
    if refused.code == "unauthorized":
        response.headers["www-authenticate"] = "Bearer"
    return response
