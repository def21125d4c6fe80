"""Every request is told once; nothing that a client sends is."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from starlette.types import ASGIApp

from service.observe import logs
from service.observe.metrics import Metrics
from service.observe.observer import REPORT_SECONDS, Observer
from service.pipeline.find.resolver import Resolver
from service.pipeline.reader import Reader
from service.pipeline.replica import Replica
from service.shapes.record import Record
from service.tables.settings import Settings
from tests.conftest import application, connected
from tests.replica_internals import altered
from tests.task_heads import checkpoint

Spans, Log = Callable[[], list[dict[str, Any]]], Callable[[], str]

CANARY = "canary-f7d1e0"
NUMBER = 0.31830988  # an embedding's; no time or count looks like it
SCHEMA = json.loads((Path(logs.__file__).parent / "log.schema.json").read_text())
WELL = {"inputs": ["All is well"]}


def requests(log: Log) -> list[dict[str, Any]]:
    """The lines of requests; every line is checked against the schema."""
    lines = [json.loads(line) for line in log().splitlines()]
    for line in lines:
        jsonschema.validate(line, SCHEMA)
    return [line for line in lines if line["event"] == "request"]


async def test_each_request_is_a_line(client: httpx.AsyncClient, log: Log) -> None:
    """An answer, a refusal and what is nowhere."""
    await client.post("/v1/encode", json=WELL, headers={"x-request-id": "mine"})
    await client.post("/v1/encode", json={"inputs": []})
    await client.get("/nowhere")

    first, *others = requests(log)
    assert {**first, "ts": 0, "duration_ms": 0, "weights": 0} == {
        "ts": 0,
        "level": "info",
        "event": "request",
        "replica": "replica-1",
        "request_id": "mine",
        "route": "/v1/encode",
        "code": 200,
        "duration_ms": 0,
        "sequences": 1,
        "tokens": 5,
        "weights": 0,
    }
    assert 0 < first["duration_ms"] < 30_000 and first["weights"].startswith("sha256:")
    assert [(o["route"], o["code"]) for o in others] == [("/v1/encode", 422), ("other", 404)]


async def test_a_request_is_told_of_soon_also_when_nobody_asks(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only when the next one ends."""
    told, metrics = asyncio.Queue[Record](), Metrics("r", "m")
    monkeypatch.setattr(metrics, "count_request", told.put_nowait)
    observer = Observer(metrics, "sha256:0", None, lines=False)
    async with connected(application(altered(replica, observer=observer))) as client:
        await client.get("/live")

    seen = await asyncio.wait_for(told.get(), 60)
    assert seen.route == "/live" and told.empty()


