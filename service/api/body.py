"""A JSON body before it is parsed: its size in values, and keys that occur twice.

Of duplicate keys the parser keeps the last; what the client meant is anybody's guess (RFC 8259,
section 4). It also accepts as many values as the bytes hold, and blocks every other thread of the
process while it runs. No tree is built here: that would cost as much as parsing. Split at its
quotes, a body is strings and the text between them.
"""

import json
from collections.abc import Sequence
from typing import NamedTuple

from service.settings import Settings
from service.wire import FIELD_NAMES

MOST_KEYS = 64  # in one object; attention by layer has the most
MOST_HEADS = 2048  # in a model, each of which may have a gate: an object with three keys

# JSON contains none of these bytes, so they can replace what looks like the end of a string
BACKSLASH, QUOTE = (b"\\\\", b"\x01\x01"), (b'\\"', b"\x01\x02")
NO_BRACKETS = bytes(set(range(256)) - set(b"{}"))
SPACES = b" \t\n\r"
MOST_CACHED = 64  # gaps between strings
SHORT_BYTES = 1024


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
    def of(cls, settings: Settings) -> "Bounds":
        """Return more than the largest request needs, yet so few that parsing takes tens of ms."""
        sequences, tokens = settings.max_sequences, settings.max_request_tokens
        return cls(
            objects=4 * sequences + MOST_HEADS,
            lists=2 * sequences + tokens // 8 + MOST_HEADS,  # ids and types, or a row per token
            strings=16 * sequences + 4 * MOST_HEADS,
            values=4 * (tokens + MOST_HEADS),
            keys=MOST_KEYS,
        )


class Gap(NamedTuple):
    """The text between two strings: whether it starts with a colon, and its objects' brackets."""

    colon: bool
    brackets: bytes


def check(body: bytes, bounds: Bounds) -> str | None:
    """Return the code of what is wrong with a body's text, if anything; after a colon, the key.

    What is not JSON at all, or nested beyond any request, passes: the parser refuses it.
    """
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
    return _key_fault(parts[1::2], gaps, bounds.keys)


def _gap(text: bytes, cache: dict[bytes, Gap]) -> Gap:
    """Read the text between two strings; mostly it is short and has been seen before."""
    gap = Gap(text.lstrip(SPACES)[:1] == b":", text.translate(None, NO_BRACKETS))
    if len(cache) < MOST_CACHED:
        cache[text] = gap
    return gap


def _too_many(outside: bytes, bounds: Bounds) -> bool:
    """Tell whether the text outside strings holds too many values; either bracket counts."""
    objects = max(outside.count(b"{"), outside.count(b"}"))
    lists = max(outside.count(b"["), outside.count(b"]"))
    return objects > bounds.objects or lists > bounds.lists or outside.count(b",") > bounds.values


def _plainly_fine(body: bytes) -> bool:
    """Tell whether no key appears twice and nothing is escaped, as in most requests.

    So few bytes hold fewer values than any bound.
    """
    if b"\\" in body:
        return False
    parts = body.split(b'"')
    keys = [t for t, gap in zip(parts[1::2], parts[2::2], strict=False) if gap.lstrip()[:1] == b":"]
    return len(set(keys)) == len(keys) <= MOST_KEYS


def _key_fault(strings: Sequence[bytes], gaps: Sequence[Gap], most: int) -> str | None:
    """Return the code for an object with a duplicate key, and which, or with too many keys.

    Args:
        gaps: the text before each string, and after the last.
        most: keys in one object.
    """
    objects: list[set[bytes]] = [set()]  # the keys of each open one
    _track(gaps[0].brackets, objects)
    for text, (colon, brackets) in zip(strings, gaps[1:], strict=False):
        if colon:
            key = _plain(text) if b"\\" in text or b"\x01" in text else text
            if key in objects[-1]:
                return f"duplicate_key:{_name(key)}"
            objects[-1].add(key)
            if len(objects[-1]) > most:
                return "too_many_values"
        if brackets:
            _track(brackets, objects)
    return None


def _name(key: bytes) -> str:
    """Return a key as a refusal may repeat it: one of our fields by name, any other by its size."""
    name = key.decode("utf-8", "replace")
    return name if name in FIELD_NAMES else str(len(name))


def _track(brackets: bytes, objects: list[set[bytes]]) -> None:
    """Enter and leave objects."""
    for bracket in brackets:
        if bracket == ord("{"):
            objects.append(set())
        elif bracket == ord("}") and len(objects) > 1:
            objects.pop()


def _plain(text: bytes) -> bytes:
    """Return a key without its escapes: "a" and "\\u0061" are the same."""
    escaped = text.replace(QUOTE[1], QUOTE[0]).replace(BACKSLASH[1], BACKSLASH[0])
    try:
        key: str = json.loads(b'"' + escaped + b'"')
    except ValueError:
        return text  # not JSON
    return key.encode("utf-8", "surrogatepass")
