"""Two replicas under clients that know exactly what they sent and what came back."""

import asyncio
import json
import os
import random
import re
import signal
import socket
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests.laya_models import make_laya
from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

CLIENTS = 16
PAUSE_SECONDS = 0.4  # of each: what is counted need not fill both cores
DRILL_SECONDS = 30
INCOMPLETE = "\nheadlight_scrape_incomplete 1\n"


def answered(service: "Service") -> dict[str, float]:
    """What each replica says it answered on /v1/encode."""
    counted: Counter[str] = Counter()
    for family in text_string_to_metric_families(service.metrics()):
        for sample in family.samples:
            if sample.name == "headlight_requests_total" and sample.labels["route"] == "/v1/encode":
                counted[sample.labels["replica"]] += sample.value  # type: ignore[assignment]
    return dict(counted)


def replicas(service: "Service") -> list[int]:
    """The processes of its replicas."""
    return [pid for pid, name in service.family().items() if name == "ServeReplica"]


def both_serve(service: "Service") -> None:
    """Wait until two replicas have answered clients."""
    drill.wait(lambda: list(map(bool, answered(service).values())) == [True] * 2, "both serve")


@pytest.mark.parametrize("kills", [1, pytest.param(2, marks=pytest.mark.prove)])
def test_the_counters_equal_the_clients_own_count_exactly(running: "Service", kills: int) -> None:
    """Also when a replica is killed, and the one in its place: no request is lost, none wrong."""
    before = Counter(answered(running))
    journal = drill.during(lambda: time.sleep(2), running.port, kept=CLIENTS, pause=PAUSE_SECONDS)
    now = Counter(answered(running))

    assert journal.lost == [] and set(journal.codes) == {200}
    assert len(journal.replicas) == 2 and len(journal.data) == 1
    assert now == before + journal.replicas

    survivor, _ = replicas(running)

    def kill() -> None:
        for _ in range(kills):
            (victim,) = set(replicas(running)) - {survivor}
            os.kill(victim, signal.SIGKILL)
            drill.wait(lambda: INCOMPLETE in running.metrics(), "one replica")
            both_serve(running)

    later = drill.during(kill, running.port, kept=CLIENTS, pause=PAUSE_SECONDS)
    left = answered(running)

    assert later.lost == [] and set(later.codes) == {200}
    assert later.data == journal.data
    assert len(later.replicas.keys() - journal.replicas.keys()) == kills
    (survived,) = left.keys() & journal.replicas.keys()
    assert left[survived] == now[survived] + later.replicas[survived]
    (gone,) = journal.replicas.keys() - {survived}
    assert f'"event": "replica ended", "replica": "{gone}"' in running.errors.read_text()
    running.replaced(2)


@pytest.mark.prove
@pytest.mark.parametrize("which", range(2))
def test_replicas_that_keep_dying_lose_no_request(start: "Start", which: int) -> None:
    """Five times 30 s, a SIGKILL every 5 s or when both serve: nothing lost, nothing wrong."""
    with start("--replicas", "2") as service:

        def kill() -> None:
            over = time.monotonic() + DRILL_SECONDS
            while time.monotonic() < over:
                time.sleep(5)
                os.kill(random.choice(replicas(service)), signal.SIGKILL)
                both_serve(service)

        for _ in range(5):
            journal = drill.during(kill, service.port, kept=CLIENTS)
            print(f"{journal.codes} {len(journal.replicas)} replicas, lost {journal.lost}")

            assert journal.lost == [] and set(journal.codes) == {200}
            assert len(journal.data) == 1


