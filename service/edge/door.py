"""A replica's one ASGI application: everything a request passes on its way to a handler.

    head      read once (request.py): whose it is; which route it takes
    rules     what the head alone lets us refuse before the body is read (rules.py)
    gate      room, and a bound on one key's requests, where several share the replica (gate.py)
    body      within its limits, and in time (body.py)
    handler   what the route does (handlers.py)
    send      the answer, counted and named, piece by piece

A refusal is an exception wherever it arises, worded in one place in the dialect of the path. What a
request takes (memory, room, a turn) is given back in one place.
"""

import asyncio
import logging
import math
import time
from collections import deque
from collections.abc import Iterator

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from service import wire
from service.api import query
from service.api.dialect import Reply
from service.cluster import ingress
from service.edge.body import BodyReader, BodyWorker, too_late
from service.edge.gate import Full, KeyGate, Place
from service.edge.handlers import UNKNOWN, Handlers, Routes, Scrape, Targets, inputs_by_label
from service.edge.request import Request, read_timeout
from service.edge.rules import REPLICA, WEIGHTS, Cors, HeadRules, Keys
from service.edge.transport import CLIENT, NO_CLIENT, Client
from service.encode.answer import PIECE_BYTES
from service.engine.fair.rotation import OWNER_KEY
from service.keys import limits_by_name
from service.memory import PROCESS, Hold
from service.observe.families import KEY_SHARE, OVERLOADED
from service.observe.record import CLIENT_CLOSED, REQUEST_ID, TRACEPARENT, Record
from service.refusals import Refused, refusal_of
from service.replica import Replica

logger = logging.getLogger(__name__)

RECORDED_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
NOSNIFF = (b"x-content-type-options", b"nosniff")  # no answer is mistaken for a script
CLOSE = (b"connection", b"close")
ID, PARENT = REQUEST_ID.encode(), TRACEPARENT.encode()
OVERDUE_SECONDS = 0.25  # between two looks for requests whose time is up
PAUSE_SECONDS = 1.0  # before a flood's refusal: who is refused comes again, and costs as much
POSTS_FACTOR = 2  # times what HAProxy sends: with more requests under way, POSTs are refused


