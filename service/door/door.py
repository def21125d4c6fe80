"""A replica's one ASGI application: everything a request passes on its way to a handler.

    head      read once (request.py): whose key it has; which route it takes
    rules     what the head alone lets us refuse before the body is read (rules.py)
    gate      room, and a bound on one key's requests, where several share the replica (gate.py)
    body      within its limits, and in time (body.py)
    round     of the event loop, which begins only so much at once (rounds.py)
    handler   what the route does (handlers.py)
    send      the answer, counted and named, piece by piece

A refusal is an exception wherever it arises, worded in one place in the dialect of the path. What a
request takes (memory, room, a turn) is given back in one place.
"""

import asyncio
import logging
import math
from collections import deque
from collections.abc import AsyncGenerator, Iterator
from contextlib import aclosing
from functools import partial

from starlette.requests import ClientDisconnect
from starlette.types import Receive, Scope, Send

from service.api import ROUTES, query
from service.cluster import ingress
from service.cluster.choose_model import MODEL_HEADER, NAMES_HEADER, lacks_names, read_names
from service.door.body import BodyReader, BodyWorker, timeout_refusal
from service.door.forward import Forwarder
from service.door.gate import KeyGate, Place
from service.door.handlers import UNKNOWN, Handlers, Routes, Scrape, Targets, inputs_by_label
from service.door.request import Request, read_timeout
from service.door.rounds import LATE_SECONDS, Rounds, is_unbounded, too_late, unless_left
from service.door.rules import REPLICA, WEIGHTS, Cors, HeadRules, Keys, judge_model, warn_of_models
from service.door.transport import CLIENT, NO_CLIENT, Client
from service.door.under_way import UnderWay
from service.engine.fair.rotation import OWNER_KEY
from service.observe.families import KEY_SHARE, METRICS_PATH, PROBE_PATHS
from service.pipeline.find.names import unknown_model
from service.pipeline.replica import Replica
from service.shapes.answer import PIECE_BYTES
from service.shapes.call import Reply
from service.shapes.record import CLIENT_CLOSED, REQUEST_ID, TRACEPARENT, Record
from service.tables.keys import limits_by_name
from service.tables.memory import PROCESS, Hold
from service.tables.refusals import Refused, overloaded, refusal_of
from service.tables.wording import wire

logger = logging.getLogger(__name__)

RECORDED_METHODS = frozenset(("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"))
NOSNIFF = (b"x-content-type-options", b"nosniff")  # no answer is mistaken for a script
CLOSE = (b"connection", b"close")  # the header of a connection's last answer
ID_HEADER, TRACE_HEADER = REQUEST_ID.encode(), TRACEPARENT.encode()
PAUSE_SECONDS = 1.0  # before a key with too many requests is refused, which slows its retries
POSTS_FACTOR = 2  # times what HAProxy sends: with more requests under way, POSTs are refused


