"""Who may pass the door: everybody while no key is set, then those who carry one of the keys.

What is open takes no key. Source: RFC 6750, sections 2.1 and 3.
"""

import hashlib
import hmac

from starlette.types import Scope

from service.api.operations import OPERATIONS, PAGES, Operation
from service.keys import Key, follow_keys
from service.settings import Settings

PROBE = "/-/healthz"  # HAProxy's, by the replica's address
ANYONE = Key("", "")  # who asks for what is open


class Keys:
    """Who may pass, by the keys that let in now: everybody where there are none.

    Raises:
        Unusable: the settings name a file of keys that cannot be used.
    """

    def __init__(self, settings: Settings) -> None:
        self.ring = follow_keys(settings.api_keys, settings.api_keys_file)
        self._known: tuple[Key, ...] = ()  # whose digests these are
        self._keys = list[tuple[bytes, Key]]()
        self.several = False  # clients, to share among
        rows = (row for row in (*OPERATIONS, *PAGES) if _public(row, settings))
        self._public = {PROBE, *(row.path for row in rows)}

    def admit(self, scope: Scope, path: str) -> Key | None:
        """Whose request may pass, or None where it may not.

        Takes as long for a wrong key as for none. A preflight (OPTIONS) carries none.

        Args:
            path: its own, below the place where a cluster mounts us.
        """
        if self._known is not self.ring.keys:
            self._learn()
        if not self._keys or scope["method"] == "OPTIONS":
            return ANYONE
        if scope["method"] in ("GET", "HEAD") and path in self._public:
            return ANYONE
        carried = hashlib.sha256(_bearer(scope)).digest()
        same = [hmac.compare_digest(carried, digest) for digest, _ in self._keys]  # all of them
        return self._keys[same.index(True)][1] if any(same) else None

    def _learn(self) -> None:
        self._known = self.ring.keys
        self._keys = [(bytes.fromhex(key.digest), key) for key in self._known]
        self.several = len({key.name for key in self._known}) > 1


def _public(row: Operation, settings: Settings) -> bool:
    """Whether GET and HEAD of an operation's path take no key."""
    return row.public == "always" or bool(row.public and getattr(settings, row.public))


def own_path(scope: Scope) -> str:
    """The path of a request below the place where a cluster mounts us."""
    path: str = scope["path"]
    return path.removeprefix(scope.get("root_path", ""))


def _bearer(scope: Scope) -> bytes:
    """The key of a request; empty, which is none, unless there is exactly one."""
    values = [value for name, value in scope["headers"] if name == b"authorization"]
    scheme, _, key = (values[0] if len(values) == 1 else b"").partition(b" ")
    return bytes(key.strip()) if scheme.lower() == b"bearer" else b""
