"""A JSON body before it is parsed: its encoding, its depth, and that no key stands twice.

The parser takes any depth up to its own and the last of equal keys; what a client meant by them
is anybody's guess. (RFC 8259, sections 4, 8.1 and 9.) No tree is built here: that would cost as
much as parsing. Cut at its quotes, a body is strings and what stands between them.

A safetensors file is held to the same: its header is JSON, and in it stands the request.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

import orjson

from service.encode.answer import METADATA

MOST_DEPTH = 8  # objects and lists inside each other; the wire needs 6
BYTE_ORDER_MARKS = (b"\xef\xbb\xbf", b"\xff\xfe", b"\xfe\xff")

# JSON holds none of these bytes, so they can stand for what looks like a string's end
BACKSLASH, QUOTE = (b"\\\\", b"\x01\x01"), (b'\\"', b"\x01\x02")
NO_BRACKETS = bytes(set(range(256)) - set(b"[]{}"))
ONE_KIND = bytes.maketrans(b"{}", b"[]")
SPACES = b" \t\n\r"
MOST_CACHED = 64  # gaps between strings
LENGTH_BYTES = 8  # of a safetensors file, before its header: the header's length


class Gap(NamedTuple):
    """What stands between two strings: whether a colon comes first, and its brackets."""

    colon: bool
    brackets: bytes


def check(body: bytes) -> str | None:
    """The code of what is wrong with a body's text, if anything is.

    What is not JSON at all passes: the parser refuses it.
    """
    if not _is_utf8(body):
        return "invalid_encoding"
    if b"\\" in body:
        body = body.replace(*BACKSLASH).replace(*QUOTE)
    parts = body.split(b'"')
    cache: dict[bytes, Gap] = {}
    gaps = [cache.get(text) or _gap(text, cache) for text in parts[::2]]
    if _too_deep(b"".join([gap.brackets for gap in gaps]).translate(ONE_KIND)):
        return "json_too_deep"
    return "duplicate_key" if _has_duplicate_key(parts[1::2], gaps) else None


def check_file(body: bytes, most: int) -> str | None:
    """The same of a safetensors file: of its header, and of the request in its metadata.

    What is no such file passes, and so does a header of more than `most` bytes: the reader of
    files refuses both.
    """
    length = header_bytes(body)
    if length > min(most, len(body)):
        return None
    header = body[LENGTH_BYTES:][:length]
    return check(header) or check(_request(header))


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


def _has_duplicate_key(strings: Sequence[bytes], gaps: Sequence[Gap]) -> bool:
    """Whether an object has two keys that say the same.

    Args:
        gaps: what stands before each string, and after the last.
    """
    objects: list[set[bytes]] = [set()]  # the keys of each that is open
    _follow(gaps[0].brackets, objects)
    for text, (colon, brackets) in zip(strings, gaps[1:], strict=False):
        if colon:
            key = _plain(text) if b"\\" in text or b"\x01" in text else text
            if key in objects[-1]:
                return True
            objects[-1].add(key)
        if brackets:
            _follow(brackets, objects)
    return False


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