async def test_a_request_that_cannot_be_told_of_silences_no_other(
    replica: Replica, log: Log, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The log says so; the page of metrics is answered all the same."""
    told: list[str] = []

    def once(seen: Record) -> None:
        told.append(seen.route)
        if seen.route == "/live":
            raise KeyError("a bug")

    metrics = Metrics("r", "m")
    monkeypatch.setattr(metrics, "count_request", once)
    observer = Observer(metrics, "sha256:0", None, lines=False)
    async with connected(application(altered(replica, observer=observer))) as client:
        await client.get("/live")
        await client.get("/info")
        page = await client.get("/metrics")

    assert page.status_code == 200 and told[:2] == ["/live", "/info"]
    (line,) = map(json.loads, log().splitlines())
    assert (line["event"], line["error"], line["route"]) == (
        "request not recorded",
        "KeyError",
        "/live",
    )


async def test_a_replica_that_stops_tells_of_its_last_requests(
    outer: Callable[[Replica], ASGIApp], log: Log, tmp_path: Path
) -> None:
    """Those that ended less than a burst ago."""
    checkpoint(tmp_path, "Model")
    leaving = await Replica.start(Settings(model=str(tmp_path), threads=1), "r")
    transport = httpx.ASGITransport(outer(leaving))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        await client.get("/info")
    await leaving.close()

    assert [line["route"] for line in requests(log)] == ["/info"]


async def test_probes_and_unknown_keys_share_a_line(
    outer: Callable[[Replica], ASGIApp], replica: Replica, log: Log
) -> None:
    """Each is counted, and none can fill a disk."""
    observer = Observer(Metrics("r", "m"), "", None, lines=True)
    transport = httpx.ASGITransport(outer(altered(replica, observer=observer)))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        for path in ("/live", "/ready", "/health", "/v2/health/live", "/v2/health/ready", "/info"):
            await client.get(path)
        await client.get("/live")
    for _ in range(3):
        record = Record("/v1/encode", code=401)
        observer.begin(record, [])
        observer.end(record)
        observer.end(record)  # which is told once
    observer.report()
    assert [line["route"] for line in requests(log)] == ["/info"]

    observer.log_summaries()

    lines = [json.loads(line) for line in log().splitlines()]
    shared = {line["route"]: (line["code"], line["count"]) for line in lines if "count" in line}
    assert shared == {
        "/live": (200, 3),
        "/ready": (200, 3),
        "/v1/encode": (401, 3),
    }
    observer.log_summaries()
    assert len(log().splitlines()) == len(lines)


async def test_a_line_says_when_its_request_ended(client: httpx.AsyncClient, log: Log) -> None:
    """Not when it was written."""
    await client.get("/info")
    ended = time.time()
    await asyncio.sleep(2 * REPORT_SECONDS)

    (line,) = requests(log)
    assert datetime.fromisoformat(line["ts"]).timestamp() <= ended


async def test_requests_under_way_are_counted_until_they_end(
    client: httpx.AsyncClient, replica: Replica
) -> None:
    """Also where one ends without an answer."""

    def under_way() -> bytes:
        page = replica.freeze_metrics(False)()
        return page.partition(b"requests_in_flight{")[2].partition(b"} ")[2].split()[0]

    first = asyncio.create_task(client.post("/v1/encode", json=WELL))
    while not replica.batcher.busy:
        await asyncio.sleep(0)
    before, _ = under_way(), first.cancel()
    with suppress(asyncio.CancelledError):
        await first

    assert (before, under_way()) == (b"1.0", b"0.0")


async def test_the_line_of_a_traced_request_names_its_trace(
    traced_client: httpx.AsyncClient, log: Log
) -> None:
    """One request id and one trace id join answer, line, spans and exemplar."""
    answer = await traced_client.post("/v1/encode", json=WELL)
    page = await traced_client.get("/metrics", headers={"accept": "application/openmetrics-text"})

    trace_id = answer.headers["traceparent"].split("-")[1]
    line, _ = requests(log)
    assert (line["trace_id"], line["request_id"]) == (trace_id, answer.headers["x-request-id"])
    assert f'# {{trace_id="{trace_id}"}}' in page.text


async def test_the_lines_of_requests_can_be_switched_off(
    client: httpx.AsyncClient,
    replica: Replica,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A service that logs at the load balancer need not log twice."""
    monkeypatch.setattr(replica, "observer", Observer(Metrics("r", "m"), "", None, lines=False))
    await client.get("/live")

    assert log() == ""


async def test_a_fault_is_a_line_with_its_request(
    client: httpx.AsyncClient,
    replica: Replica,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """What broke, where, and for whom; then the request's own line."""
    monkeypatch.delattr(Resolver, "outputs")
    answer = await client.post("/v1/encode", json=WELL)

    (request,) = requests(log)
    fault, _ = map(json.loads, log().splitlines())
    assert (answer.status_code, request["code"]) == (500, 500)
    assert (fault["event"], fault["error"]) == ("request failed", "AttributeError")
    assert fault["request_id"] == request["request_id"] == answer.headers["x-request-id"]


async def test_nothing_that_a_client_sends_is_told(
    traced_client: httpx.AsyncClient,
    traced: Replica,
    spans: Spans,
    log: Log,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A word in every place of a request appears in no line, no series and no span."""
    post, c = traced_client.post, CANARY
    bodies: list[Any] = [
        {"inputs": [c]},
        {"inputs": [{"text": c, "pair": c}]},
        {"inputs": [{"text": c, "prompt_name": c}]},
        {"inputs": [c], "prompt_name": c},
        {"inputs": [c], "model": c},
        {"inputs": [c], c: c},
        {"inputs": [c], "encoding": c, "dtype": c, "attention": {"form": c}},
        {"inputs": [f"{c} " * 600]},
        {"inputs": [{"embeddings": [[NUMBER] * 384] * 2}]},
        {"inputs": [{"embeddings": {"shape": [1, 384], "dtype": "float32", "data": c}}]},
    ]
    for body in bodies:
        await post("/v1/encode", json=body)
    await post("/v1/encode", content=f'{{"{c}'.encode())
    await post("/v1/explain", json={"text": c, "layer": 0, "model": c})
    await post("/v1/attend", json={"scores": [[NUMBER]], "value": [[NUMBER]]})
    await post(f"/v1/encode?dry_run={c}&{c}={c}", json=WELL)
    await post(f"/{c}/v1/encode", json=WELL)
    await traced_client.request(c, "/v1/encode")
    names = ("accept", "content-type", "user-agent", "authorization", "x-headlight-deadline-ms")
    for name in (*names, "traceparent", "tracestate", "cookie", "host", c):
        await post("/v1/encode", json=WELL, headers={name: c})
    for value in (f"{c} \x1b[31m", f"{c}\xff"):
        await post("/v1/encode", json=WELL, headers=[(b"x-request-id", value.encode("latin-1"))])
    traceparent = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    both = {"traceparent": traceparent, "tracestate": f"vendor={c}"}
    assert (await post("/v1/encode", json=WELL, headers=both)).status_code == 200
    # a fault whose text is the request's: "invalid literal for int(): ..."
    monkeypatch.setattr(Reader, "read", lambda self, side, *_: int(side.inputs[0].text))
    assert (await post("/v1/encode", json={"inputs": [c]})).status_code == 500
    monkeypatch.undo()

    page = await traced_client.get("/metrics")
    exemplars = await traced_client.get(
        "/metrics", headers={"accept": "application/openmetrics-text"}
    )
    traced_spans = json.dumps(spans())
    told = (log(), page.text, exemplars.text, traced_spans)
    assert len(requests(log)) == len(bodies) + 6 + 10 + 2 + 2 + 2
    for text in told:
        assert CANARY not in text.lower() and str(NUMBER) not in text
        assert CANARY.encode().hex() not in text
