"""One request on its way through the door: what its head says, and what becomes of it."""

import asyncio
import math
import os
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence, Set
from typing import NamedTuple

from starlette.types import Scope

from service.api.dialect import RefusalWriter, Reply
from service.edge.gate import Place
from service.memory import Hold
from service.observe.record import REQUEST_ID, Record
from service.refusals import Refused
from service.settings import KIB

DEADLINE = "x-headlight-deadline-ms"
LONGEST_DEADLINE = 9  # digits of milliseconds
LONGEST_ID = 128
ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MOST_ADDRESS = 2 * KIB  # characters of path and query; every route's pattern scans them
SLASHES = re.compile("//+")  # of a client that joins an address and a path
NO_NAMES: Set[str] = frozenset()


class Endpoint(NamedTuple):
    """What answers requests with one path and method.

    Args:
        label: its name in metrics.
        word: words a refusal.
        query: the parameters it knows.
        trusted: whether a replica that knows it computes wrongly refuses it.
    """

    label: str
    word: RefusalWriter
    query: Sequence[str]
    trusted: bool
    handle: Callable[["Request"], Awaitable[Reply]]


class Request:
    """A request as the door and the handlers see it.

    Attributes:
        path: its own, below the prefix under which a cluster mounts us, which is `root_path`;
            of an address that is too long, its beginning.
        raw_headers: as received, without HAProxy's own.
        headers: by lower-case name; the first where a name occurs twice.
        repeated: names of headers that occur more than once.
        media_type: of its body, lower case, without parameters; None if it names none.
        closing: whether its connection ends with it because its body is left unread.
        endpoint, path_params: what answers it, if anything, and the named parts of its path.
        key: the name of its API key.
        place: its place at the gate; waited: the seconds it waited there.
        timeout: the seconds that its client gives it, counted from when it has arrived whole.
        body: the whole body, once it has been read.
        shed: the bound it met, where it is turned away.
        record: what is known of it, once it has `begun`: it has arrived whole or is refused.
        word: words its refusal, where its path alone does not decide that.
        ignored: fields of its body that its route does not know, where that is no fault.
        until: when the door ends it, on time.monotonic's clock; overdue: whether the door has.
    """

    __slots__ = (
        *("begun", "body", "closing", "endpoint", "headers", "hold", "id", "ignored", "key"),
        *("media_type", "method", "overdue", "path", "path_params", "place", "query"),
        *("raw_headers", "record", "repeated", "root_path", "shed", "task", "timeout", "until"),
        *("waited", "word"),
    )

    headers: Mapping[str, str]
    task: "asyncio.Task[object]"
    endpoint: Endpoint | None
    path_params: Mapping[str, str]
    record: Record

    def __init__(self, scope: Scope, hold: Hold) -> None:
        self.method, self.query, self.hold = scope["method"], scope.get("query_string", b""), hold
        self.root_path = scope.get("root_path", "")
        self.path = own_path(self.root_path, scope["path"])
        raw = self.raw_headers = scope["headers"]
        # each is decoded once
        self.headers = {
            name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)
        }
        self.repeated = repeated(raw) if len(self.headers) < len(raw) else NO_NAMES
        self.id = request_id(self.single(REQUEST_ID))
        # else it could pass for the next request of its connection
        self.closing = self.method != "POST" and announces_body(self.headers)
        self.media_type: str | None = None
        if (content_type := self.headers.get("content-type")) is not None:
            self.media_type = content_type.partition(";")[0].strip().lower()
        self.body, self.key = b"", ""
        self.word: RefusalWriter | None = None
        self.ignored: dict[str, None] = {}
        self.place: Place | None = None
        self.shed: str | None = None
        self.waited, self.timeout, self.until = 0.0, math.inf, math.inf
        self.begun = self.overdue = False

    def single(self, name: str) -> str:
        """Return a header; empty unless there is exactly one."""
        return "" if name in self.repeated else self.headers.get(name, "")

    def take_body(self) -> bytes:
        """Return the body, which from then on belongs to the caller alone."""
        body, self.body = self.body, b""
        return body


def own_path(root: str, path: str) -> str:
    """Return a path below the prefix under which we are mounted, without needless slashes."""
    if root:
        path = path[len(root) :] if path.startswith(f"{root}/") else ""
    path = path[: MOST_ADDRESS + 1]
    if len(path) <= MOST_ADDRESS and ("//" in path or path.endswith("/")):
        path = SLASHES.sub("/", path).rstrip("/") or "/"
    return path


def repeated(raw: Sequence[tuple[bytes, bytes]]) -> Set[str]:
    """Return the names that occur more than once."""
    seen, names = set[bytes](), set[str]()
    for name, _ in raw:
        if name in seen:
            names.add(name.decode("latin-1"))
        seen.add(name)
    return names


def request_id(sent: str) -> str:
    """Return a request's id: the client's if harmless, else a new one."""
    if 0 < len(sent) <= LONGEST_ID and ID_CHARACTERS.issuperset(sent):
        return sent
    return os.urandom(16).hex()


def announces_body(headers: Mapping[str, str]) -> bool:
    """Tell whether a body follows; a length of 0 means none."""
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def read_timeout(headers: Mapping[str, str], most: float) -> float:
    """Return the seconds that a request's client gives it, at most `most`.

    Raises:
        Refused: the header is not a number of milliseconds.
    """
    header = headers.get(DEADLINE)
    if header is None:
        return most
    if not header.isdecimal() or not header.isascii() or len(header) > LONGEST_DEADLINE:
        detail = f"expected a number of milliseconds of up to {LONGEST_DEADLINE} digits"
        raise Refused.at("out_of_range", DEADLINE, detail=detail)
    return min(int(header) / 1000, most)
