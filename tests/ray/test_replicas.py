"""Two replicas under keep-alive clients that know exactly what they sent and what came back."""

import asyncio
import json
import os
import random
import signal
import time
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import httpx
import pytest
from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

CLIENTS = 16
BODY = json.dumps({"inputs": ["All is well"], "encoding": "base64"}).encode()
PAUSE_SECONDS = 0.02  # between head and body, when they go apart


class Lost(Exception):
    """A request that got no whole answer."""


@dataclass
class Journal:
    """What the clients saw."""

    codes: Counter[int] = field(default_factory=Counter)
    replicas: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    data: set[bytes] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(
        self, body: bytes, *, apart: bool = False
    ) -> tuple[int, dict[str, str], bytes]:
        """POST /v1/encode; status, headers and body of the answer."""
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert self._reader is not None
        head = (
            f"POST /v1/encode HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        try:
            if apart:
                self._writer.write(head)
                await asyncio.sleep(PAUSE_SECONDS)
                self._writer.write(body)
            else:
                self._writer.write(head + body)
            return await self._answer(self._reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise Lost(repr(error)) from error

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), headers, body

    def close(self) -> None:
        """Forget the connection; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def client(port: int, number: int, until: float, journal: Journal) -> None:
    """Send the same request over and over, every third one in two parts."""
    connection, sent = Connection(port), number
    while time.monotonic() < until:
        sent += 1
        start = time.monotonic()
        try:
            status, headers, body = await connection.request(BODY, apart=sent % 3 == 0)
        except Lost as error:
            journal.lost.append(str(error))
            continue
        journal.seconds.append(time.monotonic() - start)
        journal.codes[status] += 1
        journal.replicas[headers.get("x-headlight-replica", "")] += 1
        if status == 200:
            journal.data.add(json.dumps(json.loads(body)["data"]).encode())
    connection.close()


async def clients(port: int, count: int, seconds: float) -> Journal:
    """Run keep-alive clients side by side; what they saw."""
    journal, until = Journal(), time.monotonic() + seconds
    await asyncio.gather(*(client(port, number, until, journal) for number in range(count)))
    return journal


def answered(service: "Service") -> dict[str, float]:
    """What each replica says it answered on /v1/encode."""
    counted: Counter[str] = Counter()
    for family in text_string_to_metric_families(service.observe.metrics()):
        for sample in family.samples:
            if sample.name == "headlight_requests_total" and sample.labels["route"] == "/v1/encode":
                counted[sample.labels["replica"]] += sample.value  # type: ignore[assignment]
    return dict(counted)


def test_the_counters_equal_the_clients_own_count_exactly(running: "Service") -> None:
    """Per replica, from one address, with one request in three sent in two parts."""
    before = Counter(answered(running))
    journal = asyncio.run(clients(running.port, CLIENTS, 4))
    now = Counter(answered(running))

    assert journal.lost == [] and set(journal.codes) == {200}
    assert len(journal.replicas) == 2 and len(journal.data) == 1
    assert now == before + journal.replicas

    # one dies: the other's count goes on exactly, the dead one's series end
    pids = [pid for pid, name in running.family().items() if name == "ServeReplica"]
    os.kill(pids[0], signal.SIGKILL)
    later = asyncio.run(clients(running.port, CLIENTS, 3))
    left = answered(running)

    assert later.lost == [] and set(later.codes) == {200}
    (survivor,) = left.keys() & journal.replicas.keys()
    assert left[survivor] == now[survivor] + later.replicas[survivor]
    running.replaced(2)


@pytest.mark.prove
def test_replicas_that_keep_dying_lose_no_request(start: "Start") -> None:
    """One SIGKILL every 5 s for 30 s: nothing lost, nothing wrong, one digest of all answers."""
    with start("--replicas", "2") as service:

        async def kill() -> None:
            for _ in range(6):
                await asyncio.sleep(5)
                names = service.family().items()
                alive = [pid for pid, name in names if name == "ServeReplica"]
                os.kill(random.choice(alive), signal.SIGKILL)

        async def drill() -> Journal:
            killing = asyncio.create_task(kill())
            journal = await clients(service.port, CLIENTS, 34)
            await killing
            return journal

        journal = asyncio.run(drill())

    assert journal.lost == [] and set(journal.codes) == {200}
    assert len(journal.data) == 1


def test_a_client_that_leaves_takes_its_waiting_work_along(running: "Service") -> None:
    """Its requests are counted as 499, and the service is idle again at once."""
    slow = json.dumps({"inputs": [{"token_ids": [2035] * 250}] * 40}).encode()

    async def leave() -> None:
        connections = [Connection(running.port) for _ in range(4)]
        asked = [asyncio.create_task(each.request(slow)) for each in connections]
        await asyncio.sleep(0.5)
        for task in asked:
            task.cancel()
        await asyncio.gather(*asked, return_exceptions=True)
        for each in connections:
            each.close()

    asyncio.run(leave())
    begun = time.monotonic()
    answer = running.encode("All is well")

    assert answer.status_code == 200
    assert time.monotonic() - begun < 3  # of the 5 s and more that the work left behind would take
    gone = [line for line in running.metrics().splitlines() if 'code="499"' in line]
    assert sum(float(line.rpartition(" ")[2]) for line in gone if "requests_total" in line) == 4


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
