"""API keys: the texts that state them, and what is kept of each.

A text of keys holds one per line, or several separated by commas: [name:]key or
[name:]sha256:<64 hex>, then its limits, if any: requests=64 tokens=65536, and metrics where it
may read those of all keys. models=a,b names the only models that it may use; that list runs to the
end of the line. A key itself is never kept.

Source: RFC 6750, section 2.1.
"""

import hashlib
import re
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, field, replace

KEY = re.compile(r"[A-Za-z0-9._~+/-]{16,256}=*")  # a b64token; shorter ones can be guessed
NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,63}")  # of a key
SENDABLE = re.compile(r"[!-~]+")  # in a header: any word that another service may take for a key
OPTION = re.compile(r"([a-z]{1,15})=[0-9]+")  # what looks like a limit; no part of a key does
LIMIT_OPTIONS = ("requests", "tokens")  # the fields of Limits
LIMIT = re.compile(rf"({'|'.join(LIMIT_OPTIONS)})=([1-9][0-9]{{0,11}})")
METRICS_OPTION = "metrics"  # marks a key that may read the metrics
MODELS_OPTION = "models="  # begins the list of models that a key may use
MODELS = re.compile(rf"(?<=[^\s,])\s+{MODELS_OPTION}")  # after a key, up to the end of its line
MODEL = re.compile(r"[^\s=]{1,256}")  # the name of a model
ENTRY = re.compile(rf".+:{KEY.pattern}")  # what reads as another key where a model is expected
DIGEST = r"[0-9a-f]{64}"  # SHA-256 in hexadecimal
# What a mistyped digest begins with, before a colon or in the key: it would pass for a key
ANY_DIGEST = re.compile(r"(sha[-_]?\d{1,3}|md5)", re.IGNORECASE)
DIGEST_ALGORITHM = "sha256"


@dataclass(frozen=True, slots=True)
class Limits:
    """The limits of a key on one replica; None: no limit of its own.

    Args:
        requests, tokens: how many of the key may wait at most.
    """

    requests: int | None = None
    tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Key:
    """One API key; keys of one name belong to one client, who replaces one by another.

    Args:
        digest: its SHA-256, hexadecimal.
        metrics: whether it may read the metrics, which show the use of all keys.
        models: names of the only models that it may use; empty: it may use all.
    """

    name: str
    digest: str = field(repr=False)
    limits: Limits = Limits()
    metrics: bool = False
    models: tuple[str, ...] = ()


def parse_keys(*texts: str) -> tuple[Key, ...]:
    """Parse texts of keys; a key that stands in two texts is as in the first.

    A key without a name is called key-1, key-2, .. by its place among all.

    Raises:
        ValueError: there is no key, or a wrong one, named by its line and never by the key.
    """
    keys: dict[str, Key] = {}
    rights: dict[str, tuple[Limits, tuple[str, ...]]] = {}
    for text in texts:
        before = frozenset(keys)
        for line, entry, models in _split_entries(text):
            key = _parse_key(entry, models, line)
            if key.digest in before:
                continue
            if key.digest in keys:
                raise ValueError(f"line {line} repeats the key of an earlier line")
            own = key.limits, key.models
            if key.name and (earlier := rights.setdefault(key.name, own)) != own:
                other = "limits" if earlier[0] != key.limits else "models"
                raise ValueError(f"line {line} gives its name other {other} than an earlier line")
            keys[key.digest] = key
    return tuple(_name_keys(keys.values(), rights.keys()))


def format_entry(key: Key) -> str:
    """Return a key as a line of the text that `parse_keys` reads, with its digest."""
    limits = (f"{name}={value}" for name, value in asdict(key.limits).items() if value)
    mark = [METRICS_OPTION] if key.metrics else []
    models = [MODELS_OPTION + ",".join(key.models)] if key.models else []
    return " ".join([f"{key.name}:{DIGEST_ALGORITHM}:{key.digest}", *limits, *mark, *models])


def first_key(text: str) -> str:
    """Return the first key of a text that a client can send; another service's key may be any word.

    Raises:
        ValueError: there is none; the message never repeats the text.
    """
    for line, entry, _ in _split_entries(text):
        stated, *words = entry.split()
        name, _, key = stated.rpartition(":")
        if not all(word == METRICS_OPTION or LIMIT.fullmatch(word) for word in words):
            raise ValueError(f"line {line} holds more than `key` or `name:key`")
        if not _is_digest(name, key, line):
            if not SENDABLE.fullmatch(key):
                raise ValueError(f"line {line} has no key of letters, digits and signs of ASCII")
            return key
    raise ValueError("holds only SHA-256 digests; a client must send the key itself")


