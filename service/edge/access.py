"""Who may ask: those who carry a key, by a name that is the service's, and not from others' pages.

keys    While no key is set, all may; then those who carry one of the keys. What is open takes
        no key. Source: RFC 6750, sections 2.1 and 3.
sites   Other people's web pages are kept out. A page may have its name point here (DNS
        rebinding), or send what its browser lets it send to any address unasked. Source:
        Fetch, "CORS-safelisted request-header"; Fetch Metadata.
"""

import hashlib
import hmac
from collections.abc import Mapping

from service.api.operations import OPERATIONS, PAGES, Operation
from service.keys import Key
from service.settings import Settings

ANYONE = Key("", "")  # who asks for what is open
# media types with which a browser sends a page's POST anywhere; before others it asks by OPTIONS
SIMPLE = (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
OWN = ("same-origin", "none")  # of Sec-Fetch-Site: a page of the service itself, or no page


class Keys:
    """Who may pass, by the keys that let in now: all where there are none."""

    def __init__(self, settings: Settings, keys: tuple[Key, ...]) -> None:
        rows = (row for row in (*OPERATIONS, *PAGES) if _public(row, settings))
        self._public = {row.path for row in rows}
        self.follow(keys)

    def follow(self, keys: tuple[Key, ...]) -> None:
        """Let in those who carry one of other keys from now on."""
        self._keys = [(bytes.fromhex(key.digest), key) for key in keys]

    def admit(self, method: str, path: str, authorization: str) -> Key | None:
        """Return whose request may pass, or None where it may not.

        Takes as long for a wrong key as for none. A preflight (OPTIONS) carries none.

        Args:
            path: its own, below the place where a cluster mounts us.
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
    """Whether GET and HEAD of an operation's path take no key."""
    return row.public == "always" or bool(row.public and getattr(settings, row.public))


class Sites:
    """Which names and which pages the settings let ask."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(settings.cors_origins)

    def named(self, host: str) -> bool:
        """Say whether a request asks for a host that is the service's, by any port."""
        if not self._hosts:
            return True
        host = host.lower()
        return host in self._hosts or host.rpartition(":")[0] in self._hosts

    def drives_by(self, media_type: str | None, headers: Mapping[str, str]) -> bool:
        """Say whether a POST comes, unasked, from another origin's page."""
        if media_type not in SIMPLE:
            return False
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin and not origin.isascii():
            origin = None  # which no browser sends
        if origin in self._origins or "*" in self._origins:
            return False
        if site is not None:
            return site not in OWN
        return origin is not None and origin.partition("://")[2] != headers.get("host")
