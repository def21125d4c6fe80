"""A JSON body before it is parsed: its encoding, its size in values, its depth, and its keys.

The parser takes any depth up to its own and the last of equal keys; what a client meant by them
is anybody's guess. (RFC 8259, sections 4, 8.1 and 9.) It also takes as many values as bytes hold,
and keeps every other thread of the process waiting for as long as it takes. No tree is built
here: that would cost as much as parsing. Cut at its quotes, a body is strings and what stands
between them.

A safetensors file is held to the same: its header is JSON, and in it stands the request.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from service.encode.answer import METADATA
from service.settings import Settings
from service.wire import FIELDS

MOST_DEPTH = 8  # objects and lists inside each other; the wire needs 6
MOST_KEYS = 64  # of one object; attention by layer has the most
MOST_HEADS = 2048  # of a model, each of which may have a gate: an object with three keys
BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

# JSON holds none of these bytes, so they can stand for what looks like a string's end
BACKSLASH, QUOTE = (b"\\\\", b"\x01\x01"), (b'\\"', b"\x01\x02")
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
ONE_KIND = bytes.maketrans(b"{}", b"[]")
SPACES = b" \t\n\r"
MOST_CACHED = 64  # gaps between strings
SHORT_BYTES = 1024
LENGTH_BYTES = 8  # of a safetensors file, before its header: the header's length


class Bounds(NamedTuple):
    """How many values a body may hold of each kind, all of it and in one object.

    Args:
        strings: keys are some of them.
        values: commas, of which there is one fewer than values in a list or an object.
        keys: of one object.
    """

    objects: int
    lists: int
    strings: int
    values: int
    keys: int

    @classmethod
    def of(cls, settings: Settings) -> "Bounds":
        """More than the largest request needs; few enough that to parse them takes tens of ms."""
        sequences, tokens = settings.max_sequences, settings.max_request_tokens
        return cls(
            objects=4 * sequences + MOST_HEADS,
            lists=2 * sequences + tokens // 8 + MOST_HEADS,  # ids and types, or a row a token
            strings=16 * sequences + 4 * MOST_HEADS,
            values=4 * (tokens + MOST_HEADS),
            keys=MOST_KEYS,
        )

    def of_header(self) -> "Bounds":
        """The same for a safetensors header, one object with a key for each tensor."""
        return self._replace(keys=self.objects)


class Gap(NamedTuple):
    """What stands between two strings: whether a colon comes first, and its brackets."""

    colon: bool
    brackets: bytes


def check(body: bytes, bounds: Bounds) -> str | None:
    """The code of what is wrong with a body's text, if anything is; behind a colon, of which key.

    What is not JSON at all passes: the parser refuses it.
    """
    if not _is_utf8(body):
        return "invalid_encoding"
    if len(body) <= SHORT_BYTES and _plainly_fine(body):
        return None
    if b"\\" in body:
        body = body.replace(*BACKSLASH).replace(*QUOTE)
    if body.count(b'"') > 2 * bounds.strings:
        return "too_many_values"
    parts = body.split(b'"')
    if _too_many(b"".join(parts[::2]), bounds):
        return "too_many_values"
    cache: dict[bytes, Gap] = {}
    gaps = [cache.get(text) or _gap(text, cache) for text in parts[::2]]
    if _too_deep(b"".join([gap.brackets for gap in gaps]).translate(ONE_KIND)):
        return "json_too_deep"
    return _key_fault(parts[1::2], gaps, bounds.keys)


def check_file(body: bytes, most: int, bounds: Bounds) -> str | None:
    """The same of a safetensors file: of its header, and of the request in its metadata.

    What is no such file passes, and so does a header of more than `most` bytes: the reader of
    files refuses both.
    """
    length = header_bytes(body)
    if length > min(most, len(body)):
        return None
    header = body[LENGTH_BYTES:][:length]
    return check(header, bounds.of_header()) or check(_request(header), bounds)


def header_bytes(body: bytes) -> int:
    """How long a safetensors file says that its header is."""
    return int.from_bytes(body[:LENGTH_BYTES], "little")


def _request(header: bytes) -> bytes:
    """The request in a file's metadata; nothing where there is none."""
    try:
        text = orjson.loads(header)["__metadata__"][METADATA]
    except (ValueError, KeyError, TypeError):
        return b""
    return text.encode() if isinstance(text, str) else b""


