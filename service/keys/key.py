"""API keys as they are set: name, SHA-256 and limits of each, since a key itself is never kept.

    text         one key a line, or separated by commas: [name:]key or [name:]sha256:<64 hex>,
                 then its limits, if any: requests=64 tokens=65536 rate=20000
    read(texts)  what is kept of them
    entry(key)   a key as such a text has it, by its SHA-256, for other processes
    first(text)  the key itself, for a client

Source: RFC 6750, section 2.1.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

KEY = re.compile(r"[A-Za-z0-9._~+/-]{16,256}=*")  # a b64token; shorter ones can be guessed
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")
LIMIT = re.compile(r"(requests|tokens|rate)=([1-9][0-9]{0,11})")
DIGEST = r"[0-9a-f]{64}"
KNOWN_AS = "sha256"


@dataclass(frozen=True, slots=True)
class Limits:
    """What a key may use of one replica; None: no limit of its own.

    Args:
        requests, tokens: most that may wait.
        rate: tokens per second.
    """

    requests: int | None = None
    tokens: int | None = None
    rate: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One key; several of one name are one client's, which changes from one to another.

    Args:
        digest: its SHA-256, hexadecimal.
    """

    name: str
    digest: str = field(repr=False)
    limits: Limits = Limits()


def read(*texts: str) -> tuple[Key, ...]:
    """Return the keys of texts; one that stands in two is as the first has it.

    A key without a name is called key-1, key-2, .. by its place among all.

    Raises:
        ValueError: there is none, or one is not as it must be; says which by its line, never the
            key.
    """
    keys: dict[str, Key] = {}
    limits: dict[str, Limits] = {}
    for text in texts:
        before = frozenset(keys)
        for line, entry in _entries(text):
            key = _key(entry, line)
            if key.digest in before:
                continue
            if key.digest in keys:
                raise ValueError(f"api_keys: line {line} repeats the key of an earlier line")
            if key.name and limits.setdefault(key.name, key.limits) != key.limits:
                raise ValueError(f"api_keys: line {line} gives its name other limits than before")
            keys[key.digest] = key
    return tuple(_named(keys.values(), limits.keys()))


def entry(key: Key) -> str:
    """Return a key as `read` takes it."""
    limits = (f"{name}={value}" for name, value in asdict(key.limits).items() if value)
    return " ".join([f"{key.name}:{KNOWN_AS}:{key.digest}", *limits])


def first(text: str) -> str:
    """Return the first key of a text that a client can send; of others than ours any word is one.

    Raises:
        ValueError: there is none; never repeats what there is.
    """
    for line, entry in _entries(text):
        head, *limits = entry.split()
        name, _, key = head.rpartition(":")
        if not all(map(LIMIT.fullmatch, limits)):
            raise ValueError(f"line {line} holds more than `key` or `name:key`")
        if name.rpartition(":")[2] != KNOWN_AS:
            return key
    raise ValueError("holds only SHA-256 digests; a client must send the key itself")


def tenants(keys: Iterable[Key]) -> dict[str, Limits]:
    """Return the limits of each name."""
    return {key.name: key.limits for key in keys}


def _entries(text: str) -> Iterator[tuple[int, str]]:
    """Each entry and the number of its line."""
    lines = enumerate(text.split("\n"), start=1)
    entries = [(line, entry.strip()) for line, row in lines for entry in row.split(",")]
    if not any(entry for _, entry in entries):
        raise ValueError("api_keys: there is no key")
    return ((line, entry) for line, entry in entries if entry)


def _key(entry: str, line: int) -> Key:
    head, *limits = entry.split()
    name, _, key = head.rpartition(":")
    known_as = name.rpartition(":")[2] == KNOWN_AS and re.fullmatch(DIGEST, key)
    if known_as:
        name = name.rpartition(":")[0]
    if not known_as and not KEY.fullmatch(key):
        raise ValueError(
            f"api_keys: line {line} has no key of 16 to 256 letters, digits and ._~+/-"
        )
    if name and not NAME.fullmatch(name):
        raise ValueError(f"api_keys: line {line} has no name of 1 to 64 letters, digits and ._-")
    digest = key if known_as else hashlib.sha256(key.encode()).hexdigest()
    return Key(name, digest, _limits(limits, line))


def _limits(words: list[str], line: int) -> Limits:
    pairs = [match.groups() for match in map(LIMIT.fullmatch, words) if match]
    values = {name: int(value) for name, value in pairs}
    if len(values) < len(words):
        raise ValueError(
            f"api_keys: line {line} has something else after the key than requests=, tokens= and "
            "rate=, each once and with a whole number from 1"
        )
    return Limits(**values)


def _named(keys: Iterable[Key], names: Iterable[str]) -> Iterator[Key]:
    """The keys, each with a name."""
    taken = frozenset(names)
    for place, key in enumerate(keys, start=1):
        name = key.name or f"key-{place}"
        if not key.name and name in taken:
            raise ValueError(
                f"api_keys: key {place} has no name, and its default, {name}, is another key's name"
            )
        yield replace(key, name=name)
