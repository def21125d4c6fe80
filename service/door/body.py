"""A request's body: read whole, within its limits and in time, and scanned before it is parsed.

One that is compressed is a text first (coding.py).

The scan counts its values, and finds keys that occur twice. Of duplicate keys a parser keeps the
last, which may not be the one that was meant (RFC 8259, section 4). It also accepts as many values
as the bytes hold, and blocks every other thread of the process while it runs. The scan builds no
tree: that would cost as much as parsing. Split at its quotes, a body is strings and the text
between them.
"""

import json
import math
import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple, TypeVar

from pydantic import ValidationError
from starlette.requests import ClientDisconnect
from starlette.types import Receive

from service.api import ROUTES
from service.door.coding import TextTooLarge, read_text
from service.door.request import Request
from service.engine.fair.rotation import FairThread
from service.shapes.answer import INFERENCE_HEADER, JSON, OCTETS
from service.tables.memory import Hold
from service.tables.refusals import Refused, refusal_of
from service.tables.settings import BODY_FACTOR, KIB, Settings
from service.tables.wording.words import show_name

Result = TypeVar("Result")

# Open Inference paths, where INFERENCE_HEADER tells that bytes follow the JSON
INFERENCE_PREFIX = "/v2/models/"
BODY_SECONDS = 10.0  # for the whole body to arrive; the same as HAProxy's own limit
TOO_LATE = f"the limit is {BODY_SECONDS:g} s for the whole body"  # the detail of a refusal
LARGE_BYTES = 16 * KIB  # a larger body is parsed in a thread; parsing this many takes a few ms

MOST_KEYS = 512  # in one object; a request for decisions may have 400 questions
MOST_HEADS = 2048  # in a model, each of which may have a gate: an object with three keys

# (escape, substitute): JSON holds no control bytes, so after substitution each quote ends a string
BACKSLASH, QUOTE = (b"\\\\", b"\x01\x01"), (b'\\"', b"\x01\x02")
ALL_BUT_BRACES = bytes(set(range(256)) - set(b"{}"))  # what Gap.braces leaves out
SPACES = b" \t\n\r"  # JSON's white space
MOST_CACHED = 64  # gaps between strings
SHORT_BYTES = 1024  # a shorter body holds fewer values than any bound


class BodyWorker:
    """One thread, apart from the event loop, for work on large bodies.

    Parsing a body keeps other threads waiting until it is done: several at once would keep the
    event loop waiting for all of them. Keys take turns. The cores belong to the model.
    """

    def __init__(self) -> None:
        self._thread = FairThread("bodies")

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """Return the result of work on a body of this many bytes, in the thread if it is large."""
        if size <= LARGE_BYTES:
            return work()
        return await self._thread.run(partial(_run_or_refuse, work))


def _run_or_refuse(work: Callable[[], Result]) -> Result:
    """Run work on a body; convert its ValidationError here, which takes as long as parsing."""
    try:
        return work()
    except ValidationError as error:
        raise refusal_of(error) from None


class Bounds(NamedTuple):
    """The most values of each kind that a body may hold, in total and in one object.

    Args:
        strings: including keys.
        values: counted as commas, one fewer than the values in a list or an object.
        keys: in one object.
    """

    objects: int
    lists: int
    strings: int
    values: int
    keys: int

    @classmethod
    def of(cls, settings: Settings, more: int = 0) -> "Bounds":
        """Derive bounds above what the largest valid request needs; parsing takes tens of ms.

        Args:
            more: objects of the route's requests, with two keys and two texts each.
        """
        sequences, tokens = settings.max_sequences, settings.max_request_tokens
        return cls(
            objects=4 * sequences + MOST_HEADS + more,
            lists=2 * sequences + tokens // 8 + MOST_HEADS,  # ids and types, or a row per token
            strings=16 * sequences + 4 * MOST_HEADS + 4 * more,
            values=2 * tokens + 8 * sequences + 4 * MOST_HEADS + 2 * more,
            keys=MOST_KEYS,
        )

    def refusal(self) -> Refused:
        """Return the refusal of a body that exceeds a bound."""
        detail = (
            f"the limits are {self.objects:,} objects, {self.lists:,} lists, {self.strings:,}"
            f" strings, {self.values:,} commas, and {self.keys} keys in one object"
        )
        return Refused("too_many_values", detail=detail)


