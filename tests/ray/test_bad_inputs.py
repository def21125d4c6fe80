"""Every bad input of tests/bad_inputs.py, over connections, through each ingress."""

import re
import socket
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from tests.bad_inputs import Row, Wire
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

GOLDEN = {"inputs": ["All is well"], "encoding": "base64"}
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
WAITING = re.compile(r"^headlight_waiting_(?:requests|tokens){.*} (.+)$", re.MULTILINE)
READY = re.compile(r'^headlight_ready\{replica="(.+)"\} 1', re.MULTILINE)
SILENT_SECONDS = 0.3  # an answer that was sent has come by then
LONGEST_SECONDS = 11.5  # nothing hangs longer than the 10 s for a body
WARM = 30
REPEATS, MOST_GROWTH_BYTES = 100, 32 * 1024 * 1024


@dataclass
class Stack:
    """A service behind one ingress, and what must not change."""

    ingress: str
    service: "Service"
    client: httpx.Client
    golden: Any
    replicas: dict[int, str]  # when each was started, by its process
    names: list[str]

    def unchanged(self) -> None:
        """Ready, the same bits, nothing waits, the same processes."""
        assert self.client.get("/ready").status_code == 200
        for _ in self.replicas:
            assert self.client.post("/v1/encode", json=GOLDEN).json()["data"] == self.golden
        page = self.client.get("/metrics").text
        assert [float(found) for found in WAITING.findall(page)] == [0, 0] * len(self.replicas)
        assert sorted(READY.findall(page)) == self.names
        assert {pid: started(pid) for pid in self.replicas} == self.replicas

    def rss(self) -> dict[int, int]:
        """Resident bytes of each replica."""
        pages = {pid: Path(f"/proc/{pid}/statm").read_text().split()[1] for pid in self.replicas}
        return {pid: int(count) * 4096 for pid, count in pages.items()}


def started(pid: int) -> str:
    """When a process was started, in the kernel's ticks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


@pytest.fixture(scope="module", params=["haproxy", pytest.param("proxy", marks=pytest.mark.prove)])
def stack(request: pytest.FixtureRequest, start: "Start") -> Iterator[Stack]:
    """One service for all rows."""
    with start("--ingress", request.param) as service:
        with httpx.Client(base_url=service.url, timeout=30) as client:
            golden = client.post("/v1/encode", json=GOLDEN).json()["data"]
            pids = [pid for pid, name in service.family().items() if name == "ServeReplica"]
            names = sorted(READY.findall(client.get("/metrics").text))
            replicas = {pid: started(pid) for pid in pids}
            assert len(pids) == len(names) == 1
            yield Stack(request.param, service, client, golden, replicas, names)


def test_each_request_is_answered_as_listed(stack: Stack, bad_input: "Row") -> None:
    """Status and code; then everything is as before."""
    headers = [(name.decode("latin-1"), value) for name, value in bad_input.headers]

    answer = stack.client.request(
        bad_input.method, bad_input.path, content=bad_input.body(), headers=headers
    )

    if stack.ingress == "haproxy" and bad_input.haproxy is not None:
        assert answer.status_code == bad_input.haproxy
    else:
        refused = answer.headers.get("content-type") == "application/problem+json"
        code = answer.json()["code"] if refused else None
        assert (answer.status_code, code) == (bad_input.status, bad_input.code)
        assert re.fullmatch(r"[\w.-]{1,128}", answer.headers["x-request-id"], re.ASCII)
    stack.unchanged()


def test_each_wire_is_answered_as_listed(stack: Stack, bad_wire: "Wire") -> None:
    """The statuses that come back, in time; then everything is as before."""
    expected = bad_wire.haproxy if stack.ingress == "haproxy" else bad_wire.proxy
    begun = time.monotonic()

    with socket.create_connection(("127.0.0.1", stack.service.port)) as connection:
        told = talk(connection, bad_wire.sent(), len(expected))

    assert tuple(map(int, STATUS.findall(told))) == expected
    assert time.monotonic() - begun < LONGEST_SECONDS
    stack.unchanged()


def talk(connection: socket.socket, sent: bytes, answers: int) -> bytes:
    """Send bytes; what comes back until so many answers are there and it is silent."""
    told = b""
    with suppress(ConnectionError):
        connection.sendall(sent)
    with suppress(ConnectionError, TimeoutError):
        while True:
            waits = len(STATUS.findall(told)) < answers
            connection.settimeout(LONGEST_SECONDS if waits else SILENT_SECONDS)
            piece = connection.recv(65536)
            if not piece:
                break
            told += piece
    return told


def test_a_hundred_of_each_class_leave_no_memory_behind(
    stack: Stack, rows: "dict[str, list[Row]]"
) -> None:
    """The replica's resident memory, after as many of each for warmth."""
    grown = {}
    for name, group in rows.items():
        send(stack, group * (1 + WARM // len(group)))  # the heap keeps its largest size
        before = stack.rss()
        send(stack, [group[at % len(group)] for at in range(REPEATS)])
        grown[name] = max(after - before[pid] for pid, after in stack.rss().items())

    assert all(most < MOST_GROWTH_BYTES for most in grown.values()), grown
    stack.unchanged()


def send(stack: Stack, rows: "list[Row]") -> None:
    """Send requests one after the other."""
    for row in rows:
        stack.client.request(row.method, row.path, content=row.body(), headers=row.headers)
