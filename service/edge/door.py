"""A replica's one ASGI application: everything a request passes on its way to a handler.

    read      its headers, once; whose it is; which operation it asks for
    check     what the headers alone let us refuse before the body is read (rules.py)
    gate      room, and a bound on one key's requests, where several share the replica (gate.py)
    body      within its limits, and in time (reading.py)
    handler   what the operation does (encoding.py, handlers.py)
    send      the answer, counted and named, piece by piece

A refusal is an exception wherever it arises, worded in one place in the dialect of the path. What a
request takes (memory, room, a turn) is given back in one place.
"""

import asyncio
import logging
import math
import re
import time
from collections import deque
from collections.abc import Iterator, Sequence, Set

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from service import wire
from service.api import query
from service.api.dialect import Reply
from service.cluster import ingress
from service.edge import reading, rules
from service.edge.asked import Asked, seconds
from service.edge.gate import Full, Gate, Place
from service.edge.handlers import TRUNCATED, Handlers, Scrape, Targets
from service.edge.reading import Bodies, BodyWorker
from service.edge.routes import UNKNOWN, Routes, expected
from service.edge.rules import Keys, RawHeaders, Rules
from service.edge.transport import CLIENT, NO_CLIENT, Client
from service.encode.answer import PIECE_BYTES
from service.encode.space import HEADER as SPACE
from service.engine.fair.rotation import OWNER
from service.keys import limits_by_name
from service.memory import PROCESS, Hold
from service.observe.families import KEY_SHARE, OVERLOADED
from service.observe.record import CLIENT_CLOSED, REQUEST_ID, TRACEPARENT, Record
from service.refusals import Refused, refusal
from service.replica import Replica

logger = logging.getLogger(__name__)

METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
REPLICA, WEIGHTS = "x-headlight-replica", "x-headlight-weights"
AS_TOLD = (b"x-content-type-options", b"nosniff")  # no answer is mistaken for a script
CLOSE = (b"connection", b"close")
ID, PARENT = REQUEST_ID.encode(), TRACEPARENT.encode()
WANTED = "access-control-request-headers"
HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]*")  # RFC 9110, section 5.6.2
SLASHES = re.compile("//+")  # of a client that joins an address and a path
NONE: Set[str] = frozenset()
LOOK_SECONDS = 0.25  # between two looks for requests whose time is up
PAUSE_SECONDS = 1.0  # before a flood's refusal: who is refused comes again, and costs as much
TIMES = 2  # times what HAProxy sends: with more requests under way, POSTs are refused


