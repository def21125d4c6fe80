"""A connection to one service: requests, sent again while that may help.

Source of the pauses: errors.py.
"""

import asyncio
import os
import time
from collections.abc import Mapping
from ipaddress import ip_address
from itertools import count

import httpx

from headlight_client.errors import NoAnswer, RequestRefused, seconds_before_retry
from headlight_client.inputs import Limits

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"
CONNECT_SECONDS = 5.0  # limit for opening a connection
GRACE_SECONDS = 10.0  # beyond the service's deadline, so that its 504 comes before our timeout
MOST_MILLISECONDS = 999_999_999  # the largest number that the deadline's header takes


class Connection:
    """A connection to one service; close it.

    Args:
        url, key, patience_seconds, expect: as of AsyncClient.

    Raises:
        ValueError: as AsyncClient.
    """

    def __init__(
        self, url: str, key: str | None, patience_seconds: float, expect: str | None
    ) -> None:
        if patience_seconds <= 0:
            raise ValueError("patience_seconds must be positive")
        self.url, self._patience = _check_url(url), patience_seconds
        self.limits: Limits | None = None  # once they are known
        headers = key_header(key) | space_header(expect)
        # A proxy that http_proxy names is another machine's, or knows of no service on this one
        self._http = httpx.AsyncClient(headers=headers, trust_env=not _is_local(self.url))

    async def close(self) -> None:
        """Close what is open to the service."""
        await self._http.aclose()

    async def send(
        self, path: str, body: bytes | None, deadline: float | None, accept: str = SAFETENSORS
    ) -> httpx.Response:
        """Send a request, again after pauses, and return its 200.

        Args:
            deadline: the caller's, a monotonic time, which the service is told; None: there is
                none, and tries end with patience.

        Raises:
            RequestRefused: the service refused, after any retries that could help.
            NoAnswer: no answer came in time.
        """
        start, busy = time.monotonic(), None
        until = start + self._patience if deadline is None else deadline
        for tries in count(1):
            headers = {"Accept": accept, "Content-Type": JSON, **_deadline_header(deadline)}
            reply = await self._try(path, body, until, headers)
            if isinstance(reply, httpx.Response) and reply.status_code == httpx.codes.OK:
                return reply
            after = seconds_before_retry(reply, tries)
            busy = reply if after is not None and isinstance(reply, httpx.Response) else busy
            if after is None or time.monotonic() + after >= until:
                break
            await asyncio.sleep(after)
        if busy and (busy is reply or _is_out_of_time(reply)):
            raise _word_busy(RequestRefused.of(busy), tries, time.monotonic() - start)
        if isinstance(reply, httpx.Response):
            raise RequestRefused.of(reply)
        raise NoAnswer(f"no answer from {self.url}: {_word_failure(reply)}") from reply

    async def _try(
        self, path: str, body: bytes | None, until: float, headers: Mapping[str, str]
    ) -> httpx.Response | httpx.RequestError:
        """Send a request once; return the response, or the error that prevented one."""
        seconds = max(until - time.monotonic(), 0.0)
        timeout = seconds if self.limits is None else self.limits.deadline_seconds + GRACE_SECONDS
        try:
            async with asyncio.timeout(seconds):
                return await self._http.request(
                    "GET" if body is None else "POST",
                    self.url + path,
                    content=body,
                    headers=headers,
                    timeout=httpx.Timeout(timeout, connect=CONNECT_SECONDS),
                )
        except TimeoutError:
            return httpx.ReadTimeout("the time for it is up")
        except httpx.RequestError as error:
            return error


def _deadline_header(deadline: float | None) -> dict[str, str]:
    """Return the header that tells the service the time left; {} without a deadline."""
    if deadline is None:
        return {}
    left = max(int((deadline - time.monotonic()) * 1000), 0)
    return {"X-Headlight-Deadline-Ms": str(min(left, MOST_MILLISECONDS))}


def _is_out_of_time(reply: httpx.Response | httpx.RequestError) -> bool:
    """Tell whether the time that was left when it was sent was too short for a request."""
    if isinstance(reply, httpx.Response):
        return RequestRefused.of(reply).code == "deadline_unreachable"
    return isinstance(reply, httpx.TimeoutException)


def _word_busy(refused: RequestRefused, tries: int, seconds: float) -> RequestRefused:
    """Return the last refusal of a service that was busy or away, with for how long."""
    if tries == 1:  # it asked for a longer pause than there is time
        return refused
    state = "busy" if refused.status == httpx.codes.TOO_MANY_REQUESTS else "away"
    return refused.reword(f"{state} for {seconds:.1f} s, in {tries} tries: {refused.detail}")


def _check_url(url: str) -> str:
    """Return the address of a service, checked and without a slash at the end."""
    try:
        address = httpx.URL(url)
        valid = address.scheme in ("http", "https") and address.host
    except httpx.InvalidURL:
        valid = False
    if not valid:
        raise ValueError(f"{url!r} is not an address such as http://127.0.0.1:8000")
    return url.rstrip("/")


def _word_failure(error: BaseException) -> str:
    """Return why there was no answer; of a connection, the system's reason."""
    reason, cause = str(error) or type(error).__name__, error.__cause__ or error.__context__
    while cause:
        if isinstance(cause, OSError) and cause.errno and cause.strerror:
            # asyncio's own text for a refused connection repeats the address
            is_refused = isinstance(cause, ConnectionRefusedError)
            reason = os.strerror(cause.errno) if is_refused else cause.strerror
        cause = cause.__cause__ or cause.__context__
    return reason


def _is_local(url: str) -> bool:
    """Tell whether an address is of this machine itself."""
    host = httpx.URL(url).host
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost" or host.endswith(".localhost")


def key_header(key: str | None) -> dict[str, str]:
    """Return the header with an API key, which no message repeats; {} without a key.

    Raises:
        ValueError: a header cannot hold the key.
    """
    if key is None:
        return {}
    if not key or not key.isascii() or not key.isprintable() or " " in key:
        raise ValueError("the key is empty or holds characters that a header cannot carry")
    return {"Authorization": f"Bearer {key}"}


def space_header(space: str | None) -> dict[str, str]:
    """Return the header that has vectors of another space refused; {} without a space.

    Raises:
        ValueError: a header cannot hold the name.
    """
    if space is None:
        return {}
    if not space or not space.isascii() or not space.isprintable():
        raise ValueError(f"{space!r} is not the name of a space")
    return {"X-Headlight-Expect": space}