class BodyReader:
    """Reads and scans the bodies of requests."""

    def __init__(self, settings: Settings, worker: BodyWorker) -> None:
        self._most_json, self._most_binary = settings.max_body_bytes, settings.max_binary_body_bytes
        self._bounds = {
            more: Bounds.of(settings, more) for more in {0, *(r.values for r in ROUTES)}
        }
        self._worker = worker

    async def read(self, request: Request, receive: Receive) -> bytes:
        """Return the whole body; one that is too large is not read to its end.

        Raises:
            Refused: it is too large, there is no room for it, or the scan finds a fault.
            ClientDisconnect: the rest of it never arrives.
        """
        # which may hold arrays as bytes; the scan limits how much of it is JSON
        binary = request.media_type == OCTETS or (
            INFERENCE_HEADER in request.headers and request.path.startswith(INFERENCE_PREFIX)
        )
        limit = self._most_binary if binary else self._most_json
        # uvicorn lets only digits through; int() refuses thousands of them, leading zeros included
        if int(request.headers.get("content-length", "").lstrip("0") or "0") > limit:
            raise self._size_refusal()
        request.until = time.monotonic() + BODY_SECONDS
        body = await self._receive(receive, limit, request.hold)
        if coding := request.headers.get("content-encoding"):
            try:
                body = await read_text(body, coding, limit, request.hold)
            except TextTooLarge:
                raise self._size_refusal() from None
        request.until = math.inf
        if len(body) <= LARGE_BYTES:
            self._scan(request, body)
        else:
            arrived = time.monotonic()
            await self._worker.run(len(body), partial(self._scan, request, body))
            request.waited += time.monotonic() - arrived  # its client's time runs meanwhile
        return body

    async def _receive(self, receive: Receive, limit: int, hold: Hold) -> bytes:
        """Return the whole body, of at most `limit` bytes, and count its memory in `hold`."""
        body = bytearray()
        while True:
            message = await receive()
            if message["type"] == "http.disconnect":
                raise ClientDisconnect
            piece: bytes = message.get("body", b"")
            hold.take(bodies=BODY_FACTOR * (len(body) + len(piece)))
            if len(body) + len(piece) > limit:
                raise self._size_refusal()
            more = message.get("more_body", False)
            if not body and not more:
                return piece
            body += piece
            if not more:
                return bytes(body)

    def _scan(self, request: Request, body: bytes) -> None:
        """Scan the JSON of a body: all of it, or the part before the bytes of binary tensors."""
        more = request.endpoint.values if request.endpoint else 0
        if not request.path.startswith(INFERENCE_PREFIX):
            if request.media_type in (None, JSON):
                scan(body, self._bounds[more])
            return
        length = request.headers.get(INFERENCE_HEADER, "")
        announced = length.isdecimal() and len(length) < 10
        text = body[: int(length)] if announced else body
        if len(text) > self._most_json:
            raise self._size_refusal()
        scan(text, self._bounds[more])

    def _size_refusal(self) -> Refused:
        """Return the refusal of a body that is larger than the settings allow."""
        detail = (
            f"the limit is {self._most_json:,} bytes of JSON, or {self._most_binary:,} bytes with"
            " binary tensors"
        )
        return Refused("body_too_large", detail=detail)


def timeout_refusal() -> Refused:
    """Return the refusal of a body that does not arrive whole in time."""
    return Refused("request_timeout", detail=TOO_LATE)


class Gap(NamedTuple):
    """The text between two strings of a body.

    Args:
        colon: whether it starts with one: the string before it is a key.
        braces: those in it, in order, without anything else.
    """

    colon: bool
    braces: bytes


