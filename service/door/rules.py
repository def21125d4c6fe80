"""Rules for a request's headers, applied before any body is read.

They admit clients with a key, under the service's own host name, not from foreign web pages.

keys    While no key is set, everyone may ask; afterwards only holders of one of the keys. Open
        routes take no key. Source: RFC 6750, sections 2.1 and 3.
sites   Other people's web pages are kept out. A page may have its name point here (DNS
        rebinding), or send what its browser sends to any address without a preflight. Source:
        Fetch, "CORS-safelisted request-header"; Fetch Metadata.
"""

import hashlib
import logging
import re
from collections.abc import Mapping, Sequence
from functools import partial

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.types import Receive, Scope, Send

from service.api import ROUTES
from service.cluster.choose_model import MODEL_HEADER, NAMES_HEADER, lacks_names, read_names
from service.door.coding import CODINGS
from service.door.request import MOST_ADDRESS, Request
from service.observe.families import PROBE_PATHS
from service.pipeline.find.names import find_name, is_same_name, unknown_model
from service.shapes.answer import INFERENCE_HEADER
from service.shapes.call import Reply, Route
from service.shapes.record import REQUEST_ID
from service.tables.keys import Key
from service.tables.refusals import Refused
from service.tables.settings import KIB, Settings
from service.tables.wording import wire
from service.tables.wording.words import list_names

logger = logging.getLogger(__name__)

MOST_HEADER_BYTES = 16 * KIB  # of all headers of a request
WITHOUT_BODY = frozenset(("GET", "HEAD", "OPTIONS"))  # methods that take no body
# Headers that decide how a request is read must occur once, and under no name that resembles theirs
SINGLE_HEADERS = (
    "host",
    "content-type",
    "content-length",
    "content-encoding",
    "transfer-encoding",
    "x-headlight-deadline-ms",
    "x-headlight-expect",
    MODEL_HEADER,
    INFERENCE_HEADER,
)
HYPHENATED_HEADERS = frozenset((*SINGLE_HEADERS, REQUEST_ID))
DETAILS = {  # of refusals, by code: what is expected
    "headers_too_large": f"a URL may have {MOST_ADDRESS:,} characters; a request may have "
    f"{MOST_HEADER_BYTES:,} bytes of headers",
    "bad_request": f"{list_names(sorted(SINGLE_HEADERS), 'and')} may occur "
    "once each, spelt with hyphens; the only transfer-encoding is chunked; "
    f"{list_names(sorted(WITHOUT_BODY), 'and')} take no body; and Upgrade is not supported",
    "unsupported_encoding": "leave out the header Content-Encoding, or compress the body with zstd",
}


