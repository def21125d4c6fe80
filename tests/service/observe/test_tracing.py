"""Spans: whose trace they are in, what they say, and what they cost when unused."""

import asyncio
import json
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.observe.tracing import Tracing
from service.pipeline.find.resolver import Resolver
from service.pipeline.replica import Replica
from service.preflight.machine import check_tracing
from service.proof.machine import Unservable
from service.shapes.record import STAGES, Record, TraceContext
from service.tables.settings import Settings
from tests.replica_internals import stalled

# an import of a module itself, not of a function or for types alone
EAGER = re.compile(r"^(?:from|import) .*(?:opentelemetry|\btracing\b)", re.MULTILINE)

Spans = Callable[[], list[dict[str, Any]]]

PARENT, TRACE = "b7ad6b7169203331", "0af7651916cd43dd8448eb211c80319c"
GIVEN = f"00-{TRACE}-{PARENT}-01"
NAMES = ("service.name", "service.instance.id")  # of a resource
WELL = {"inputs": ["All is well"]}


def of(spans: list[dict[str, Any]], traceparent: str) -> list[dict[str, Any]]:
    """The spans of the trace that an answer names."""
    return [s for s in spans if s["context"]["trace_id"] == f"0x{traceparent.split('-')[1]}"]


async def test_a_request_joins_its_callers_trace(
    traced_client: httpx.AsyncClient, spans: Spans
) -> None:
    """The trace goes on below the caller's span, and the answer names ours."""
    answer = await traced_client.post("/v1/encode", json=WELL, headers={"traceparent": GIVEN})

    version, trace_id, span_id, flags = answer.headers["traceparent"].split("-")
    (server,) = [s for s in spans() if s["context"]["span_id"] == f"0x{span_id}"]
    assert (version, trace_id, flags) == ("00", TRACE, "01")
    assert server["parent_id"] == f"0x{PARENT}" and server["kind"] == "SpanKind.SERVER"
    assert server["name"] == "POST /v1/encode"
    assert (
        server["attributes"]
        | {
            "http.route": "/v1/encode",
            "http.response.status_code": 200,
            "headlight.request_id": answer.headers["x-request-id"],
            "headlight.input": "text",
            "headlight.sequences": 1,
            "headlight.tokens": 5,
        }
        == server["attributes"]
    )


@pytest.mark.parametrize(
    "given",
    [
        [],
        ["00-00000000000000000000000000000000-b7ad6b7169203331-01"],
        [f"ff-{TRACE}-{PARENT}-01"],
        ["00-xyz"],
        [GIVEN, GIVEN],
    ],
)
async def test_what_is_no_traceparent_starts_a_trace(
    traced_client: httpx.AsyncClient, spans: Spans, given: list[str]
) -> None:
    """None, all zeros, a version that cannot be, noise, or two at once."""
    headers = [("traceparent", value) for value in given]
    answer = await traced_client.get("/live", headers=headers)

    (span,) = of(spans(), answer.headers["traceparent"])
    assert span["parent_id"] is None and span["name"] == "GET /live"
    assert TRACE not in answer.headers["traceparent"]


async def test_the_stages_stand_in_order_below_their_request(
    traced_client: httpx.AsyncClient, spans: Spans
) -> None:
    """Each once, none before the one it needs, all within the request."""
    answer = await traced_client.post("/v1/encode", json=WELL)

    *stages, server = of(spans(), answer.headers["traceparent"])
    assert [stage["name"] for stage in stages] == list(STAGES)
    assert {stage["parent_id"] for stage in stages} == {server["context"]["span_id"]}
    times = [time for stage in stages for time in (stage["start_time"], stage["end_time"])]
    assert times == sorted(times) and server["start_time"] <= times[0]
    assert times[-1] <= server["end_time"]


async def test_a_batch_is_linked_to_all_its_members_and_they_to_it(
    traced_client: httpx.AsyncClient, traced: Replica, spans: Spans
) -> None:
    """Requests that share a batch are found from one another."""
    with stalled(traced.batcher):
        asked = [asyncio.create_task(traced_client.post("/v1/encode", json=WELL)) for _ in range(3)]
        while traced.batcher.waiting_requests < len(asked):
            await asyncio.sleep(0)
    answers = await asyncio.gather(*asked)

    found, servers = spans(), {a.headers["traceparent"].split("-")[2] for a in answers}
    batches = {
        span["context"]["span_id"]: {link["context"]["span_id"][2:] for link in span["links"]}
        for span in found
        if span["name"] == "headlight.batch"
    }
    (batch,) = [name for name, linked in batches.items() if linked == servers]
    back = [
        [link["context"]["span_id"] for link in span["links"]]
        for answer in answers
        for span in of(found, answer.headers["traceparent"])
        if span["name"] == "forward"
    ]
    assert back == [[batch]] * 3