def scan(body: bytes, bounds: Bounds) -> None:
    """Refuse a body that holds too many values, or an object that has a key twice.

    What is not JSON at all, or nested beyond any request, passes: the parser refuses it.

    Raises:
        Refused: too_many_values or duplicate_key.
    """
    if len(body) <= SHORT_BYTES and _has_distinct_keys(body):
        return
    if b"\\" in body:
        body = body.replace(*BACKSLASH).replace(*QUOTE)
    if body.count(b'"') > 2 * bounds.strings:
        raise bounds.refusal()
    parts = body.split(b'"')
    if _exceeds_bounds(b"".join(parts[::2]), bounds):
        raise bounds.refusal()
    cache: dict[bytes, Gap] = {}
    gaps = [cache.get(text) or _read_gap(text, cache) for text in parts[::2]]
    _check_keys(parts[1::2], gaps, bounds)


def _read_gap(text: bytes, cache: dict[bytes, Gap]) -> Gap:
    """Return the text between two strings as a Gap, and cache it: few texts differ."""
    gap = Gap(text.lstrip(SPACES)[:1] == b":", text.translate(None, ALL_BUT_BRACES))
    if len(cache) < MOST_CACHED:
        cache[text] = gap
    return gap


def _exceeds_bounds(outside: bytes, bounds: Bounds) -> bool:
    """Tell whether the text outside strings has too many brackets, of either side, or commas."""
    objects = max(outside.count(b"{"), outside.count(b"}"))
    lists = max(outside.count(b"["), outside.count(b"]"))
    return objects > bounds.objects or lists > bounds.lists or outside.count(b",") > bounds.values


def _has_distinct_keys(body: bytes) -> bool:
    """Tell whether no key appears twice in the whole body and nothing is escaped, as usual."""
    if b"\\" in body:
        return False
    parts, keys = body.split(b'"'), set[bytes]()
    for text, gap in zip(parts[1::2], parts[2::2], strict=False):
        if gap.lstrip()[:1] == b":":
            if text in keys:
                return False
            keys.add(text)
    return len(keys) <= MOST_KEYS


def _check_keys(strings: Sequence[bytes], gaps: Sequence[Gap], bounds: Bounds) -> None:
    """Refuse an object with a duplicate key, or with too many keys.

    Args:
        gaps: the text before each string, and after the last.
    """
    objects: list[set[bytes]] = [set()]  # the keys of each open object
    _track_objects(gaps[0].braces, objects)
    for text, (colon, braces) in zip(strings, gaps[1:], strict=False):
        if colon:
            key = _unescape(text) if b"\\" in text or b"\x01" in text else text
            if key in objects[-1]:
                detail = f"{_describe(key)} occurs twice in one object"
                raise Refused("duplicate_key", detail=detail)
            objects[-1].add(key)
            if len(objects[-1]) > bounds.keys:
                raise bounds.refusal()
        if braces:
            _track_objects(braces, objects)


def _describe(key: bytes) -> str:
    """Describe a key for a refusal, by its name if that is plain."""
    return f"the key {show_name(key.decode('utf-8', 'replace'))}"


def _track_objects(braces: bytes, objects: list[set[bytes]]) -> None:
    """Add an empty set of keys to `objects` for each "{", and remove the last for each "}"."""
    for brace in braces:
        if brace == ord("{"):
            objects.append(set())
        elif brace == ord("}") and len(objects) > 1:
            objects.pop()


def _unescape(text: bytes) -> bytes:
    """Return a key without its escapes: "a" and "\\u0061" are the same."""
    escaped = text.replace(QUOTE[1], QUOTE[0]).replace(BACKSLASH[1], BACKSLASH[0])
    try:
        key: str = json.loads(b'"' + escaped + b'"')
    except ValueError:
        return text  # not JSON
    return key.encode("utf-8", "surrogatepass")
