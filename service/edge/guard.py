"""The outermost layer: makes a request safe to pass on.

It wraps whatever takes connections, each replica or Ray's Python proxy: refuses by the headers
alone what it can, before the body; has the body read (reading.py); drops the headers by which a
client could steer Ray; and gives the request its id. It has no routes, so a refusal travels on
as a header, without a body, and the route words it in its own dialect.
"""

import asyncio
import ipaddress
import os
import uuid
from collections.abc import Mapping
from contextlib import ExitStack, suppress

from starlette.datastructures import MutableHeaders
from starlette.middleware import Middleware
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service import settings
from service.api.body import MOST_DEPTH, MOST_KEYS, Bounds
from service.cluster import ingress
from service.edge import direct, transport
from service.edge.auth import PROBE, Keys, own_path
from service.edge.deadline import seconds
from service.edge.reading import BODY_SECONDS, Bodies, announces, replay
from service.edge.sites import Sites
from service.edge.tenants.turns import Turns
from service.edge.tenants.under_way import UnderWay
from service.encode.answer import INFERENCE_HEADER
from service.keys import Key, tenants
from service.memory import PROCESS, Hold
from service.observe.families import OVERLOADED, SHARE, UNDER_WAY
from service.observe.record import CLIENT, REQUEST_ID, WAITED
from service.refusals import Refused
from service.settings import KIB, Settings
from service.wording.words import listed

FROM = CLIENT.encode()
REFUSAL = b"x-headlight-refusal"  # to the routes: answer this, there is no body

