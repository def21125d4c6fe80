"""When a request is tried again."""

from datetime import UTC, datetime, timedelta
from email.utils import format_datetime

import httpx
import pytest

from headlight_client.errors import (
    FIRST_SECONDS,
    LONGEST_SECONDS,
    read_retry_after,
    seconds_before_retry,
)


def least(low: float, high: float) -> float:
    """The shortest of pauses."""
    return low


def most(low: float, high: float) -> float:
    """The longest."""
    return high


def test_pauses_double_up_to_a_limit_and_may_be_of_any_length_below() -> None:
    """Full jitter: clients that failed together do not come back together."""
    busy = httpx.Response(503)

    assert [seconds_before_retry(busy, tries, most) for tries in (1, 2, 3)] == [
        FIRST_SECONDS,
        2 * FIRST_SECONDS,
        4 * FIRST_SECONDS,
    ]
    assert seconds_before_retry(busy, 10_000, most) == LONGEST_SECONDS
    assert seconds_before_retry(busy, 5, least) == 0.0


@pytest.mark.parametrize("status", [429, 502, 503, 504])
def test_retry_after_is_waited_for_with_jitter_on_top(status: int) -> None:
    """Never less than the service asks for."""
    reply = httpx.Response(status, headers={"Retry-After": "7"})

    assert (
        seconds_before_retry(reply, 1, least) == 7.0
        and seconds_before_retry(reply, 1, most) == 7.0 + FIRST_SECONDS
    )


def test_retry_after_may_be_a_date() -> None:
    """As proxies send it; what is neither is no wish."""
    later = datetime.now(UTC) + timedelta(seconds=30)

    assert 25 < read_retry_after(format_datetime(later, usegmt=True)) <= 30
    assert read_retry_after("Wed, 21 Oct 2015 07:28:00 GMT") == 0.0
    assert [read_retry_after(wrong) for wrong in ("", "soon", "-1", "\u0663")] == [0.0] * 4


@pytest.mark.parametrize("status", [301, 400, 401, 413, 422])
def test_no_other_status_is_tried_again(status: int) -> None:
    """It would end the same way."""
    assert seconds_before_retry(httpx.Response(status, headers={"Retry-After": "1"}), 1) is None


@pytest.mark.parametrize("status", [404, 408, 500, 501])
def test_what_a_proxy_answers_for_a_service_that_is_away_is_waited_out(status: int) -> None:
    """As Ray's own 404 before a restarted service has its routes; the service's own is final."""
    ours = {"code": "not_found", "detail": "There is nothing at this path."}

    assert (
        seconds_before_retry(httpx.Response(status, text="Path '/info' not found."), 1, most)
        == FIRST_SECONDS
    )
    assert seconds_before_retry(httpx.Response(status, json=ours), 1) is None
    told = {"error": {"message": "There is nothing at this path.", "code": "not_found"}}
    assert (
        seconds_before_retry(httpx.Response(status, json=told), 1) is None
    )  # as OpenAI's clients read it


def test_a_connection_that_broke_is_tried_again_and_one_that_cannot_be_is_not() -> None:
    """A wrong scheme stays wrong."""
    assert seconds_before_retry(httpx.ConnectError("refused"), 1, most) == FIRST_SECONDS
    assert seconds_before_retry(httpx.ReadTimeout("late"), 1, most) == FIRST_SECONDS
    assert seconds_before_retry(httpx.RemoteProtocolError("cut off"), 1, most) == FIRST_SECONDS
    assert seconds_before_retry(httpx.UnsupportedProtocol("ftp"), 1) is None
    assert seconds_before_retry(httpx.LocalProtocolError("header"), 1) is None