def limits_by_name(keys: Iterable[Key]) -> dict[str, Limits]:
    """Return the limits of each name of a key."""
    return {key.name: key.limits for key in keys}


def _split_entries(text: str) -> Iterator[tuple[int, str, str | None]]:
    """Yield each entry of a text, with the number of its line and its list of models, if any."""
    found = False
    for line, row in enumerate(text.split("\n"), start=1):
        before, *models = MODELS.split(row, maxsplit=1)
        *entries, last = before.split(",")
        listed = models[0] if models else None
        for entry, names in [*((each, None) for each in entries), (last, listed)]:
            if entry.strip():
                found = True
                yield line, entry.strip(), names
    if not found:
        raise ValueError("there is no key")


def _parse_key(entry: str, models: str | None, line: int) -> Key:
    """Parse an entry of a text of keys and its list of models; raises ValueError with its line."""
    stated, *words = entry.split()
    if metrics := METRICS_OPTION in words:
        words.remove(METRICS_OPTION)
    name, _, key = stated.rpartition(":")
    is_digest = _is_digest(name, key, line)
    if is_digest:
        name = name.rpartition(":")[0]
    if not is_digest and not KEY.fullmatch(key):
        raise ValueError(f"line {line} has no key of 16 to 256 letters, digits and ._~+/-")
    if name and not NAME.fullmatch(name):
        raise ValueError(f"line {line} has no name of 1 to 64 letters, digits and ._-")
    digest = key if is_digest else hashlib.sha256(key.encode()).hexdigest()
    named = () if models is None else _parse_models(models, line)
    return Key(name, digest, _parse_limits(words, line), metrics, named)


def _is_digest(name: str, key: str, line: int) -> bool:
    """Tell whether an entry holds a digest, as the word before its last colon says.

    Raises:
        ValueError: it only begins like a digest.
    """
    before = name.rpartition(":")[2]
    if before == DIGEST_ALGORITHM and re.fullmatch(DIGEST, key):
        return True
    if ANY_DIGEST.fullmatch(before) or re.match(ANY_DIGEST.pattern + "[-_=/.]", key, re.I):
        raise ValueError(
            f"line {line} begins like a digest; expected sha256: and 64 digits of 0-9a-f"
        )
    return False


def _parse_limits(words: list[str], line: int) -> Limits:
    """Parse the words after a key into its limits; raises ValueError with its line."""
    pairs = [match.groups() for match in map(LIMIT.fullmatch, words) if match]
    values = {name: int(value) for name, value in pairs}
    if len(values) < len(words):
        options = (match[1] for match in map(OPTION.fullmatch, words) if match)
        if unknown := next((name for name in options if name not in LIMIT_OPTIONS), None):
            raise ValueError(
                f"line {line} has the unknown option {unknown}=; only "
                "requests=, tokens=, metrics and models= are known"
            )
        raise ValueError(
            f"line {line}: after the key there may be requests= and tokens= with a whole number "
            "from 1, and metrics, each once, and models= last"
        )
    return Limits(**values)


def _parse_models(listed: str, line: int) -> tuple[str, ...]:
    """Parse the list of models that a key may use; raises ValueError with its line."""
    names = [name.strip() for name in listed.split(",")]
    if not all(MODEL.fullmatch(name) and not ENTRY.fullmatch(name) for name in names):
        raise ValueError(
            f"line {line}: after models= there may be only names of models, separated by commas; "
            "the list runs to the end of the line, and no key can follow there"
        )
    return tuple(sorted(set(names)))


def _name_keys(keys: Iterable[Key], names: Iterable[str]) -> Iterator[Key]:
    """Yield the keys, one without a name as key-<place>, which none of `names` may be."""
    taken = frozenset(names)
    for place, key in enumerate(keys, start=1):
        name = key.name or f"key-{place}"
        if not key.name and name in taken:
            raise ValueError(
                f"key {place} has no name, and its default, {name}, is another key's name"
            )
        yield replace(key, name=name)