# Ray Serve obeys these, with either sign between the words; from outside they would switch its
# protections off, or choose the replica
RAYS_OWN = (
    b"x_request_timeout_seconds",
    b"x_request_disconnect_disabled",
    b"x_serve_router_",
    b"x_session_id",
    b"serve_multiplexed_model_id",
    REFUSAL.replace(b"-", b"_"),
    WAITED.encode().replace(b"-", b"_"),
    FROM.replace(b"-", b"_"),
)
ID_CHARACTERS = frozenset(b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
LONGEST_ID = 128
MOST_HEADERS, MOST_HEADER_BYTES = 100, 16 * KIB
MOST_ADDRESS = 2 * KIB  # characters of path and query; every route's pattern goes along them
WITHOUT_BODY = frozenset(("GET", "HEAD", "OPTIONS"))
# What says how a request is read must be said once, and not by a name that others take for it
SINGLE = frozenset(
    (
        b"host",
        b"content-type",
        b"content-length",
        b"content-encoding",
        b"transfer-encoding",
        b"x-headlight-deadline-ms",
        INFERENCE_HEADER.encode(),
    )
)
TWINS = frozenset(
    name.replace(b"-", b"_") for name in (*SINGLE, REQUEST_ID.encode()) if b"-" in name
)
# Kept of a request that is refused by us, in any bytes
KEPT = (b"host", b"origin", b"authorization", REQUEST_ID.encode(), WAITED.encode(), FROM)
READ = SINGLE | {b"accept", b"authorization", b"upgrade", REQUEST_ID.encode()}

AS_TOLD = "x-content-type-options"  # so that a browser takes no answer for a script or a page

RawHeaders = list[tuple[bytes, bytes]]
Fields = Mapping[str, str]  # headers by name, the first of each, as they are read here


def outermost() -> list[Middleware]:
    """What wraps replicas and Ray's proxy alike; settings come from the HEADLIGHT_* variables.

    Ray calls it before it starts the server that takes their connections.
    """
    transport.install()
    fronted = os.environ.get(ingress.FRONTED) == "1"
    return [Middleware(Guard, settings=settings.load({}), way=direct.PROCESS, fronted=fronted)]


class Guard:
    """Makes a request safe to pass on, or has it refused.

    Args:
        way: past Ray.
        fronted: whether HAProxy is in front, which says whom it has accepted.
    """

    def __init__(
        self,
        app: ASGIApp,
        settings: Settings,
        way: direct.Direct | None = None,
        fronted: bool = False,
    ) -> None:
        self._app, self._way, self._keys = app, way, Keys(settings)
        self._answer = self._refuse = app
        if way:
            self._answer, self._refuse = way.around(app, settings), way.refusing(app)
            way.inform(self.follow)
        self._most_held = settings.max_held_bytes
        self._sites, self._bodies = Sites(settings), Bodies(settings)
        self._shared = self._keys.ring.keys  # the keys among which there is sharing
        names = tenants(self._shared)
        self._under_way = UnderWay(names, ingress.ongoing(settings))
        self._turns, self._deadline = Turns(names), settings.deadline_seconds
        self._told, self._fronted = settings.access_log_client, fronted
        self._proxies = settings.trusted_proxies

    def follow(self, settings: Settings) -> None:
        """Hold requests that come from now on to other limits of a body."""
        self._bodies = Bodies(settings)

    def _share(self) -> None:
        """Share among the keys that let in now."""
        self._shared = self._keys.ring.keys
        names = tenants(self._shared)
        self._under_way.follow(names)
        self._turns.follow(names)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "lifespan":
            return await self._app(scope, receive, send)
        if scope["type"] != "http":  # none of ours, so no key and no host lets it in
            return await send({"type": "websocket.close"})
        headers = [pair for pair in scope["headers"] if _passes(*pair)]
        if self._told:
            headers.append((FROM, _address(scope, self._fronted, self._proxies)))
        path = await self._way.path(scope, self._app) if self._way else own_path(scope)
        if self._shared is not self._keys.ring.keys:
            self._share()
        key, fields = self._keys.admit(scope, path), _fields(headers)
        # its body is held until it is answered, its turn is over when the answer begins
        with (
            self._under_way.hold(key) as room,
            PROCESS.hold(self._most_held) as hold,
            ExitStack() as turn,
        ):
            code = self._by_headers(scope, fields, key)
            if code is None and not room:
                code = await self._full(key)
            elif code is None and scope["method"] == "POST":  # to look at metrics asks for no work
                code = await self._wait(key, headers, fields, turn)
            await self._pass(scope, path, headers, fields, receive, send, hold, turn, code)

    async def _wait(
        self, key: Key | None, headers: RawHeaders, fields: Fields, turn: ExitStack
    ) -> str | None:
        """Wait for a request's turn, and say in a header how long; or the code of a refusal."""
        most, code = self._deadline, None
        with suppress(Refused):  # which is for the route to say
            most = seconds(fields, most)
        try:
            waited = await self._turns.wait(key.name if key else "", most, turn)
        except TimeoutError:
            waited, code = most, f"deadline_exceeded:{SHARE}"
        if waited:
            headers.append((WAITED.encode(), f"{waited:.6f}".encode()))
        return code

    async def _full(self, key: Key | None) -> str:
        """The code for a key that has too much under way, not faster than it may come."""
        if pause := self._turns.pause(key.name if key else ""):
            await asyncio.sleep(pause)
        return f"{OVERLOADED}:{UNDER_WAY}"

    async def _pass(
        self,
        scope: Scope,
        path: str,
        headers: RawHeaders,
        fields: Fields,
        receive: Receive,
        send: Send,
        hold: Hold,
        turn: ExitStack,
        code: str | None,
    ) -> None:
        """Read a request and pass it on, or its refusal."""
        headers, request_id = _with_id(headers)
        content: bytes | None = b""
        if code is None and scope["method"] == "POST":
            code, content = await self._bodies.read(path, receive, fields, hold)
        closing = _switches(fields) or (scope["method"] != "POST" and announces(fields))
        if code is not None:
            hold.keep("bodies", 0)
            headers = [pair for pair in headers if pair[0] in KEPT] + [(REFUSAL, code.encode())]
            scope = {**scope, "path": scope["path"][:MOST_ADDRESS]}

        async def send_with_id(message: Message) -> None:
            if message["type"] == "http.response.start":
                turn.close()  # however slow its reader
                answered = MutableHeaders(scope=message)
                answered[REQUEST_ID] = request_id  # once, whoever set it too
                answered[AS_TOLD] = "nosniff"
                if closing:  # what was not read must not be taken for the next request
                    answered["connection"] = "close"
            await send(message)

        app = self._answer if code is None else self._refuse
        receive = replay(content, receive, hold)
        del content  # whoever receives it drops it once it is parsed
        await app({**scope, "headers": headers}, receive, send_with_id)

    def _by_headers(self, scope: Scope, fields: Fields, key: Key | None) -> str | None:
        """The code of a refusal that needs no body."""
        raw = [pair for pair in scope["headers"] if pair[0] != FROM]  # which is HAProxy's
        if len(raw) > MOST_HEADERS or sum(map(_size, raw)) > MOST_HEADER_BYTES:
            return "headers_too_large"
        if len(scope["path"]) + len(scope.get("query_string", b"")) > MOST_ADDRESS:
            return "headers_too_large"
        if fields.get("transfer-encoding", "chunked").strip().lower() != "chunked":
            return "bad_request"
        names = [name for name, _ in raw]
        if TWINS.intersection(names) or any(names.count(name) > 1 for name in SINGLE):
            return "bad_request"
        if scope["method"] in WITHOUT_BODY and announces(fields):
            return "bad_request"
        if _switches(fields):
            return "bad_request"
        if scope["path"] != PROBE and not self._sites.named(fields):
            return "bad_host"
        if not key:
            return "unauthorized"
        if scope["method"] == "POST" and self._sites.drives_by(fields):
            return "forbidden_origin"
        if fields.get("content-encoding", "identity").strip().lower() != "identity":
            return "unsupported_encoding"
        return None


def expected(code: str, about: str, settings: Settings) -> str:
    """What a request is to be like, where a header says that it is not.

    Args:
        about: what the header says beside the code; see service/api/body.py.
    """
    bounds, keys = Bounds.of(settings), MOST_KEYS
    key = f"a key of {about} characters" if about.isdecimal() else f'the key "{about}"'
    details = {
        "headers_too_large": f"a URL may have {MOST_ADDRESS:,} characters; a request may have "
        f"{MOST_HEADERS} headers with {MOST_HEADER_BYTES:,} bytes in total",
        "bad_request": f"{listed(sorted(name.decode() for name in SINGLE), 'and')} may occur "
        "once each, spelt with hyphens; the only transfer-encoding is chunked; "
        f"{listed(sorted(WITHOUT_BODY), 'and')} take no body; and Upgrade is not supported",
        "unsupported_encoding": "leave out the header Content-Encoding",
        "invalid_encoding": "expected UTF-8, the encoding of JSON",
        "json_too_deep": f"the limit is {MOST_DEPTH} levels",
        "duplicate_key": f"{key} occurs twice in one object",
        "too_many_values": f"the limits are {bounds.objects:,} objects, {bounds.lists:,} lists, "
        f"{bounds.strings:,} strings, {bounds.values:,} commas, and {keys} keys in one object",
        "body_too_large": f"the limit is {settings.max_body_bytes:,} bytes of JSON, or "
        f"{settings.max_binary_body_bytes:,} bytes with binary tensors",
        "request_timeout": f"the limit is {BODY_SECONDS:g} s for the whole body",
    }
    return details.get(code, "")


def _passes(name: bytes, value: bytes) -> bool:
    """Whether a header goes on; Ray answers 500 where it reads one that it cannot decode."""
    if name.replace(b"-", b"_").startswith(RAYS_OWN):
        return False
    return value.isascii() or name in READ


def _address(scope: Scope, fronted: bool, proxies: int) -> bytes:
    """Where a request comes from; what a client says of itself stands before what proxies add."""
    given = [value for name, value in scope["headers"] if name == FROM]
    peer: str = (scope.get("client") or [""])[0]
    nearest = given[0] if fronted and given else peer.encode()
    if proxies:
        lists = [value for name, value in scope["headers"] if name == b"x-forwarded-for"]
        entries = b",".join(lists).split(b",")
        with suppress(ValueError, IndexError):
            address = entries[-proxies].strip().decode("ascii")
            return str(ipaddress.ip_address(address.partition("%")[0])).encode()  # no zone
    return nearest


def _switches(fields: Fields) -> bool:
    """Whether a request asks for another protocol, behind which its body would not be read.

    Java's client asks for HTTP/2 in passing; where there is no body that may be ignored.
    """
    return "upgrade" in fields and (fields["upgrade"].lower() != "h2c" or announces(fields))


def _fields(headers: RawHeaders) -> Fields:
    """Headers as Starlette reads them, each decoded once."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(headers)}


def _size(pair: tuple[bytes, bytes]) -> int:
    return len(pair[0]) + len(pair[1]) + len(": \r\n")


def _with_id(headers: RawHeaders) -> tuple[RawHeaders, str]:
    """The headers with exactly one request id: the client's if it is harmless, else a new one."""
    name = REQUEST_ID.encode()
    ids = [value for key, value in headers if key == name]
    fine = len(ids) == 1 and 0 < len(ids[0]) <= LONGEST_ID and ID_CHARACTERS.issuperset(ids[0])
    request_id = ids[0] if fine else uuid.uuid4().hex.encode()
    return [*(pair for pair in headers if pair[0] != name), (name, request_id)], request_id.decode()
