"""One screen of what a service does, from two pages of metrics."""

import io
import json
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from itertools import islice
from threading import Thread

import httpx
import pytest
from click.testing import CliRunner
from rich.console import Console

from service.cli import main
from service.commands import top
from service.commands.terminal import Failed
from service.commands.top import Interval

REPLICA = """\
headlight_model_info{{model="all-MiniLM-L6-v2",dtype="float32",device="cpu",replica="{name}"}} 1
headlight_ready{{replica="{name}"}} {ready}
headlight_requests_total{{route="/v1/encode",input="text",code="200",replica="{name}"}} {done}
headlight_requests_total{{route="/v1/encode",input="text",code="429",replica="{name}"}} {shed}
headlight_requests_total{{route="/v1/explain",input="text",code="200",replica="{name}"}} 7
headlight_request_duration_seconds_bucket{{route="/v1/encode",le="0.1",replica="{name}"}} {done}
headlight_request_duration_seconds_bucket{{route="/v1/encode",le="0.5",replica="{name}"}} {done}
headlight_request_duration_seconds_bucket{{route="/v1/encode",le="+Inf",replica="{name}"}} {done}
headlight_requests_in_flight{{replica="{name}"}} 3
headlight_tokens_total{{replica="{name}"}} {tokens}
headlight_shed_total{{reason="queue_full",replica="{name}"}} {shed}
headlight_stage_duration_seconds_sum{{stage="tokenize",replica="{name}"}} {quarter}
headlight_stage_duration_seconds_sum{{stage="forward",replica="{name}"}} {half}
headlight_stage_duration_seconds_bucket{{stage="forward",le="0.01",replica="{name}"}} {done}
headlight_stage_duration_seconds_bucket{{stage="forward",le="+Inf",replica="{name}"}} {done}
headlight_waiting_requests{{replica="{name}"}} 256
headlight_waiting_requests_limit{{replica="{name}"}} 512
headlight_waiting_tokens{{replica="{name}"}} 65536
headlight_waiting_tokens_limit{{replica="{name}"}} 262144
headlight_batch_sequences_count{{replica="{name}"}} {done}
headlight_batch_sequences_sum{{replica="{name}"}} {done}
headlight_batch_tokens_count{{replica="{name}"}} {done}
headlight_batch_tokens_sum{{replica="{name}"}} {tokens}
"""


QUARTER, HALF = "\u2501", "\u2501\u2501\u2578"  # of the five cells of a bar


def replica(name: str, done: int, ready: int = 1) -> str:
    """What a replica publishes after some requests of 12 tokens, one in ten turned away."""
    return REPLICA.format(
        name=name,
        ready=ready,
        done=done,
        shed=done // 10,
        tokens=12 * done,
        quarter=done * 0.001,
        half=done * 0.003,
    )


def drawn(before: str, after: str, width: int = 120) -> list[str]:
    """The lines of a terminal after two seconds."""
    seen = Interval(top.page(before, 0.0), top.page(after, 2.0))
    console = Console(width=width, color_system=None, file=io.StringIO(), record=True)
    console.print(top.screen(seen))
    return [line.rstrip() for line in console.export_text().splitlines()]


