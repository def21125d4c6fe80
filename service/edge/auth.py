"""Who may pass the door: everybody while no key is set, then those who carry one of the keys.

What is open takes no key. Source: RFC 6750, sections 2.1 and 3.
"""

import hashlib
import hmac

from starlette.types import Scope

from service.settings import Settings

# Answered without a key, to GET and HEAD; a preflight (OPTIONS) carries none either
OPEN = frozenset(
    ("/", "/live", "/ready", "/health", "/v2/health/live", "/v2/health/ready", "/-/healthz")
)
METRICS = frozenset(("/metrics",))
DOCS = frozenset(("/docs", "/openapi.json"))


class Keys:
    """Who may pass, by the settings: everybody where there are no keys."""

    def __init__(self, settings: Settings) -> None:
        self._digests = [bytes.fromhex(digest) for digest in settings.api_keys]
        self._open = OPEN
        if settings.public_metrics:
            self._open |= METRICS
        if settings.public_docs:
            self._open |= DOCS

    def admit(self, scope: Scope) -> bool:
        """Whether a request may pass; takes as long for a wrong key as for none."""
        if not self._digests or scope["method"] == "OPTIONS":
            return True
        if scope["method"] in ("GET", "HEAD") and own_path(scope) in self._open:
            return True
        key = hashlib.sha256(_bearer(scope)).digest()
        return any([hmac.compare_digest(key, digest) for digest in self._digests])  # all of them


def own_path(scope: Scope) -> str:
    """The path of a request below the place where a cluster mounts us."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _bearer(scope: Scope) -> bytes:
    """The key of a request; empty, which is none, unless there is exactly one."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, key = (values[0] if len(values) == 1 else b"").partition(b" ")
    return bytes(key.strip()) if scheme.lower() == b"bearer" else b""
