"""Whether to try again, and when: exponential backoff, full jitter, Retry-After.

Source: Brooker, "Exponential Backoff And Jitter", AWS Architecture Blog, 2015; RFC 9110, 10.2.3.
"""

import random
from collections.abc import Callable
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime

import httpx
from httpx import codes

from headlight_client.errors import RequestRefused

RETRIED = {
    codes.TOO_MANY_REQUESTS,
    codes.BAD_GATEWAY,
    codes.SERVICE_UNAVAILABLE,
    codes.GATEWAY_TIMEOUT,
}
# Of a proxy whose service is away, as Ray's while it starts; of the service itself they are final
AWAY = {codes.NOT_FOUND, codes.REQUEST_TIMEOUT}
# A connection that failed or broke; not one that cannot be made at all, such as of a wrong scheme
BROKEN = (httpx.NetworkError, httpx.TimeoutException, httpx.RemoteProtocolError, httpx.ProxyError)
FIRST_SECONDS, LONGEST_SECONDS = 0.1, 10.0  # of backoff


def pause(
    reply: httpx.Response | httpx.RequestError,
    tries: int,
    draw: Callable[[float, float], float] = random.uniform,
) -> float | None:
    """Seconds to wait before the next try; None where there should be none.

    Args:
        reply: how the last try ended.
        tries: how many there were.
        draw: a number between two others.
    """
    jitter = draw(0.0, min(LONGEST_SECONDS, FIRST_SECONDS * 2.0 ** min(tries - 1, 32)))
    if isinstance(reply, httpx.RequestError):
        return jitter if isinstance(reply, BROKEN) else None
    if not _may_pass(reply):
        return None
    return retry_after(reply.headers.get("retry-after", "")) + jitter


def _may_pass(reply: httpx.Response) -> bool:
    """Whether an error says that the service is busy or away, not what it thinks of the request."""
    if reply.status_code in RETRIED:
        return True
    away = reply.status_code in AWAY or reply.is_server_error
    return away and RequestRefused.of(reply).code is None


def retry_after(header: str) -> float:
    """Seconds of a Retry-After header, a number or a date; 0 when it is neither."""
    if header.isascii() and header.isdecimal():
        return float(header)
    try:
        date = parsedate_to_datetime(header)
    except ValueError:
        return 0.0
    aware = date if date.tzinfo else date.replace(tzinfo=UTC)
    return max(0.0, (aware - datetime.now(UTC)).total_seconds())