class Door:
    """Answers the requests of one replica.

    Args:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
        targets: host:port of each replica; None where none has an address of its own.
    """

    def __init__(
        self,
        replica: Replica,
        scrape: Scrape,
        targets: Targets | None = None,
    ) -> None:
        settings, worker = replica.settings, BodyWorker()
        self._replica, self._observer = replica, replica.observer
        self._routes = Routes(Handlers(replica, scrape, targets, worker).handler)
        replica.metrics.publish_routes(expected())
        self._ring = replica.ring
        self._shared = self._ring.keys  # the keys that share
        self._keys, self._rules = Keys(settings, self._shared), Rules(settings)
        most = ingress.max_ongoing_requests(settings)
        self.gate = Gate(limits_by_name(self._shared), most)
        self._bodies, self._cors = Bodies(settings, worker), _cors(settings.cors_origins)
        self._deadline, self._most_held = settings.deadline_seconds, settings.max_held_bytes
        self._longest = ingress.request_seconds(settings)
        self._under_way, self._most = set[Asked](), TIMES * most
        self._looking: asyncio.TimerHandle | None = None
        self._weights = replica.identity.weights
        self._names = [
            (REPLICA.encode(), replica.label.encode()),
            AS_TOLD,
        ]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, below the prefix `root_path`."""
        if scope["type"] != "http":
            return
        asked, raw, twice = self._read(scope)
        client = CLIENT.get(NO_CLIENT)
        self._under_way.add(asked)
        if self._looking is None:
            self._look()
        try:
            try:
                await self._enter(asked, raw, twice, receive, client)
                record = self._begin(asked, raw)
                asked.until = record.start + self._longest
                if not client.begin(asked.task):
                    raise ClientDisconnect
                reply = await self._answer(asked, scope)
            except asyncio.CancelledError as cancelled:
                reply = self._refuse(asked, raw, _late(asked, client, cancelled))
            except Exception as error:
                reply = self._refuse(asked, raw, error)
            asked.until = math.inf  # however slow its reader: the connection cuts that off
            if asked.place:
                self.gate.leave(asked.place)
            await self._send(asked, reply, scope, send)
        except asyncio.CancelledError:
            if not client.left:
                raise
            asked.task.uncancel()
        finally:
            self._under_way.discard(asked)
            client.end(asked.task)
            if asked.place:
                self.gate.give_back(asked.place)
            self._end(asked)
            asked.hold.release()

    def _read(self, scope: Scope) -> tuple[Asked, RawHeaders, Set[str]]:
        """Read everything before the body."""
        raw: RawHeaders = scope["headers"]
        headers = rules.read(raw)
        root, path = scope.get("root_path", ""), scope["path"]
        if root:
            path = path[len(root) :] if path.startswith(f"{root}/") else ""
        path = path[: rules.MOST_ADDRESS + 1]
        if len(path) <= rules.MOST_ADDRESS and ("//" in path or path.endswith("/")):
            path = SLASHES.sub("/", path).rstrip("/") or "/"
        method, hold = scope["method"], Hold(PROCESS, self._most_held)
        asked = Asked(method, root, path, scope.get("query_string", b""), headers, hold)
        twice = rules.repeated(raw) if len(headers) < len(raw) else NONE
        named = "" if REQUEST_ID in twice else headers.get(REQUEST_ID, "")
        asked.request_id = rules.request_id(named)
        asked.closing = rules.closes(method, headers)
        asked.route, asked.path_params = self._routes.find(method, path)
        asked.task = asyncio.current_task()  # type: ignore[assignment]  # a request is one
        return asked, raw, twice

    async def _enter(
        self,
        asked: Asked,
        raw: RawHeaders,
        twice: Set[str],
        receive: Receive,
        client: Client,
    ) -> None:
        """Admit a request and read its body.

        Raises:
            Refused: why it may not come in.
            ClientDisconnect: it has left, or its body does not arrive.
        """
        if self._ring.keys is not self._shared:
            self._share()
        named = "" if "authorization" in twice else asked.headers.get("authorization", "")
        key = self._keys.admit(asked.method, asked.path, named)
        asked.key = key.name if key else ""
        self._rules.check(asked, raw, twice, authorized=key is not None)
        self._keys.check_mark(asked.path, key)
        await self._take_place(asked)
        if asked.method != "POST":
            return
        if asked.route:
            asked.given = seconds(asked.headers, self._deadline)
        if asked.place:
            await self._pass_gate(asked, asked.place, client)
        if len(self._under_way) > self._most:
            asked.shed = "queue_full"
            raise Refused(OVERLOADED, retry_after=1)
        asked.body = await self._bodies.read(asked, receive)

    def _share(self) -> None:
        """Share the replica among the keys that are valid now."""
        self._shared = self._ring.keys
        self._keys.set_keys(self._shared)
        self.gate.set_keys(limits_by_name(self._shared))
        self._replica.apply_key_limits()

    async def _take_place(self, asked: Asked) -> None:
        """Take a request's room; refuse a key with too much under way, though not at once."""
        try:
            if place := self.gate.take(asked.key):
                OWNER.set(asked.key)
                asked.place = place
        except Full:
            self._under_way.discard(asked)  # waiting for its refusal is no work
            await asyncio.sleep(PAUSE_SECONDS)
            asked.shed = KEY_SHARE
            raise Refused(OVERLOADED, retry_after=1) from None

    async def _pass_gate(self, asked: Asked, place: Place, client: Client) -> None:
        """Wait until a request may pass; reading metrics is no work and need not."""
        most = min(asked.given, self._deadline)
        if not client.bind(asked.task):
            raise ClientDisconnect
        try:
            asked.waited = await self.gate.enter(place, most)
        except TimeoutError:
            asked.waited, asked.shed = most, KEY_SHARE
            raise Refused("deadline_exceeded") from None
        except asyncio.CancelledError:
            if not client.left:
                raise
            asked.task.uncancel()
            raise ClientDisconnect from None
        finally:
            client.end(asked.task)

    def _begin(self, asked: Asked, raw: RawHeaders) -> Record:
        """Begin to watch a request that has arrived whole or is refused."""
        asked.begun = True
        record = asked.record = Record(
            asked.route.label if asked.route else UNKNOWN,
            asked.method if asked.method in METHODS else "_OTHER",
            asked.request_id,
            asked.key,
            shed=asked.shed,
            given_seconds=asked.given,
            hold=asked.hold,
        )
        if asked.waited:
            record.add_wait(asked.waited)
        self._observer.begin(record, raw)
        return record

    async def _answer(self, asked: Asked, scope: Scope) -> Reply:
        """Carry out a request.

        Raises:
            Exception: one to which service/refusals.py gives a status.
        """
        if (route := asked.route) is None:
            return self._preflight(asked, scope)
        query.check_query(asked.query, route.query)
        batches = self._replica.health.batches
        if route.trusts and batches.fault:  # why stands in the log alone
            raise Refused("not_ready", retry_after=1)
        reply = await route.handle(asked)
        if route.trusts and batches.fault:  # it may have gone wrong meanwhile
            raise Refused("not_ready", retry_after=1)
        return reply

    def _preflight(self, asked: Asked, scope: Scope) -> Reply:
        """Answer a browser's preflight; refuse everything else that has no route."""
        asks = asked.method == "OPTIONS" and "access-control-request-method" in asked.headers
        if self._cors and asks and "origin" in asked.headers:
            if not HEADER_NAMES.fullmatch(asked.headers.get(WANTED, "")):  # they are echoed
                raise Refused.at("out_of_range", WANTED, detail="expected names of headers")
            answer = self._cors.preflight_response(Headers(raw=scope["headers"]))
            headers = {k: v for k, v in answer.headers.items() if k not in ("content-length",)}
            return Reply(bytes(answer.body), answer.status_code, headers)
        raise self._routes.refuse(asked.path)[2]

    def _refuse(self, asked: Asked, raw: RawHeaders, error: Exception) -> Reply:
        """Word a request's refusal; the one place where errors become refusals."""
        record = asked.record if asked.begun else self._begin(asked, raw)
        asked.hold.release()
        if isinstance(error, ClientDisconnect):
            return Reply(status=CLIENT_CLOSED)  # it has no reader, but it is counted
        refused = refusal(error)
        say = asked.wording or (asked.route and asked.route.say)
        if not say:
            record.route, say, _ = self._routes.refuse(asked.path)
        record.refused = refused.code
        if refused.code == "internal":
            logger.error("request failed", exc_info=error, extra=record.log_ids())
        reply = say(refused, asked.request_id)
        if refused.retry_after is not None:
            reply.add("retry-after", str(refused.retry_after))
        if refused.code == "unauthorized":
            reply.add("www-authenticate", "Bearer")
        if refused.code == "method_not_allowed":
            reply.add("allow", self._routes.methods(asked.path))
        return reply

    async def _send(self, asked: Asked, reply: Reply, scope: Scope, send: Send) -> None:
        """Send an answer piece by piece, each once its reader has taken the one before.

        Status and headers leave with the first piece: if the replica dies before, another can be
        asked.
        """
        record = asked.record
        headers = [*reply.headers, *self._names, (ID, asked.request_id.encode())]
        headers.append((WEIGHTS.encode(), (record.weights or self._weights).encode()))
        if record.trace:
            headers.append((PARENT, record.trace.traceparent.encode()))
        if asked.ignored:
            headers.append((wire.IGNORED.encode(), wire.ignored_header(asked.ignored).encode()))
        if asked.closing:  # what was left unread must not pass for the next request
            headers.append(CLOSE)
        start = {"type": "http.response.start", "status": reply.status, "headers": headers}
        record.bytes, record.code = reply.length, reply.status
        if reply.length <= PIECE_BYTES:
            body = reply.pieces[0] if len(reply.pieces) == 1 else b"".join(reply.pieces)
            self._end(asked)  # before the client can know, so that it finds itself counted
            if self._cors:
                await self._start(asked, start, scope, send)
            else:
                await send(start)
            return await send({"type": "http.response.body", "body": body, "more_body": False})
        record.code, record.bytes = CLIENT_CLOSED, 0
        hold, pieces = asked.hold, deque(reply.pieces)
        reply.pieces.clear()
        hold.keep("arrays", 0)
        hold.keep("answers", reply.length)
        await self._start(asked, start, scope, send)
        for piece in _cut(pieces):
            record.bytes += len(piece)
            more = record.bytes < reply.length
            if not more:
                record.code = reply.status
                self._end(asked)
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            if more:
                hold.keep("answers", reply.length - record.bytes)
                await asyncio.sleep(0)  # lets others run, and the news in that the client has left

    async def _start(
        self, asked: Asked, start: dict[str, object], scope: Scope, send: Send
    ) -> None:
        """Begin an answer; pages of the allowed origins may read it too."""
        if self._cors and "origin" in asked.headers:
            return await self._cors.send(start, send, Headers(raw=scope["headers"]))
        await send(start)

    def _end(self, asked: Asked) -> None:
        """Count a request that has been answered or has ended otherwise."""
        if asked.begun:
            self._observer.end(asked.record)

    def _look(self) -> None:
        """End the requests whose time is up, and look again while there are any."""
        now, self._looking = time.monotonic(), None
        for asked in self._under_way:
            if asked.until < now and not asked.late:
                asked.late = True
                asked.task.cancel()
        if self._under_way:
            loop = asyncio.get_running_loop()
            self._looking = loop.call_later(LOOK_SECONDS, self._look)