ANYONE = Key("", "", metrics=True)  # stands for the client of a route that needs no key
UNMARKED = (  # the detail of a refusal
    "only a key marked `metrics` in the service's keys may read these, which tell of all keys"
)
# media types with which a browser sends a page's POST anywhere; for others it asks first (OPTIONS)
SIMPLE_TYPES = (None, "", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
OWN_SITES = ("same-origin", "none")  # of Sec-Fetch-Site: a page of the service itself, or no page
REPLICA, WEIGHTS = "x-headlight-replica", "x-headlight-weights"  # headers of every answer
EXPOSED_HEADERS = (  # those of an answer that a page of another origin may read
    *(REQUEST_ID, REPLICA, WEIGHTS, wire.SPACE, wire.TRUNCATED, wire.WARNING, wire.IGNORED),
    "Retry-After",
)
REQUEST_HEADERS = "access-control-request-headers"  # of a preflight: names of headers
HEADER_NAMES = re.compile(r"[!#$%&'*+.^_`|~0-9A-Za-z, -]*")  # RFC 9110, section 5.6.2
# A kubelet or a load balancer asks these by an address, under no name of the service
PROBED_PATHS = frozenset(
    route.path for route in ROUTES if route.public == "always" and route.label in PROBE_PATHS
)
# So does a Prometheus that finds its targets, and its key, which no web page has, vouches for it
METRICS_PATHS = frozenset(route.path for route in ROUTES if route.public == "public_metrics")


class Keys:
    """The API keys that are valid now; where there are none, every request passes."""

    def __init__(self, settings: Settings, keys: tuple[Key, ...]) -> None:
        self._public_paths = {route.path for route in ROUTES if _is_public(route, settings)}
        self.set_keys(keys)

    def set_keys(self, keys: tuple[Key, ...]) -> None:
        """Admit the holders of these keys, and no others, from now on."""
        self._keys_by_digest = {bytes.fromhex(key.digest): key for key in keys}

    def find(self, method: str, path: str, authorization: str) -> Key | None:
        """Return a request's key, ANYONE where it needs none, or None where it may not pass.

        A preflight (OPTIONS) needs none, as browsers send none with it.

        Args:
            path: below the prefix under which a cluster mounts us.
            authorization: the header; empty unless there is exactly one.
        """
        if not self._keys_by_digest or method == "OPTIONS":
            return ANYONE
        if path in self._public_paths and method in ("GET", "HEAD"):
            return ANYONE
        scheme, _, key = authorization.partition(" ")
        bearer = key.strip() if scheme.lower() == "bearer" else ""
        # A lookup by SHA-256: its time may reveal how a stored digest begins, but no one can choose
        # a key by the beginning of its digest
        return self._keys_by_digest.get(hashlib.sha256(bearer.encode("latin-1")).digest())

    def require_mark(self, path: str, key: Key | None) -> None:
        """Refuse the metrics, which tell of all keys, to a key that is not marked for them."""
        if path in METRICS_PATHS and not (key and key.metrics):
            raise Refused("unauthorized", detail=UNMARKED)


def _is_public(route: Route, settings: Settings) -> bool:
    """Tell whether GET and HEAD of a route's path need no key."""
    return route.public == "always" or bool(route.public and getattr(settings, route.public))


class Sites:
    """The host names and the web origins that the settings allow."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(settings.cors_origins)

    def knows_host(self, host: str) -> bool:
        """Tell whether a Host header names one of the service's hosts, on any port."""
        if not self._hosts:
            return True
        host = host.lower()
        return host in self._hosts or host.rpartition(":")[0] in self._hosts

    def is_cross_site(self, media_type: str | None, headers: Mapping[str, str]) -> bool:
        """Tell whether a POST comes from another origin's page without a preflight."""
        if media_type not in SIMPLE_TYPES:
            return False
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin and not origin.isascii():
            origin = None  # no browser sends this
        if origin in self._origins or "*" in self._origins:
            return False
        if site is not None:
            return site not in OWN_SITES
        return origin is not None and origin.partition("://")[2] != headers.get("host")


class Cors:
    """Adds CORS headers, which let web pages of these origins send requests and read answers."""

    def __init__(self, origins: Sequence[str]) -> None:
        self._middleware = CORSMiddleware(
            _no_app,
            allow_origins=origins,
            allow_methods=("GET", "POST"),
            allow_headers=("*",),  # clients add their own, such as x-stainless-*
            expose_headers=EXPOSED_HEADERS,
        )

    def answer_preflight(self, request: Request) -> Reply | None:
        """Return the answer to a browser's CORS preflight; None if the request is no preflight.

        Raises:
            Refused: it names headers that no request can have; they would be echoed.
        """
        preflight = (
            request.method == "OPTIONS" and "access-control-request-method" in request.headers
        )
        if not (preflight and "origin" in request.headers):
            return None
        if not HEADER_NAMES.fullmatch(request.headers.get(REQUEST_HEADERS, "")):
            raise Refused.at("out_of_range", REQUEST_HEADERS, detail="expected names of headers")
        answer = self._middleware.preflight_response(Headers(raw=request.raw_headers))
        headers = {k: v for k, v in answer.headers.items() if k != "content-length"}
        return Reply(bytes(answer.body), answer.status_code, headers)

    def wrap(self, request: Request, send: Send) -> Send:
        """Return a `send` that adds the CORS headers to the answer of a request."""
        return partial(
            self._middleware.send, send=send, request_headers=Headers(raw=request.raw_headers)
        )


async def _no_app(scope: Scope, receive: Receive, send: Send) -> None:
    """Fill CORSMiddleware's argument for an application; it is never called."""


class HeadRules:
    """The rules for the headers of a request, in one method, `judge`."""

    def __init__(self, settings: Settings) -> None:
        self._sites = Sites(settings)

    def judge(self, request: Request, key: Key | None) -> None:
        """Refuse a request whose headers break a rule.

        Args:
            key: the valid one that it carries, ANYONE where it needs none, or None.

        Raises:
            Refused: with the code of the first broken rule.
        """
        headers, method = request.headers, request.method
        if len(request.path) + len(request.query) > MOST_ADDRESS:
            raise _refused("headers_too_large")
        if request.head_bytes > MOST_HEADER_BYTES:
            raise _refused("headers_too_large")
        if headers.get("transfer-encoding", "chunked").strip().lower() != "chunked":
            raise _refused("bad_request")
        if "_" in "".join(headers):
            if not HYPHENATED_HEADERS.isdisjoint(n.replace("_", "-") for n in headers if "_" in n):
                raise _refused("bad_request")
        if request.repeated and not request.repeated.isdisjoint(SINGLE_HEADERS):
            raise _refused("bad_request")
        if request.closing and method in WITHOUT_BODY:
            raise _refused("bad_request")
        if not self._sites.knows_host(headers.get("host", "")) and not _comes_by_address(
            request, key
        ):
            raise Refused("bad_host")
        if key is None:
            raise Refused("unauthorized")
        if method == "POST" and self._sites.is_cross_site(request.media_type, headers):
            raise Refused("forbidden_origin")
        if headers.get("content-encoding", "identity").strip().lower() not in CODINGS:
            raise _refused("unsupported_encoding")


def _comes_by_address(request: Request, key: Key | None) -> bool:
    """Tell whether a request is a probe, or a scrape by a marked key; these may use any name."""
    if request.method not in ("GET", "HEAD"):
        return False
    marked = key is not None and key is not ANYONE and key.metrics
    return request.path in PROBED_PATHS or (marked and request.path in METRICS_PATHS)


def judge_model(request: Request, own: Sequence[str]) -> None:
    """Refuse a request whose header MODEL_HEADER names no model of its address.

    HAProxy has led it to the one that is named; a POST that it could not lead is sent on.

    Args:
        own: what requests may call this replica's model; where HAProxy has told no others, as below
            a prefix, there is none but this.

    Raises:
        Refused: model_not_found.
    """
    named, told = request.headers[MODEL_HEADER], request.headers.get(NAMES_HEADER)
    names = read_names(told) if told else own
    if find_name(named, names, MODEL_HEADER) not in own and request.method != "POST":
        raise unknown_model(names, MODEL_HEADER)


def warn_of_models(keys: Sequence[Key], request: Request, own: Sequence[str]) -> bool:
    """Log which names after `models=` no model has; return False where not all are known yet.

    Args:
        request: one that HAProxy has told all names of the address, where there are several.
        own: what requests may call this replica's model.
    """
    told = request.headers.get(NAMES_HEADER)
    if told and lacks_names(told):
        return False
    names = read_names(told) if told else own
    for key in keys:
        for name in key.models:
            if not any(is_same_name(name, each) for each in names):
                logger.warning("key %s: models= names %s, which no model is called", key.name, name)
    return True


def _refused(code: str) -> Refused:
    """Return the refusal of a code with its detail in DETAILS."""
    return Refused(code, detail=DETAILS[code])
