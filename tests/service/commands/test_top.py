"""One screen of what a service does."""

import io
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from itertools import islice

import httpx
import pytest
from click.testing import CliRunner
from rich.console import Console

from service.cli import main
from service.commands import top
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


@pytest.mark.parametrize("flags", [[], ["--once"], ["--json"]], ids=["live", "once", "json"])
def test_the_command_refuses_a_service_that_is_not_there(flags: list[str]) -> None:
    """In one line, with status 1."""
    result = CliRunner().invoke(main, ["top", "--url", "http://127.0.0.1:9", *flags])

    assert result.exit_code == 1
    assert result.stderr.startswith("headlight: no answer from http://127.0.0.1:9")
    assert result.stderr.count("\n") == 1
