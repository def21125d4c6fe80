"""One request on its way through the door: its head, and the state of its handling."""

import asyncio
import math
import os
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import NamedTuple

from starlette.types import Scope

from service.door.gate import Place
from service.shapes.call import RefusalWriter, Reply
from service.shapes.record import REQUEST_ID, Record
from service.tables.memory import Hold
from service.tables.refusals import Refused
from service.tables.settings import KIB
from service.tables.wording.words import list_names

DEADLINE = "x-headlight-deadline-ms"  # the header of a client's time-out
LONGEST_DEADLINE = 9  # digits of milliseconds
LONGEST_ID = 128  # characters of a client's request id
ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
MOST_ADDRESS = 2 * KIB  # characters of path and query; every route's pattern scans them
# Media types that programs send by default -> how a refusal names them
COMMON_MEDIA_TYPES = {
    "": "an empty one",
    "application/x-www-form-urlencoded": "that of a form, the default of curl -d",
    "multipart/form-data": "multipart/form-data",
    "text/plain": "text/plain",
    "application/octet-stream": "application/octet-stream",
}


class Endpoint(NamedTuple):
    """What answers requests with one path and method.

    Args:
        path: of its route, with the names of its parts.
        label: its name in metrics.
        word: writes a refusal in its API's form.
        query: the names of the query parameters it takes.
        trusted: whether it is refused while the replica has found its own results to be wrong.
        handle: returns the answer to a request.
        values: how many more objects its requests may hold than those of others.
    """

    path: str
    label: str
    word: RefusalWriter
    query: Sequence[str]
    trusted: bool
    handle: Callable[["Request"], Awaitable[Reply]]
    values: int = 0


class Request:
    """A request as the door and the handlers see it.

    Attributes:
        path: below the prefix under which a cluster mounts us, which is `root_path`; only its
            first MOST_ADDRESS + 1 characters.
        raw_headers: as received, without HAProxy's own.
        headers: by lower-case name; the first where a name occurs twice.
        repeated: names of headers that occur more than once; head_bytes: of all headers.
        media_type: of its body, lower case, without parameters; None if it names none.
        closing: whether its connection ends with it because its body is left unread.
        endpoint, path_params: what answers it, if anything, and the named parts of its path.
        key: the name of its API key; models: names of the only models that this may use, if any.
        hold: the memory that it takes.
        place: its place at the gate; waited: the seconds it waited there, and for its body's scan;
            late: those it waited for a round of the loop.
        timeout: the seconds that its client gives it, counted from when it has arrived whole.
        body: the whole body, once it has been read.
        sent_on: whether another model has it, which counts it.
        unbounded: whether no admission bounds it, as a wrong key, a GET or a dry run.
        record: its metrics, log and trace; it has `begun` once the request has arrived whole or is
            refused, and until it is told.
        word: writes its refusal, where its body decides how; None: its endpoint's.
        ignored: fields of its body that its route does not know, where that is no fault.
        until: when the door cancels it, on time.monotonic's clock; overdue: whether the door has.
    """

    __slots__ = (
        *("begun", "body", "closing", "endpoint", "head_bytes", "headers", "hold", "id"),
        *("ignored", "key"),
        *("late", "media_type", "method", "models", "overdue", "path", "path_params", "place"),
        *("query", "raw_headers", "record", "repeated", "root_path", "task", "timeout"),
        *("sent_on", "unbounded", "until", "waited", "word"),
    )

    headers: Mapping[str, str]
    task: "asyncio.Task[object]"
    endpoint: Endpoint | None
    path_params: Mapping[str, str]
    record: Record

    def __init__(self, scope: Scope, hold: Hold) -> None:
        self.method, self.query, self.hold = scope["method"], scope.get("query_string", b""), hold
        self.root_path = scope.get("root_path", "")
        self.path = strip_root_path(self.root_path, scope["path"])
        raw = self.raw_headers = scope["headers"]
        headers: dict[str, str] = {}
        self.headers, self.repeated, size = headers, set[str](), 0
        for raw_name, value in raw:
            size += len(raw_name) + len(value) + len(": \r\n")
            name = raw_name.decode("latin-1")
            if name in headers:
                self.repeated.add(name)
            else:
                headers[name] = value.decode("latin-1")
        self.head_bytes = size
        self.id = choose_id(self.single(REQUEST_ID))
        # else its unread body could be taken for the next request of its connection
        self.closing = self.method != "POST" and has_body(self.headers)
        self.media_type: str | None = None
        if (content_type := self.headers.get("content-type")) is not None:
            self.media_type = content_type.partition(";")[0].strip().lower()
        self.body, self.key = b"", ""
        self.models: Sequence[str] = ()
        self.word: RefusalWriter | None = None
        self.ignored: dict[str, None] = {}
        self.place: Place | None = None
        self.waited, self.late, self.timeout, self.until = 0.0, 0.0, math.inf, math.inf
        self.begun = self.overdue = self.sent_on = False
        self.unbounded = True  # until its key and its route are known

    def single(self, name: str) -> str:
        """Return a header's value; empty unless there is exactly one header of that name."""
        return "" if name in self.repeated else self.headers.get(name, "")

    def take_body(self) -> bytes:
        """Return the body and forget it, so that the caller alone keeps it in memory."""
        body, self.body = self.body, b""
        return body


def strip_root_path(root_path: str, path: str) -> str:
    """Return a path below root_path; "" if it is not below it."""
    if root_path:
        if path == root_path:  # what a client asks that takes the prefix for its base URL
            path = f"{path}/"
        path = path[len(root_path) :] if path.startswith(f"{root_path}/") else ""
    return path[: MOST_ADDRESS + 1]


def choose_id(client_id: str) -> str:
    """Return a request's id: the client's X-Request-Id if short and harmless, else a new one."""
    if 0 < len(client_id) <= LONGEST_ID and ID_CHARACTERS.issuperset(client_id):
        return client_id
    return os.urandom(16).hex()


def has_body(headers: Mapping[str, str]) -> bool:
    """Tell whether a request's headers announce a body; a Content-Length of 0 announces none."""
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def read_timeout(headers: Mapping[str, str], most: float) -> float:
    """Return the seconds of a request's X-Headlight-Deadline-Ms, at most `most`, also the default.

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


def check_media_type(media_type: str | None, types: Sequence[str]) -> None:
    """Refuse a body whose media type is none of the route's `types`.

    Args:
        media_type: the request's, in lower case and without parameters; None is JSON.
    """
    if media_type is not None and media_type not in types:
        # only a common one is repeated, which reveals nothing about the sender
        name = COMMON_MEDIA_TYPES.get(media_type, "another one")
        detail = f"expected the Content-Type {list_names(types)}, received {name}"
        raise Refused("unsupported_media_type", detail=detail)
