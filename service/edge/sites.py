"""What keeps other people's web pages out: whose name is asked for, and whose page asks.

A page may have its name point here (DNS rebinding), or send what its browser lets it send to any
address unasked. Source: Fetch, "CORS-safelisted request-header"; Fetch Metadata.
"""

from collections.abc import Mapping

from service.settings import Settings

# media types with which a browser sends a page's POST anywhere; before others it asks by OPTIONS
SIMPLE = ("", "text/plain", "application/x-www-form-urlencoded", "multipart/form-data")
OWN = ("same-origin", "none")  # of Sec-Fetch-Site: a page of the service itself, or no page


class Sites:
    """Which names and which pages the settings let ask."""

    def __init__(self, settings: Settings) -> None:
        self._hosts = frozenset(host.lower() for host in settings.allowed_hosts)
        self._origins = frozenset(settings.cors_origins)

    def named(self, headers: Mapping[str, str]) -> bool:
        """Whether a request asks for a host that is the service's, by any port."""
        host = headers.get("host", "").lower()
        return not self._hosts or host in self._hosts or host.rpartition(":")[0] in self._hosts

    def drives_by(self, headers: Mapping[str, str]) -> bool:
        """Whether a POST comes, unasked, from another origin's page."""
        if headers.get("content-type", "").partition(";")[0].strip().lower() not in SIMPLE:
            return False
        origin, site = headers.get("origin"), headers.get("sec-fetch-site")
        if origin in self._origins or "*" in self._origins:
            return False
        if site is not None:
            return site not in OWN
        return origin is not None and origin.partition("://")[2] != headers.get("host")