class Door:
    """The ASGI application that answers the requests of one replica.

    Args:
        scrape: the metrics of all replicas, as Prometheus text or, if asked, as OpenMetrics.
        targets: host:port of each replica; None where none has an address of its own.
        front: the address of this node's HAProxy; None where there is none.
    """

    def __init__(
        self,
        replica: Replica,
        scrape: Scrape,
        targets: Targets | None = None,
        front: str | None = None,
    ) -> None:
        settings, worker = replica.settings, BodyWorker()
        self._forwarder = Forwarder(front, replica.gateway.names.every) if front else None
        self._replica, self._observer = replica, replica.observer
        self._routes = Routes(Handlers(replica, scrape, targets, worker, self._forwarder))
        replica.metrics.publish_routes(inputs_by_label())
        self._ring = replica.ring
        self._sharing_keys = self._ring.keys  # as last applied; the ring's may have changed since
        self._keys, self._rules = Keys(settings, self._sharing_keys), HeadRules(settings)
        most = ingress.max_ongoing_requests(settings)
        self.gate = KeyGate(limits_by_name(self._sharing_keys), most)
        self._bodies = BodyReader(settings, worker)
        self._cors = Cors(settings.cors_origins) if settings.cors_origins else None
        self._deadline_seconds = settings.deadline_seconds
        self._most_held_bytes = settings.max_held_bytes
        self._longest_seconds = ingress.request_seconds(settings)
        self._under_way, self._most_under_way = UnderWay(), POSTS_FACTOR * most
        self._rounds = Rounds(self._under_way)
        self._weights, self._has_others = replica.identity.weights, settings.other_replicas > 0
        self._judged_models = False  # whether the models that keys name were compared with all
        self._headers = [(REPLICA.encode(), replica.label.encode()), NOSNIFF]  # of every answer

    def names(self) -> dict[str, list[str]]:
        """Return what HAProxy is told: names, tasks, date, paths that not every model answers."""
        tasks = self._replica.lanes.model.tasks
        able = {*tasks, *(("decide",) if "zero_shot" in tasks else ())}  # by inference
        paths = [route.path for route in ROUTES if route.task in able]
        released = [self._replica.released]
        names = self._replica.gateway.names.every
        return {"names": names, "paths": paths, "tasks": list(tasks), "released": released}

    async def close(self) -> None:
        """Close the connections to other models."""
        if self._forwarder:
            await self._forwarder.close()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer one request, below the prefix `root_path`."""
        if scope["type"] != "http":
            return
        request = Request(scope, Hold(PROCESS, self._most_held_bytes))
        request.endpoint, request.path_params = self._routes.find(request.method, request.path)
        request.task = asyncio.current_task()  # type: ignore[assignment]  # a request is one
        client = CLIENT.get(NO_CLIENT)
        self._under_way.add(request)
        try:
            try:
                await self._admit(request, receive, client)
                record = self._begin_record(request)
                request.until = record.start + self._longest_seconds
                if not client.bind_and_listen(request.task):
                    raise ClientDisconnect
                reply = await self._handle(request)
            except asyncio.CancelledError as cancelled:
                reply = self._refuse(request, _timeout_error(request, client, cancelled))
            except Exception as error:
                reply = self._refuse(request, error)
            request.until = math.inf  # the transport cuts off a slow reader
            if request.place:
                self.gate.leave(request.place)
            await self._send(request, reply, send)
        except asyncio.CancelledError:
            if not client.left:
                raise
            request.task.uncancel()
        finally:
            self._under_way.forget(request)
            client.unbind(request.task)
            if request.place:
                self.gate.give_back(request.place)
            if request.begun:
                self._end_record(request)
            request.hold.release()

    async def _admit(self, request: Request, receive: Receive, client: Client) -> None:
        """Check a request's head, wait at the gate and for a round, and read the body of a POST.

        Raises:
            Refused: a rule, the gate, the loop's lateness or a limit turns it away.
            ClientDisconnect: its client has left, or its body does not arrive.
        """
        if self._ring.keys is not self._sharing_keys:
            self._apply_keys()
        if not self._judged_models and not self._is_apart(request):
            own = self._replica.gateway.names.every
            self._judged_models = warn_of_models(self._sharing_keys, request, own)
        key = self._keys.find(request.method, request.path, request.single("authorization"))
        if key:
            request.key, request.models = key.name, key.models
        else:
            await self._rounds.begin(request, client, LATE_SECONDS)
        self._rules.judge(request, key)
        self._keys.require_mark(request.path, key)
        if MODEL_HEADER in request.headers:
            judge_model(request, self._replica.gateway.names.every)
        if self.gate.lines:
            await self._take_place(request)
        route = request.endpoint.label if request.endpoint else UNKNOWN
        if request.method == "POST" and request.endpoint:
            request.timeout = read_timeout(request.headers, self._deadline_seconds)
        elif route in PROBE_PATHS:
            return
        most = min(request.timeout, self._deadline_seconds)
        request.unbounded = is_unbounded(request)
        if request.unbounded:
            most = min(most, LATE_SECONDS)
            self._rounds.refuse_late(request)
        if request.place and route != METRICS_PATH:
            await self._pass_gate(request, request.place, client, most)
        if request.method == "POST":
            if len(self._under_way) > self._most_under_way:
                raise overloaded("queue_full")
            request.body = await self._bodies.read(request, receive)
        await self._rounds.begin(request, client, most)

    def _apply_keys(self) -> None:
        """Let the keys that are valid now in, and share the replica among them."""
        self._judged_models = False
        self._sharing_keys = self._ring.keys
        self._keys.set_keys(self._sharing_keys)
        self.gate.set_keys(limits_by_name(self._sharing_keys))
        self._replica.apply_key_limits()

    def _is_apart(self, request: Request) -> bool:
        """Tell whether HAProxy has not told a request the names of other models that there are."""
        untold = NAMES_HEADER not in request.headers
        return untold and (self._has_others or bool(request.root_path))

    async def _take_place(self, request: Request) -> None:
        """Take a request's place at the gate; after a pause, refuse a key that has too many."""
        try:
            if place := self.gate.take_place(request.key):
                OWNER_KEY.set(request.key)
                request.place = place
        except Refused:
            self._under_way.forget(request)  # waiting for its refusal is no work
            await asyncio.sleep(PAUSE_SECONDS)
            raise

    async def _pass_gate(self, request: Request, place: Place, client: Client, most: float) -> None:
        """Wait at the gate until a request may pass; refuse it after `most` seconds."""
        try:
            turn = partial(self.gate.enter, place, most)
            request.waited = await unless_left(request, client, turn)
        except TimeoutError:
            request.waited = most
            raise too_late(request, KEY_SHARE) from None

    def _begin_record(self, request: Request) -> Record:
        """Begin the record of a request that has arrived whole or is refused, and return it."""
        request.begun = True
        record = request.record = Record(
            request.endpoint.label if request.endpoint else UNKNOWN,
            request.method if request.method in RECORDED_METHODS else "_OTHER",
            request.id,
            request.key,
            given_seconds=request.timeout,
            hold=request.hold,
        )
        record.start -= request.late
        if request.waited:
            record.add_wait(request.waited)
        self._observer.begin(record, request.raw_headers)
        return record

    async def _handle(self, request: Request) -> Reply:
        """Return the answer of a request's handler, or to a CORS preflight.

        Raises:
            Exception: one to which service/tables/refusals.py gives a status.
        """
        if (endpoint := request.endpoint) is None:
            if self._cors and (preflight := self._cors.answer_preflight(request)):
                return preflight
            raise self._routes.refuse(request.method, request.path)
        if request.query:
            query.check_query(request.query, endpoint.query)
        batches = self._replica.health.batches
        if endpoint.trusted and batches.fault:  # only the log says what it is
            raise Refused("not_ready", retry_after=1)
        reply = await endpoint.handle(request)
        if reply.stream:
            self._observer.drop(request.record)
            return reply
        if endpoint.trusted and batches.fault:  # found while the request was computed
            raise Refused("not_ready", retry_after=1)
        return reply

    def _refuse(self, request: Request, error: Exception) -> Reply:
        """Return the answer to a failed request: the one place where errors become refusals."""
        record = request.record if request.begun else self._begin_record(request)
        request.sent_on = False
        request.hold.release()
        if isinstance(error, ClientDisconnect):
            return Reply(status=CLIENT_CLOSED)  # it has no reader, but it is counted
        refused = refusal_of(error)
        if refused.code == "model_not_found":
            refused = self._name_models(request, refused)
        elif refused.code == "task_not_found" and self._is_for_another(request):
            refused = Refused("not_ready", retry_after=1)
        word = request.word or (request.endpoint and request.endpoint.word)
        if not word:
            record.route, word = self._routes.name(request.path)
        record.refused, record.shed = refused.code, refused.bound
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

    def _name_models(self, request: Request, refused: Refused) -> Refused:
        """Return the refusal of a model's name with all names of the address, told with a key."""
        place, *_ = refused.faults[0].loc
        if self._sharing_keys and not request.key:
            return Refused.at(refused.code, place)
        if place not in ("model", MODEL_HEADER):
            return refused
        if self._another_starts(request):
            return Refused("not_ready", retry_after=1)  # it may be that one
        told = request.headers.get(NAMES_HEADER)
        return unknown_model(read_names(told), place) if told else refused

    def _is_for_another(self, request: Request) -> bool:
        """Tell whether a path that this model lacks may be of one of the address that starts."""
        asked = request.endpoint and request.endpoint.path
        lacks = any(route.task and route.path == asked for route in ROUTES)
        return lacks and self._another_starts(request)

    def _another_starts(self, request: Request) -> bool:
        """Tell whether a request may be for a model whose names and paths are not known yet."""
        told = request.headers.get(NAMES_HEADER)
        return lacks_names(told) if told else self._has_others and not request.root_path

    async def _send(self, request: Request, reply: Reply, send: Send) -> None:
        """Send an answer piece by piece, each once its reader has taken the one before.

        Status and headers leave with the first piece: if the replica dies before, HAProxy can ask
        another.
        """
        if reply.stream:
            return await _pass_on(reply, reply.stream, send)
        record = request.record
        headers = [*reply.headers, *self._headers, (ID_HEADER, request.id.encode())]
        headers.append((WEIGHTS.encode(), (record.weights or self._weights).encode()))
        if record.trace:
            headers.append((TRACE_HEADER, record.trace.traceparent.encode()))
        if request.ignored:
            headers.append((wire.IGNORED.encode(), wire.ignored_header(request.ignored).encode()))
        if request.closing:  # else its unread body would be taken for the next request
            headers.append(CLOSE)
        start = {"type": "http.response.start", "status": reply.status, "headers": headers}
        record.bytes, record.code = reply.length, reply.status
        if self._cors and "origin" in request.headers:
            send = self._cors.wrap(request, send)
        if reply.length <= PIECE_BYTES:
            body = reply.pieces[0] if len(reply.pieces) == 1 else b"".join(reply.pieces)
            self._end_record(request)  # first: a client with its answer must find it counted
            await send(start)
            return await send({"type": "http.response.body", "body": body, "more_body": False})
        record.code, record.bytes = CLIENT_CLOSED, 0
        hold, pieces = request.hold, deque(reply.pieces)
        reply.pieces.clear()
        hold.keep(arrays=0, answers=reply.length)
        await send(start)
        for piece in _split_pieces(pieces):
            record.bytes += len(piece)
            more = record.bytes < reply.length
            if not more:
                record.code = reply.status
                self._end_record(request)
            await send({"type": "http.response.body", "body": piece, "more_body": more})
            if more:
                hold.keep(answers=reply.length - record.bytes)
                await asyncio.sleep(0)  # lets other tasks run, and a cancellation arrive

    def _end_record(self, request: Request) -> None:
        """End the record of a request that is answered or cancelled here; once."""
        request.begun = False
        if request.sent_on:
            self._observer.drop(request.record)
        else:
            self._observer.end(request.record)


async def _pass_on(reply: Reply, stream: AsyncGenerator[bytes], send: Send) -> None:
    """Send another replica's answer, each piece once its reader has taken the one before."""
    async with aclosing(stream):
        await send(
            {"type": "http.response.start", "status": reply.status, "headers": reply.headers}
        )
        async for piece in stream:
            await send({"type": "http.response.body", "body": piece, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def _timeout_error(request: Request, client: Client, error: asyncio.CancelledError) -> Exception:
    """Return the error of a request that the door cancelled; reraise any other cancellation."""
    if client.left or not request.overdue:
        raise error
    request.task.uncancel()
    if not request.begun:
        return timeout_refusal()
    return TimeoutError().with_traceback(error.__traceback__)


def _split_pieces(pieces: deque[bytes]) -> Iterator[bytes]:
    """Yield the pieces, removed from the deque, in parts of PIECE_BYTES at most."""
    while pieces:
        piece = pieces.popleft()
        if len(piece) <= PIECE_BYTES:
            yield piece
            continue
        for first in range(0, len(piece), PIECE_BYTES):
            yield piece[first : first + PIECE_BYTES]