@contextmanager
def serving(*pages: str | None) -> Iterator[str]:
    """An address that answers with one page after the other, or with 503."""
    coming = iter(pages)

    class Pages(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            page = next(coming)
            self.send_response(503 if page is None else 200)
            self.end_headers()
            self.wfile.write((page or "").encode())

        def log_message(self, *_: object) -> None:
            """Say nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Pages) as server:
        threading.Thread(target=server.serve_forever, args=(0.01,), daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


BEFORE = replica("a", 100) + replica("b", 100)
AFTER = replica("a", 300) + replica("b", 200, ready=0)


@pytest.mark.parametrize(
    "line",
    [
        "all-MiniLM-L6-v2   float32 on cpu   1 of 2 ready",
        "/v1/encode 165 50 ms 99 ms",
        "answers/s 200: 150 429: 15",
        "tokens/s 1,800",
        "in flight 6",
        "turned away/s 15",
        "tokenize 25% - -",
        "forward 75% 5 ms 9.9 ms",
        "requests waiting 512 tokens waiting 131,072",
        f"a yes 110 1,200 {HALF} 50% {QUARTER} 25% 1 12",
        f"b NO 55 600 {HALF} 50% {QUARTER} 25% 1 12",
    ],
)
def test_a_screen_tells_what_happened_between_the_pages(line: str) -> None:
    """Each figure worked out by hand."""
    shown = " ".join(" ".join(drawn(BEFORE, AFTER)).split())

    assert " ".join(line.split()) in shown


@pytest.mark.parametrize(("expected", "said"), [(4, "1 of 4 ready"), (1, "1 of 2 ready")])
def test_replicas_that_should_be_there_are_counted(expected: int, said: str) -> None:
    """One that did not start has no row; one that leaves has one and is not expected."""
    more = f"headlight_replicas_expected {expected}\n"

    assert said in drawn(BEFORE + more, AFTER + more)[0]


def test_a_scrape_that_fails_is_told_above_the_last_screen() -> None:
    """The next one that comes is drawn again."""
    with serving(BEFORE, AFTER, None, AFTER) as url:
        screens = list(islice(top.screens(url, None, 0.01), 3))

    console = Console(width=120, color_system=None, file=io.StringIO(), record=True)
    lines = list[list[str]]()
    for one in screens:
        console.print(one)
        lines.append(console.export_text().splitlines())
    failed = f"{url}/metrics answered 503; retrying every 0.01 s"
    assert lines[1] == [failed, *lines[0]]
    assert lines[2][0] == lines[0][0] and "1 of 2 ready" in lines[2][0]


def test_the_figures_for_programs_are_those_of_the_screen() -> None:
    """Rates per second and times in seconds; every replica by its name."""
    found = top.figures(Interval(top.page(BEFORE, 0.0), top.page(AFTER, 2.0)))

    assert (found["model"], found["seconds"], found["in_flight"]) == ("all-MiniLM-L6-v2", 2.0, 6.0)
    assert found["answers"] == {"200": 150.0, "429": 15.0}
    assert found["routes"]["/v1/encode"] == {"requests": 165.0, "p50": 0.05, "p99": 0.099}
    assert found["stages"]["forward"]["p50"] == pytest.approx(0.005)
    assert found["replicas"]["b"] == {
        "ready": False,
        "requests": 55.0,
        "tokens": 600.0,
        "waiting_requests": 256.0,
        "waiting_requests_limit": 512.0,
        "waiting_tokens": 65536.0,
        "waiting_tokens_limit": 262144.0,
        "batch_sequences": 1.0,
        "batch_tokens": 12.0,
    }


def test_figures_of_a_service_that_publishes_little_are_null() -> None:
    """They are no zeros; and they are JSON."""
    found = top.figures(Interval(top.page("", 0.0), top.page("", 2.0)))

    assert json.loads(json.dumps(found)) == found
    assert (found["tokens"], found["in_flight"], found["replicas"]) == (None, None, {})


def test_all_fits_one_screen() -> None:
    """Of 24 lines of 80 letters, however many replicas and routes there are."""
    many = "".join(replica(f"replica-{number}", number) for number in range(20))
    many += "".join(
        f'headlight_requests_total{{route="/v{n}",code="200",replica="a"}} {n}\n' for n in range(20)
    )
    many += "".join(
        f'headlight_stage_duration_seconds_sum{{stage="{stage}",replica="a"}} 1\n'
        for stage in ("parse", "queue", "serialize")  # and the two of each replica
    )

    shown = drawn(many, many, width=80)

    assert len(shown) <= 24 and max(map(len, shown)) <= 80
    assert "and 12 more" in " ".join(shown)


def test_what_a_page_holds_is_never_taken_for_markup() -> None:
    """A route's name is shown as it is."""
    odd = 'headlight_requests_total{route="[red]/x",code="200",replica="a"} 1\n'

    assert any("[red]/x" in line for line in drawn("", odd))


def test_a_service_that_publishes_little_is_shown_with_dashes() -> None:
    """Not with zeros, which would be a claim."""
    shown = " ".join(" ".join(drawn("", 'headlight_ready{replica="a"} 1\n')).split())

    assert "tokens/s -" in shown and "in flight -" in shown and "a yes - - - -" in shown


@pytest.mark.asyncio(loop_scope="session")
async def test_a_real_replicas_pages_are_drawn(client: httpx.AsyncClient) -> None:
    """With its model, its route and its name."""
    before = (await client.get("/metrics")).text
    await client.post("/v1/encode", json={"inputs": ["All is well"]})
    after = (await client.get("/metrics")).text

    shown = " ".join(drawn(before, after))

    assert "all-MiniLM-L6-v2" in shown and "1 of 1 ready" in shown
    assert "/v1/encode" in shown and "replica-1" in shown


@pytest.mark.asyncio(loop_scope="session")
async def test_looking_at_an_idle_service_is_no_traffic(client: httpx.AsyncClient) -> None:
    """Neither our own scrapes, nor the one under way, nor Prometheus'."""
    before, _, after = [(await client.get("/metrics")).text for _ in range(3)]

    shown = drawn(before, after)

    assert not any("/metrics" in line for line in shown)
    assert any(line.split()[:2] == ["answers/s", "-"] for line in shown)
    assert "in flight 0" in " ".join(" ".join(shown).split())


def test_json_of_a_service_is_a_line_an_interval() -> None:
    """Of one with --once."""
    with serving(BEFORE, AFTER) as url:
        result = CliRunner().invoke(
            main, ["top", "--url", url, "--json", "--once", "--interval", "0.5"]
        )

    (line,) = result.stdout.splitlines()
    assert result.exit_code == 0 and json.loads(line)["replicas"].keys() == {"a", "b"}


def test_without_a_terminal_one_interval_is_shown() -> None:
    """A pipe or a file would get control sequences without end."""
    with serving(BEFORE, AFTER) as url:
        told = CliRunner().invoke(main, ["top", "--url", url, "--interval", "0.5"])

    assert told.exit_code == 0 and "answers/s" in told.output


@pytest.mark.parametrize("flags", [[], ["--once"], ["--json"]], ids=["live", "once", "json"])
def test_the_command_refuses_a_service_that_is_not_there(flags: list[str]) -> None:
    """In one line, with status 1."""
    result = CliRunner().invoke(main, ["top", "--url", "http://127.0.0.1:9", *flags])

    assert result.exit_code == 1
    assert result.stderr.startswith("headlight: no answer from http://127.0.0.1:9")
    assert result.stderr.count("\n") == 1


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


Answering = Callable[[int, str], AbstractContextManager[str]]


@pytest.fixture
def answering() -> Answering:
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


def test_a_page_is_read_with_the_key(answering: Answering) -> None:
    """Where it is asked for."""
    with answering(200, answered(a={200: 5})) as url:
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
    answering: Answering, status: int, text: str, key: str | None, said: str
) -> None:
    """Never as a stack, never as a screen of zeros."""
    with answering(status, text) as url, pytest.raises(Failed, match=said):
        top.read(url, key)


def test_a_service_that_is_not_there_is_said_in_one_line() -> None:
    """With its address."""
    with pytest.raises(Failed, match="no answer from http://127.0.0.1:9"):
        top.read("http://127.0.0.1:9", None)