@pytest.mark.prove
def test_decisions_and_their_reasons_are_lost_and_exchanged_by_no_kill(
    start: "Start", tmp_path: Path
) -> None:
    """Asked by two thirds of the clients, with and without a reason, for 30 s of kills."""
    question = {"type": "choice", "instructions": "Which team?", "criteria": ["billing", "sales"]}
    asked = {"state": "The refund was refused, and he is angry.", "questions": {"team": question}}
    bodies = [asked, {**asked, "reason": {"method": "input"}, "orders": 1}]
    calls = [drill.ENCODE, *(("/v1/systemone", json.dumps(body).encode()) for body in bodies)]
    folder = make_laya(tmp_path / "laya")
    with start("--replicas", "2", "--model", str(folder)) as service:

        def kill() -> None:
            over = time.monotonic() + DRILL_SECONDS
            while time.monotonic() < over:
                time.sleep(5)
                os.kill(random.choice(replicas(service)), signal.SIGKILL)
                both_serve(service)

        journal = drill.during(kill, service.port, kept=CLIENTS, asked=calls)
        print(f"{journal.codes} {len(journal.replicas)} replicas, lost {journal.lost}")

        assert journal.lost == [] and set(journal.codes) == {200}
        assert len(journal.data) == len(calls)


@pytest.mark.prove
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("which", range(5))
def test_a_stop_under_load_leaves_no_request_without_an_answer(
    start: "Start", name: str, which: int
) -> None:
    """Right, or 503 in our own words with Retry-After, or no connection at all."""
    with start("--replicas", "2") as service:

        def stop() -> None:
            time.sleep(1)
            assert service.end(signal.Signals[name]) == 0

        journal = drill.during(stop, service.port, kept=CLIENTS // 2, fresh=CLIENTS // 2)
        print(f"{journal.codes}, {journal.unconnected} unconnected, lost {journal.lost}")
        drill.hold(journal)


def test_an_answers_head_never_comes_without_its_body(running: "Service") -> None:
    """Asked by its own port, a replica sends both in one write, which no kill comes between."""
    (config,) = running.directory().glob("haproxy/*/haproxy.cfg")
    ports = re.findall(r"server SERVE_REPLICA\S* 127.0.0.1:(\d+)", config.read_text())
    head = f"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Length: {len(drill.BODY)}\r\n"
    asked = f"{head}Content-Type: application/json\r\n\r\n".encode() + drill.BODY

    for port in ports:
        with socket.create_connection(("127.0.0.1", int(port))) as client:
            for _ in range(100):
                client.sendall(asked)
                first, _, body = client.recv(1 << 16).partition(b"\r\n\r\n")
                assert f"content-length: {len(body)}\r\n".encode() in first


def test_a_client_that_leaves_takes_its_waiting_work_along(running: "Service") -> None:
    """Its requests are counted as 499, and most of what they asked for never runs."""
    count, rows, tokens = 4, 12, 250
    slow = json.dumps({"inputs": [{"token_ids": [2035] * tokens}] * rows}).encode()
    left = drill.total(running, "headlight_requests_total", code="499")
    before = drill.total(running, "headlight_batch_tokens_sum")

    async def leave() -> None:
        connections = [drill.Connection(running.port) for _ in range(count)]
        asked = [asyncio.create_task(each.request(slow)) for each in connections]
        await asyncio.to_thread(
            drill.wait, lambda: drill.under_way(running) == count, "all under way"
        )
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for each in connections:
            each.close()

    asyncio.run(leave())
    assert running.encode("All is well").status_code == 200
    drill.wait(lambda: drill.under_way(running) == 0, "none under way")

    assert drill.total(running, "headlight_requests_total", code="499") == left + count
    ran = drill.total(running, "headlight_batch_tokens_sum") - before
    assert ran < count * rows * tokens / 2


def test_attention_is_the_forward_passs_own_through_the_ingress(running: "Service") -> None:
    """The two heads of the README and of the literature, over HTTP."""
    for text, layer, head, of, to, share in (
        ("All is well", 0, 5, "well", "all", 0.618),
        ("A dog ate the food because it was hungry", 5, 11, "it", "dog", 0.599),
    ):
        asked = {"inputs": [text], "attention": {"layers": [layer], "heads": [head]}}
        item = httpx.post(f"{running.url}/v1/encode", json=asked).json()["data"][0]
        tokens = item["tokens"]
        row = item["attention"]["maps"][str(layer)][str(head)][tokens.index(of)]
        assert row[tokens.index(to)] == pytest.approx(share, abs=0.01)