class Door:
    """Answers the requests of one replica.

    Args:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
        targets: host:port of each replica; None where none has an address of its own.
    """

    def __init__(self, replica: Replica, scrape: Scrape, targets: Targets | None = None) -> None:
        settings, worker = replica.settings, BodyWorker()
        self._replica, self._observer = replica, replica.observer
        self._routes = Routes(Handlers(replica, scrape, targets, worker))
        replica.metrics.publish_routes(inputs_by_label())
        self._ring = replica.ring
        self._shared = self._ring.keys  # the keys that share
        self._keys, self._rules = Keys(settings, self._shared), HeadRules(settings)
        most = ingress.max_ongoing_requests(settings)
        self.gate = KeyGate(limits_by_name(self._shared), most)
        self._bodies = BodyReader(settings, worker)
        self._cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self._deadline, self._most_held = settings.deadline_seconds, settings.max_held_bytes
        self._longest = ingress.request_seconds(settings)
        self._under_way, self._most = set[Request](), POSTS_FACTOR * most
        self._overdue_timer: asyncio.TimerHandle | None = None
        self._weights = replica.identity.weights
        self._headers = [(REPLICA.encode(), replica.label.encode()), NOSNIFF]  # of every answer

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, below the prefix `root_path`."""
        if scope["type"] != "http":
            return
        request = Request(scope, Hold(PROCESS, self._most_held))
        request.endpoint, request.path_params = self._routes.find(request.method, request.path)
        request.task = asyncio.current_task()  # type: ignore[assignment]  # a request is one
        client = CLIENT.get(NO_CLIENT)
        self._under_way.add(request)
        if self._overdue_timer is None:
            self._cancel_overdue()
        try:
            try:
                await self._admit(request, receive, client)
                record = self._begin(request)
                request.until = record.start + self._longest
                if not client.bind_and_listen(request.task):
                    raise ClientDisconnect
                reply = await self._answer(request)
            except asyncio.CancelledError as cancelled:
                reply = self._refuse(request, _reason(request, client, cancelled))
            except Exception as error:
                reply = self._refuse(request, error)
            request.until = math.inf  # however slow its reader: the connection cuts that off
            if request.place:
                self.gate.leave(request.place)
            await self._send(request, reply, send)
        except asyncio.CancelledError:
            if not client.left:
                raise
            request.task.uncancel()
        finally:
            self._under_way.discard(request)
            client.end(request.task)
            if request.place:
                self.gate.give_back(request.place)
            self._end(request)
            request.hold.release()

    async def _admit(self, request: Request, receive: Receive, client: Client) -> None:
        """Admit a request and read its body.

        Raises:
            Refused: why it may not come in.
            ClientDisconnect: it has left, or its body does not arrive.
        """
        if self._ring.keys is not self._shared:
            self._share()
        key = self._keys.find(request.method, request.path, request.single("authorization"))
        request.key = key.name if key else ""
        self._rules.judge(request, authorized=key is not None)
        self._keys.require_mark(request.path, key)
        await self._take_place(request)
        if request.method != "POST":
            return
        if request.endpoint:
            request.timeout = read_timeout(request.headers, self._deadline)
        if request.place:
            await self._pass_gate(request, request.place, client)
        if len(self._under_way) > self._most:
            request.shed = "queue_full"
            raise Refused(OVERLOADED, retry_after=1)
        request.body = await self._bodies.read(request, receive)

    def _share(self) -> None:
        """Share the replica among the keys that are valid now."""
        self._shared = self._ring.keys
        self._keys.set_keys(self._shared)
        self.gate.set_keys(limits_by_name(self._shared))
        self._replica.apply_key_limits()

    async def _take_place(self, request: Request) -> None:
        """Take a request's room; refuse a key with too much under way, though not at once."""
        try:
            if place := self.gate.take_place(request.key):
                OWNER_KEY.set(request.key)
                request.place = place
        except Full:
            self._under_way.discard(request)  # waiting for its refusal is no work
            await asyncio.sleep(PAUSE_SECONDS)
            request.shed = KEY_SHARE
            raise Refused(OVERLOADED, retry_after=1) from None

    async def _pass_gate(self, request: Request, place: Place, client: Client) -> None:
        """Wait until a request may pass; reading metrics is no work and need not."""
        most = min(request.timeout, self._deadline)
        if not client.bind(request.task):
            raise ClientDisconnect
        try:
            request.waited = await self.gate.enter(place, most)
        except TimeoutError:
            request.waited, request.shed = most, KEY_SHARE
            raise Refused("deadline_exceeded") from None
        except asyncio.CancelledError:
            if not client.left:
                raise
            request.task.uncancel()
            raise ClientDisconnect from None
        finally:
            client.end(request.task)

    def _begin(self, request: Request) -> Record:
        """Begin to watch a request that has arrived whole or is refused."""
        request.begun = True
        record = request.record = Record(
            request.endpoint.label if request.endpoint else UNKNOWN,
            request.method if request.method in RECORDED_METHODS else "_OTHER",
            request.id,
            request.key,
            shed=request.shed,
            given_seconds=request.timeout,
            hold=request.hold,
        )
        if request.waited:
            record.add_wait(request.waited)
        self._observer.begin(record, request.raw_headers)
        return record

    async def _answer(self, request: Request) -> Reply:
        """Carry out a request.

        Raises:
            Exception: one to which service/refusals.py gives a status.
        """
        if (endpoint := request.endpoint) is None:
            if self._cors and (preflight := self._cors.answer_preflight(request)):
                return preflight
            raise self._routes.refuse(request.path)[2]
        query.check_query(request.query, endpoint.query)
        batches = self._replica.health.batches
        if endpoint.trusted and batches.fault:  # why stands in the log alone
            raise Refused("not_ready", retry_after=1)
        reply = await endpoint.handle(request)
        if endpoint.trusted and batches.fault:  # it may have gone wrong meanwhile
            raise Refused("not_ready", retry_after=1)
        return reply

    def _refuse(self, request: Request, error: Exception) -> Reply:
        """Word a request's refusal; the one place where errors become refusals."""
        record = request.record if request.begun else self._begin(request)
        request.hold.release()
        if isinstance(error, ClientDisconnect):
            return Reply(status=CLIENT_CLOSED)  # it has no reader, but it is counted
        refused = refusal_of(error)
        word = request.word or (request.endpoint and request.endpoint.word)
        if not word:
            record.route, word, _ = self._routes.refuse(request.path)
        record.refused = refused.code
        if refused.code == "internal":
            logger.error("request failed", exc_info=error, extra=record.log_ids())
        reply = word(refused, request.id)
        if refused.retry_after is not None:
            reply.add("retry-after", str(refused.retry_after))
        if refused.code == "unauthorized":
            reply.add("www-authenticate", "Bearer")
        if refused.code == "method_not_allowed":
            reply.add("allow", ", ".join(sorted(self._routes.of_path(request.path))))
        return reply

    async def _send(self, request: Request, reply: Reply, send: Send) -> None:
        """Send an answer piece by piece, each once its reader has taken the one before.

        Status and headers leave with the first piece: if the replica dies before, another can be
        asked.
        """
        record = request.record
        headers = [*reply.headers, *self._headers, (ID, request.id.encode())]
        headers.append((WEIGHTS.encode(), (record.weights or self._weights).encode()))
        if record.trace:
            headers.append((PARENT, record.trace.traceparent.encode()))
        if request.ignored:
            headers.append((wire.IGNORED.encode(), wire.ignored_header(request.ignored).encode()))
        if request.closing:  # what was left unread must not pass for the next request
            headers.append(CLOSE)
        start = {"type": "http.response.start", "status": reply.status, "headers": headers}
        record.bytes, record.code = reply.length, reply.status
        if self._cors and "origin" in request.headers:
            send = self._cors.wrap(request, send)
        if reply.length <= PIECE_BYTES:
            body = reply.pieces[0] if len(reply.pieces) == 1 else b"".join(reply.pieces)
            self._end(request)  # before the client can know, so that it finds itself counted
            await send(start)
            return await send({"type": "http.response.body", "body": body, "more_body": False})
        record.code, record.bytes = CLIENT_CLOSED, 0
        hold, pieces = request.hold, deque(reply.pieces)
        reply.pieces.clear()
        hold.keep(arrays=0, answers=reply.length)
        await send(start)
        for piece in _cut(pieces):
            record.bytes += len(piece)
            more = record.bytes < reply.length
            if not more:
                record.code = reply.status
                self._end(request)
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            if more:
                hold.keep(answers=reply.length - record.bytes)
                await asyncio.sleep(0)  # lets others run, and the news in that the client has left

    def _end(self, request: Request) -> None:
        """Count a request that has been answered or has ended otherwise."""
        if request.begun:
            self._observer.end(request.record)

    def _cancel_overdue(self) -> None:
        """End the requests whose time is up, and look again while there are any."""
        now, self._overdue_timer = time.monotonic(), None
        for request in self._under_way:
            if request.until < now and not request.overdue:
                request.overdue = True
                request.task.cancel()
        if self._under_way:
            loop = asyncio.get_running_loop()
            self._overdue_timer = loop.call_later(OVERDUE_SECONDS, self._cancel_overdue)


def _reason(request: Request, client: Client, cancelled: asyncio.CancelledError) -> Exception:
    """Return why the door ended a request; a cancellation by others stays one."""
    if client.left or not request.overdue:
        raise cancelled
    request.task.uncancel()
    if not request.begun:
        return too_late()
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