async def test_a_fault_of_ours_is_an_error_and_a_callers_is_not(
    traced_client: httpx.AsyncClient,
    traced: Replica,
    spans: Spans,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Both name their refusal."""
    refused = await traced_client.post("/v1/encode", json={"inputs": []})
    monkeypatch.delattr(Resolver, "outputs")
    broken = await traced_client.post("/v1/encode", json=WELL)
    monkeypatch.undo()

    *_, theirs = of(spans(), refused.headers["traceparent"])
    *_, ours = of(spans(), broken.headers["traceparent"])
    assert theirs["attributes"]["error.type"] == "batch_empty"
    assert theirs["status"] == {"status_code": "UNSET"}
    assert ours["attributes"]["error.type"] == "internal"
    assert ours["status"] == {"status_code": "ERROR"}


def begun(folder: Path, given: str = "", ratio: float = 0.5) -> tuple[TraceContext, dict[str, Any]]:
    """A request's trace, and the resource of its span; empty where it was not sampled."""
    file = folder / "spans"
    tracing = Tracing(f"file:{file}", ratio, "r")
    seen = Record("/live", "GET")
    seen.trace = tracing.begin(seen, [given] if given else [])
    tracing.end(seen)
    tracing.close()
    spans = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(spans) == seen.trace.sampled
    return seen.trace, {name: spans[0]["resource"]["attributes"][name] for name in NAMES if spans}


@pytest.mark.parametrize("ratio", [0.0, 1.0])
@pytest.mark.parametrize("flags", ["00", "01"])
async def test_a_caller_says_whether_its_trace_is_sampled(
    tmp_path: Path, ratio: float, flags: str
) -> None:
    """Else the traces of others would lack our part, or have it without their own."""
    trace, _ = begun(tmp_path, GIVEN[:-2] + flags, ratio)

    assert trace.trace_id == TRACE and trace.sampled == (flags == "01")
    assert trace.traceparent.endswith(f"-{flags}")


@pytest.mark.parametrize("ratio", [0.0, 1.0])
async def test_of_requests_without_a_trace_a_share_is_sampled(tmp_path: Path, ratio: float) -> None:
    """As the setting says."""
    assert begun(tmp_path, ratio=ratio)[0].sampled == bool(ratio)


@pytest.mark.parametrize(
    ("sampler", "share", "alone", "in_a_trace"),
    [
        ("always_on", "", True, True),
        ("always_off", "", False, False),
        ("parentbased_always_off", "", False, True),
        ("parentbased_always_on", "", True, True),
        ("traceidratio", "0", False, False),
        ("parentbased_traceidratio", "1", True, True),
    ],
)
async def test_opentelemetrys_variables_choose_another_sampler(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    sampler: str,
    share: str,
    alone: bool,
    in_a_trace: bool,
) -> None:
    """Such as one that believes no caller: a flag could have all of its requests exported."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)

    assert begun(tmp_path)[0].sampled == alone
    (tmp_path / "spans").unlink()
    assert begun(tmp_path, GIVEN)[0].sampled == in_a_trace


@pytest.mark.parametrize(
    ("sampler", "share", "said"),
    [
        ("jaeger_remote", "", "OTEL_TRACES_SAMPLER: expected always_on, always_off, "),
        ("traceidratio", "half", "OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1"),
        ("traceidratio", "nan", "OTEL_TRACES_SAMPLER_ARG: expected a number from 0 to 1"),
    ],
)
async def test_a_sampler_that_there_is_not_is_refused(
    monkeypatch: pytest.MonkeyPatch, sampler: str, share: str, said: str
) -> None:
    """Before the start; the SDK itself would sample everything."""
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", sampler)
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", share)

    (finding,) = check_tracing(Settings(tracing="console"))

    assert finding.what.startswith(said)


@pytest.mark.parametrize(
    ("variables", "named"),
    [
        ({}, "headlight"),
        ({"OTEL_SERVICE_NAME": "search"}, "search"),
        ({"OTEL_RESOURCE_ATTRIBUTES": "service.name=team-a"}, "team-a"),
    ],
)
async def test_the_service_has_the_name_that_opentelemetrys_variables_say(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, variables: dict[str, str], named: str
) -> None:
    """Else all services of a collector are one."""
    for name, value in variables.items():
        monkeypatch.setenv(name, value)

    _, resource = begun(tmp_path, GIVEN)

    assert resource == {"service.name": named, "service.instance.id": "r"}


async def test_spans_go_to_a_collector() -> None:
    """The extra otlp is among the tests' packages; nothing is sent before something is traced."""
    tracing = Tracing("http://127.0.0.1:9/v1/traces", 1.0, "r")
    tracing.close()


async def test_a_collector_without_its_package_stops_the_start(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In words that say what to install."""
    name = "opentelemetry.exporter.otlp.proto.http.trace_exporter"
    monkeypatch.setitem(sys.modules, name, None)

    with pytest.raises(Unservable, match="needs opentelemetry-exporter-otlp-proto-http"):
        await Replica.start(Settings(tracing="http://127.0.0.1:9"), "r")


async def test_a_file_that_cannot_be_written_stops_the_start() -> None:
    """Spans that go nowhere would be missed only when they are needed."""
    with pytest.raises(Unservable, match="No such file"):
        await Replica.start(Settings(tracing="file:/nowhere/spans"), "r")


async def test_without_tracing_no_header_of_it_is_answered(client: httpx.AsyncClient) -> None:
    """Whatever a caller sends."""
    answer = await client.get("/live", headers={"traceparent": GIVEN})

    assert "traceparent" not in answer.headers


async def test_without_tracing_nothing_of_it_is_imported() -> None:
    """One file imports the package, and no other imports that file before it is to trace."""
    files = Path(__file__).parents[3].joinpath("service").rglob("*.py")
    eager = {path.name for path in files if EAGER.search(path.read_text("utf-8"))}

    assert eager == {"tracing.py"}


@pytest.mark.prove
async def test_a_process_without_tracing_has_no_module_of_it() -> None:
    """Nor does another package bring it."""
    script = "import sys, service.door.handlers; print('opentelemetry' in sys.modules)"
    ran = await asyncio.to_thread(
        subprocess.run, [sys.executable, "-c", script], capture_output=True, check=True
    )

    assert ran.stdout == b"False\n"
