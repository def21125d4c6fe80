"""Every request is told once; nothing that a client sends is."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest
from starlette.types import ASGIApp

from service.observe import logs
from service.observe.metrics import Metrics
from service.observe.observer import (
    Observer,
)
from service.observe.record import Record
from service.replica import Replica
from service.settings import Settings
from tests.conftest import application, connected
from tests.seams import altered

Spans, Log = Callable[[], list[dict[str, Any]]], Callable[[], str]

CANARY = "canary-f7d1e0"
NUMBER = 0.31830988  # an embedding's; no time or count looks like it
SCHEMA = json.loads((Path(logs.__file__).parent / "log.schema.json").read_text())
WELL = {"inputs": ["All is well"]}

pytestmark = pytest.mark.asyncio(loop_scope="session")


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
    told, metrics = asyncio.Queue[Record](), Metrics("r")
    monkeypatch.setattr(metrics, "request", told.put_nowait)
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

    metrics = Metrics("r")
    monkeypatch.setattr(metrics, "request", once)
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
    outer: Callable[[Replica], ASGIApp], log: Log
) -> None:
    """Those that ended less than a burst ago."""
    leaving = await Replica.start(Settings(threads=1), "r")
    transport = httpx.ASGITransport(outer(leaving))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        await client.get("/info")
    await leaving.close()

    assert [line["route"] for line in requests(log)] == ["/info"]


async def test_probes_and_unknown_keys_share_a_line(
    outer: Callable[[Replica], ASGIApp], replica: Replica, log: Log
) -> None:
    """Each is counted, and none can fill a disk."""
    observer = Observer(Metrics("r"), "", None, lines=True)
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
    observer.tell()
    assert [line["route"] for line in requests(log)] == ["/info"]

    observer.sum_up()

    lines = [json.loads(line) for line in log().splitlines()]
    shared = {line["route"]: (line["code"], line["count"]) for line in lines if "count" in line}
    assert shared == {
        "/live": (200, 3),
        "/ready": (200, 3),
        "/v1/encode": (401, 3),
    }
    observer.sum_up()
    assert len(log().splitlines()) == len(lines)
