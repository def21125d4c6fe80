"""Who may ask: clients with a key, under the service's own host name, not from foreign web pages.

keys    While no key is set, everyone may ask; afterwards only holders of one of the keys. Open
        routes take no key. Source: RFC 6750, sections 2.1 and 3.
sites   Other people's web pages are kept out. A page may have its name point here (DNS
        rebinding), or send what its browser sends to any address without a preflight. Source:
        Fetch, "CORS-safelisted request-header"; Fetch Metadata.
"""

import hashlib
import hmac
from collections.abc import Mapping

from service.api.operations import OPERATIONS, PAGES, Operation
from service.keys import Key
from service.settings import Settings

ANYONE = Key("", "")  # the client of an open route
# media types with which a browser sends a page's POST anywhere; for others it asks first (OPTIONS)
SIMPLE = (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
OWN = ("same-origin", "none")  # of Sec-Fetch-Site: a page of the service itself, or no page


class Keys:
    """The keys that let in now; where there are none, every request passes."""

    def __init__(self, settings: Settings, keys: tuple[Key, ...]) -> None:
        rows = (row for row in (*OPERATIONS, *PAGES) if _public(row, settings))
        self._public = {row.path for row in rows}
        self.follow(keys)

    def follow(self, keys: tuple[Key, ...]) -> None:
        """Let in the holders of these keys, and no others, from now on."""
        self._keys = [(bytes.fromhex(key.digest), key) for key in keys]

    def admit(self, method: str, path: str, authorization: str) -> Key | None:
        """Return the key whose request may pass, or None where it may not.

        A wrong key takes as long as a missing one. A preflight (OPTIONS) carries none.

        Args:
            path: the request's own, below the prefix under which a cluster mounts us.
            authorization: the header; empty unless there is exactly one.
        """
        if not self._keys or method == "OPTIONS":
            return ANYONE
        if path in self._public and method in ("GET", "HEAD"):
            return ANYONE
        scheme, _, key = authorization.partition(" ")
        bearer = key.strip() if scheme.lower() == "bearer" else ""
        carried = hashlib.sha256(bearer.encode("latin-1")).digest()
        same = [hmac.compare_digest(carried, digest) for digest, _ in self._keys]  # all of them
        return self._keys[same.index(True)][1] if any(same) else None


def _public(row: Operation, settings: Settings) -> bool:
    """Tell whether GET and HEAD of an operation's path take no key."""
    return row.public == "always" or bool(row.public and getattr(settings, row.public))


class Sites:
    """The host names and the web pages that the settings let ask."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(settings.cors_origins)

    def named(self, host: str) -> bool:
        """Tell whether a request names a host of the service's, on any port."""
        if not self._hosts:
            return True
        host = host.lower()
        return host in self._hosts or host.rpartition(":")[0] in self._hosts

    def drives_by(self, media_type: str | None, headers: Mapping[str, str]) -> bool:
        """Tell whether a POST comes from another origin's page without a preflight."""
        if media_type not in SIMPLE:
            return False
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin and not origin.isascii():
            origin = None  # no browser sends this
        if origin in self._origins or "*" in self._origins:
            return False
        if site is not None:
            return site not in OWN
        return origin is not None and origin.partition("://")[2] != headers.get("host")
