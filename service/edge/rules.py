"""Rules for a request's headers, and what they say about it: read once, before any body.

Who may ask: clients with a key, under the service's own host name, not from foreign web pages.

keys    While no key is set, everyone may ask; afterwards only holders of one of the keys. Open
        routes take no key. Source: RFC 6750, sections 2.1 and 3.
sites   Other people's web pages are kept out. A page may have its name point here (DNS
        rebinding), or send what its browser sends to any address without a preflight. Source:
        Fetch, "CORS-safelisted request-header"; Fetch Metadata.
"""

import hashlib
import os
from collections.abc import Mapping, Set
from itertools import chain

from service.api import ROUTES
from service.api.dialect import Route
from service.edge.asked import Asked
from service.encode.answer import INFERENCE_HEADER
from service.keys import Key
from service.observe.record import REQUEST_ID
from service.refusals import Refused
from service.settings import KIB, Settings
from service.wording.words import listed

ID_CHARACTERS = frozenset("abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-")
LONGEST_ID = 128
MOST_HEADERS, MOST_HEADER_BYTES = 100, 16 * KIB
MOST_ADDRESS = 2 * KIB  # characters of path and query; every route's pattern scans them
WITHOUT_BODY = frozenset(("GET", "HEAD", "OPTIONS"))
# Headers that decide how a request is read must occur once, and under no name that resembles theirs
SINGLE = (
    "host",
    "content-type",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "x-headlight-deadline-ms",
    "x-headlight-expect",
    INFERENCE_HEADER,
)
TWINS = frozenset(name.replace("-", "_") for name in (*SINGLE, REQUEST_ID) if "-" in name)
EXPECTED = {
    "headers_too_large": f"a URL may have {MOST_ADDRESS:,} characters; a request may have "
    f"{MOST_HEADERS} headers with {MOST_HEADER_BYTES:,} bytes in total",
    "bad_request": f"{listed(sorted(SINGLE), 'and')} may occur "
    "once each, spelt with hyphens; the only transfer-encoding is chunked; "
    f"{listed(sorted(WITHOUT_BODY), 'and')} take no body; and Upgrade is not supported",
    "unsupported_encoding": "leave out the header Content-Encoding",
}


ANYONE = Key("", "", metrics=True)  # the client of an open route
UNMARKED = (
    "only a key marked `metrics` in the service's keys may read these, which tell of all keys"
)
# media types with which a browser sends a page's POST anywhere; for others it asks first (OPTIONS)
SIMPLE = (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
OWN = ("same-origin", "none")  # of Sec-Fetch-Site: a page of the service itself, or no page

RawHeaders = list[tuple[bytes, bytes]]


class Keys:
    """The keys that let in now; where there are none, every request passes."""

    def __init__(self, settings: Settings, keys: tuple[Key, ...]) -> None:
        self._public = {route.path for route in ROUTES if _public(route, settings)}
        self._marked = {route.path for route in ROUTES if route.public == "public_metrics"}
        self.set_keys(keys)

    def set_keys(self, keys: tuple[Key, ...]) -> None:
        """Admit the holders of these keys, and no others, from now on."""
        self._keys = {bytes.fromhex(key.digest): key for key in keys}

    def admit(self, method: str, path: str, authorization: str) -> Key | None:
        """Return the key whose request may pass, or None where it may not.

        A preflight (OPTIONS) carries none.

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
        # What is looked up is the SHA-256 of what was sent: the time that it takes may tell how a
        # digest begins, but no one can choose a key by that
        return self._keys.get(hashlib.sha256(bearer.encode("latin-1")).digest())

    def check_mark(self, path: str, key: Key | None) -> None:
        """Refuse the metrics, which tell of all keys, to a key that is not marked for them."""
        if path in self._marked and not (key and key.metrics):
            raise Refused("unauthorized", detail=UNMARKED)


def _public(route: Route, settings: Settings) -> bool:
    """Tell whether GET and HEAD of a route's path take no key."""
    return route.public == "always" or bool(route.public and getattr(settings, route.public))


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


class Rules:
    """The rules for the headers of a request."""

    def __init__(self, settings: Settings) -> None:
        self._sites = Sites(settings)

    def check(self, asked: Asked, raw: RawHeaders, twice: Set[str], *, authorized: bool) -> None:
        """Refuse a request that can be refused without its body.

        Args:
            raw: the headers as received, without HAProxy's own.
            twice: names that occur more than once.
            authorized: whether it carries a valid key, where it needs one.

        Raises:
            Refused: why.
        """
        headers, method = asked.headers, asked.method
        _check_sizes(asked, raw)
        if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
            raise _refused("bad_request")
        if not TWINS.isdisjoint(headers):
            raise _refused("bad_request")
        if twice and not twice.isdisjoint(SINGLE):
            raise _refused("bad_request")
        if asked.closing and (method in WITHOUT_BODY or switches(headers)):
            raise _refused("bad_request")
        if not self._sites.named(headers.get("host", "")):
            raise Refused("bad_host")
        if not authorized:
            raise Refused("unauthorized")
        if method == "POST" and self._sites.drives_by(asked.media_type, headers):
            raise Refused("forbidden_origin")
        if headers.get("content-encoding", "identity").strip().lower() != "identity":
            raise _refused("unsupported_encoding")


def read(raw: RawHeaders) -> dict[str, str]:
    """Return headers by name, each decoded once; the first where a name occurs twice."""
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in reversed(raw)}


def repeated(raw: RawHeaders) -> Set[str]:
    """Return the names that occur more than once."""
    seen, twice = set[bytes](), set[str]()
    for name, _ in raw:
        if name in seen:
            twice.add(name.decode("latin-1"))
        seen.add(name)
    return twice


def announces(headers: Mapping[str, str]) -> bool:
    """Tell whether a body follows; a length of 0 means none."""
    return "transfer-encoding" in headers or headers.get("content-length", "0").strip("0") != ""


def switches(headers: Mapping[str, str]) -> bool:
    """Tell whether a request asks for another protocol, after which its body would not be read.

    Java's client asks for HTTP/2 in passing; without a body that may be ignored.
    """
    return "upgrade" in headers and (headers["upgrade"].lower() != "h2c" or announces(headers))


def closes(method: str, headers: Mapping[str, str]) -> bool:
    """Tell whether an unread body could pass for the next request of a connection."""
    if "upgrade" in headers and switches(headers):
        return True
    return method != "POST" and announces(headers)


def request_id(given: str) -> str:
    """Return a request's id: the client's if harmless, else a new one."""
    if 0 < len(given) <= LONGEST_ID and ID_CHARACTERS.issuperset(given):
        return given
    return os.urandom(16).hex()


def _check_sizes(asked: Asked, raw: RawHeaders) -> None:
    """Refuse headers, or an address, larger than any request needs."""
    if len(raw) > MOST_HEADERS or len(asked.path) + len(asked.query) > MOST_ADDRESS:
        raise _refused("headers_too_large")
    if sum(map(len, chain.from_iterable(raw))) + len(": \r\n") * len(raw) > MOST_HEADER_BYTES:
        raise _refused("headers_too_large")


def _refused(code: str) -> Refused:
    return Refused(code, detail=EXPECTED[code])