def _gap(text: bytes, cache: dict[bytes, Gap]) -> Gap:
    """Read what stands between two strings; mostly it is short, and the same as before."""
    gap = Gap(text.lstrip(SPACES)[:1] == b":", text.translate(None, NO_BRACKETS))
    if len(cache) < MOST_CACHED:
        cache[text] = gap
    return gap


def _is_utf8(body: bytes) -> bool:
    """Whether it is UTF-8 without a mark; UTF-16 and UTF-32 have zeros among the first bytes."""
    start = body[:4]
    wide = 0 in start and start.strip(b"\0")[:1] in (b"{", b"[", b'"')
    if wide or start.startswith(BYTE_ORDER_MARKS):
        return False
    try:
        body.decode()
    except UnicodeDecodeError:
        return False
    return True


def _too_deep(brackets: bytes) -> bool:
    """Whether more than MOST_DEPTH are open at once; one level goes at a time, inside out."""
    for _ in range(MOST_DEPTH):
        brackets = brackets.replace(b"[]", b"")
    return b"[]" in brackets or brackets.count(b"[") > MOST_DEPTH


def _too_many(outside: bytes, bounds: Bounds) -> bool:
    """Whether what stands outside strings holds too many values; either bracket counts."""
    objects = max(outside.count(b"{"), outside.count(b"}"))
    lists = max(outside.count(b"["), outside.count(b"]"))
    return objects > bounds.objects or lists > bounds.lists or outside.count(b",") > bounds.values


def _plainly_fine(body: bytes) -> bool:
    """Whether no key stands twice anywhere, and nothing is escaped or deep: as most requests are.

    So few bytes hold fewer values than any bound.
    """
    if b"\\" in body or body.count(b"{") + body.count(b"[") > MOST_DEPTH:
        return False
    parts = body.split(b'"')
    keys = [t for t, gap in zip(parts[1::2], parts[2::2], strict=False) if gap.lstrip()[:1] == b":"]
    return len(set(keys)) == len(keys) <= MOST_KEYS


def _key_fault(strings: Sequence[bytes], gaps: Sequence[Gap], most: int) -> str | None:
    """The code of an object that has two keys that say the same, and which, or too many.

    Args:
        gaps: what stands before each string, and after the last.
        most: keys of one object.
    """
    objects: list[set[bytes]] = [set()]  # the keys of each that is open
    _follow(gaps[0].brackets, objects)
    for text, (colon, brackets) in zip(strings, gaps[1:], strict=False):
        if colon:
            key = _plain(text) if b"\\" in text or b"\x01" in text else text
            if key in objects[-1]:
                return f"duplicate_key:{_name(key)}"
            objects[-1].add(key)
            if len(objects[-1]) > most:
                return "too_many_values"
        if brackets:
            _follow(brackets, objects)
    return None


def _name(key: bytes) -> str:
    """A key as a refusal may repeat it: a field of ours by name, any other by its size."""
    name = key.decode("utf-8", "replace")
    return name if name in FIELDS else str(len(name))


def _follow(brackets: bytes, objects: list[set[bytes]]) -> None:
    """Enter and leave objects; lists have no keys."""
    for bracket in brackets:
        if bracket == ord("{"):
            objects.append(set())
        elif bracket == ord("}") and len(objects) > 1:
            objects.pop()


def _plain(text: bytes) -> bytes:
    """A key without its escapes: "a" and "\\u0061" are the same."""
    escaped = text.replace(QUOTE[1], QUOTE[0]).replace(BACKSLASH[1], BACKSLASH[0])
    try:
        key: str = json.loads(b'"' + escaped + b'"')
    except ValueError:
        return text  # not JSON
    return key.encode("utf-8", "surrogatepass")
