"""Rates and quantiles from two pages of metrics."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer
from threading import Thread

import httpx
import pytest

from service.commands import top
from service.commands.terminal import Failed
from service.commands.top import Interval

BUCKETS = """\
headlight_lag_seconds_bucket{replica="a",le="0.1"} %d
headlight_lag_seconds_bucket{replica="a",le="0.2"} %d
headlight_lag_seconds_bucket{replica="a",le="+Inf"} %d
headlight_lag_seconds_count{replica="a"} %d
headlight_lag_seconds_sum{replica="a"} %f
"""


def answered(**by_replica: dict[int, int]) -> str:
    """A page on which each replica has answered so many requests with each status."""
    return "".join(
        f'headlight_requests_total{{code="{code}",replica="{replica}"}} {count}\n'
        for replica, codes in by_replica.items()
        for code, count in codes.items()
    )


def observed(low: int, high: int, beyond: int, total: float = 0) -> str:
    """A page with one histogram of two buckets."""
    both = low + high + beyond
    return BUCKETS % (low, low + high, both, both, total)


def between(before: str, after: str) -> Interval:
    """Two pages, four seconds apart."""
    return Interval(top.page(before, 10.0), top.page(after, 14.0))


def test_a_counters_rate_is_its_increase_between_the_pages_per_second() -> None:
    """By any label, over all replicas or one; a series that was not there began at 0."""
    seen = between(answered(a={200: 5}, b={200: 1}), answered(a={200: 9}, b={200: 9, 429: 2}))

    assert seen.rates("requests_total", "code") == {"200": 3.0, "429": 0.5}
    assert seen.rate("requests_total") == 3.5
    assert seen.rate("requests_total", replica="a") == 1.0


def test_a_replica_that_came_counts_from_0_and_one_that_went_does_not_count() -> None:
    """No rate is negative."""
    seen = between(answered(a={200: 100}, b={200: 7}), answered(b={200: 7}, c={200: 4}))

    assert seen.rate("requests_total") == 1.0


def test_what_a_service_does_not_publish_is_none_and_what_is_0_is_0() -> None:
    """They are not the same."""
    seen = between(answered(a={200: 5}), answered(a={200: 5}))

    assert seen.rate("no_such_total") is None
    assert seen.quantile("no_such_seconds", 0.5) is None
    assert seen.mean("no_such_seconds") is None
    assert seen.rate("requests_total") == 0


@pytest.mark.parametrize(
    ("share", "value"),
    [(0.25, 0.05), (0.5, 0.1), (0.75, 0.15), (1.0, 0.2)],
    ids=["first bucket", "bound", "second bucket", "last"],
)
def test_a_quantile_is_linear_inside_its_bucket(share: float, value: float) -> None:
    """What was observed before the first page is not in it."""
    seen = between(observed(1000, 0, 0), observed(1010, 10, 0))

    assert seen.quantile("lag_seconds", share) == pytest.approx(value)


def test_a_quantile_beyond_the_last_bound_is_that_bound() -> None:
    """As Prometheus says it: more is not known."""
    assert between(observed(0, 0, 0), observed(1, 0, 99)).quantile("lag_seconds", 0.99) == 0.2


def test_a_mean_is_of_what_came_between() -> None:
    """And there is none when nothing came."""
    assert between(observed(9, 0, 0, 9.0), observed(9, 4, 0, 9.6)).mean("lag_seconds") == (
        pytest.approx(0.15)
    )
    assert between(observed(9, 0, 0), observed(9, 0, 0)).mean("lag_seconds") is None


@pytest.mark.asyncio(loop_scope="session")
async def test_the_pages_of_a_real_replica_give_what_was_asked_of_it(
    client: httpx.AsyncClient,
) -> None:
    """Requests and their tokens, to the last one."""
    before = (await client.get("/metrics")).text
    asked = [await client.post("/v1/encode", json={"inputs": ["All is well"]}) for _ in range(8)]
    after = (await client.get("/metrics")).text

    seen = between(before, after)

    tokens = sum(answer.json()["usage"]["tokens"] for answer in asked)
    codes = seen.rates("requests_total", "code", route="/v1/encode")
    assert {code: rate for code, rate in codes.items() if rate} == {"200": 2.0}
    assert seen.rate("tokens_total") == tokens / 4
    p99 = seen.quantile("request_duration_seconds", 0.99, route="/v1/encode")
    assert p99 is not None and 0 < p99 < 10


Serving = Callable[[int, str], AbstractContextManager[str]]


@pytest.fixture
def serving() -> Serving:
    """Serve one page at an address; only to who brings the key `secret`."""

    @contextmanager
    def serve(status: int, text: str) -> Iterator[str]:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                keyed = self.headers["Authorization"] == "Bearer secret"
                self.send_response(status if keyed and self.path == "/metrics" else 401)
                self.end_headers()
                self.wfile.write(text.encode())

            def log_message(self, *arguments: object) -> None:
                return

        with HTTPServer(("127.0.0.1", 0), Handler) as server:
            thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
            thread.start()
            try:
                yield f"http://127.0.0.1:{server.server_port}"
            finally:
                server.shutdown()
                thread.join()

    return serve


def test_a_page_is_read_with_the_key(serving: Serving) -> None:
    """Where it is asked for."""
    with serving(200, answered(a={200: 5})) as url:
        page = top.read(f"{url}/", "secret")

    assert list(page.series["headlight_requests_total"].values()) == [5]


@pytest.mark.parametrize(
    ("status", "text", "key", "said"),
    [
        (200, "", None, "answered 401"),
        (503, "", "secret", "answered 503"),
        (200, "<html>", "secret", "is not a page of metrics"),
        (200, "", "not ascii: \u00e9", "no answer"),
    ],
    ids=["no key", "no service", "not ours", "no header"],
)
def test_what_is_no_page_is_said_in_one_line(
    serving: Serving, status: int, text: str, key: str | None, said: str
) -> None:
    """Never as a stack, never as a screen of zeros."""
    with serving(status, text) as url, pytest.raises(Failed, match=said):
        top.read(url, key)


def test_a_service_that_is_not_there_is_said_in_one_line() -> None:
    """With its address."""
    with pytest.raises(Failed, match="no answer from http://127.0.0.1:9"):
        top.read("http://127.0.0.1:9", None)