def _late(asked: Asked, client: Client, cancelled: asyncio.CancelledError) -> Exception:
    """Return why the door ended a request; a cancellation by others stays one."""
    if client.left or not asked.late:
        raise cancelled
    asked.task.uncancel()
    if not asked.begun:
        return reading.late()
    return TimeoutError().with_traceback(cancelled.__traceback__)


def _cut(pieces: deque[bytes]) -> Iterator[bytes]:
    """Cut an answer into pieces that each wait for the reader, keeping none."""
    while pieces:
        piece = pieces.popleft()
        if len(piece) <= PIECE_BYTES:
            yield piece
            continue
        for first in range(0, len(piece), PIECE_BYTES):
            yield piece[first : first + PIECE_BYTES]


def _cors(origins: Sequence[str]) -> CORSMiddleware | None:
    """Let pages of these origins ask and read; without any, no answer mentions CORS."""
    if not origins:
        return None
    return CORSMiddleware(
        _nothing,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),  # a client's own, such as x-stainless-*, go unread
        expose_headers=(
            REQUEST_ID,
            REPLICA,
            WEIGHTS,
            SPACE,
            TRUNCATED,
            wire.WARNING,
            wire.IGNORED,
            "Retry-After",
        ),
    )


async def _nothing(scope: Scope, receive: Receive, send: Send) -> None:
    """Stand in for the application of Starlette's class, of which only the methods are called."""
