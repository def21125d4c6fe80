"""API keys: who may ask. A key itself is never kept, only its SHA-256.

    text            one key a line, or separated by commas: [name:]key or [name:]sha256:<64 hex>
    digests(text)   what is kept of them; the name is for whoever reads the file
    Keys.admit      whether a request may pass: all do while no key is set, then only those to
                    what is open, and those that carry one of the keys

Source: RFC 6750, sections 2.1 and 3.
"""

import hashlib
import hmac
import re
from collections.abc import Sequence

from starlette.types import Scope

KEY = re.compile(r"[A-Za-z0-9._~+/-]{16,256}=*")  # a b64token; shorter ones can be guessed
DIGEST = r"[0-9a-f]{64}"
KNOWN_AS = "sha256"

# Answered without a key, to GET and HEAD; a preflight (OPTIONS) carries none either
OPEN = frozenset(
    ("/", "/live", "/ready", "/health", "/v2/health/live", "/v2/health/ready", "/-/healthz")
)
METRICS = frozenset(("/metrics",))
DOCS = frozenset(("/docs", "/openapi.json"))


def digests(text: str) -> tuple[str, ...]:
    """Return the SHA-256 of each key of a text, hexadecimal.

    Raises:
        ValueError: there is none, or one is no key; says which by its place, never the key.
    """
    entries = [entry.strip() for entry in re.split(r"[\n,]", text) if entry.strip()]
    if not entries:
        raise ValueError("api_keys: there is no key")
    return tuple(_digest(entry, place) for place, entry in enumerate(entries, start=1))


def _digest(entry: str, place: int) -> str:
    name, _, key = entry.rpartition(":")
    if name.rpartition(":")[2] == KNOWN_AS and re.fullmatch(DIGEST, key):
        return key
    if ":" in name or not KEY.fullmatch(key):
        raise ValueError(
            f"api_keys: entry {place} is no key of 16 to 256 letters, digits and ._~+/-"
        )
    return hashlib.sha256(key.encode()).hexdigest()


class Keys:
    """Who may pass.

    Args:
        digests: SHA-256 of the keys, hexadecimal; empty: everybody may.
        opened: paths that take no key beside those of OPEN.
    """

    def __init__(self, digests: Sequence[str], opened: frozenset[str] = frozenset()) -> None:
        self._digests = [bytes.fromhex(digest) for digest in digests]
        self._open = OPEN | opened

    def admit(self, scope: Scope) -> bool:
        """Whether a request may pass; takes as long for a wrong key as for none."""
        if not self._digests or scope["method"] == "OPTIONS":
            return True
        path = scope["path"].removeprefix(scope.get("root_path", ""))  # where a cluster mounts us
        if scope["method"] in ("GET", "HEAD") and path in self._open:
            return True
        given = hashlib.sha256(_bearer(scope)).digest()
        return any([hmac.compare_digest(given, digest) for digest in self._digests])  # all of them


def _bearer(scope: Scope) -> bytes:
    """The key of a request; empty, which is none, unless there is exactly one."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, key = (values[0] if len(values) == 1 else b"").partition(b" ")
    return bytes(key.strip()) if scheme.lower() == b"bearer" else b""
