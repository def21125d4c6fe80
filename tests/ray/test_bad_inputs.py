"""Every bad input of tests/bad_inputs.py, over connections to HAProxy and to a replica itself."""

import re
import socket
from collections.abc import Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field
from itertools import cycle, islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

if TYPE_CHECKING:
    from tests.bad_inputs import Row, Wire
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

Statuses = tuple[int, ...]

GOLDEN = {"inputs": ["All is well"], "encoding": "base64"}
STATUS = re.compile(rb"HTTP/1\.[01] (\d{3}) ")
WAITING = re.compile(r"^headlight_waiting_(?:requests|tokens){.*} (.+)$", re.MULTILINE)
READY = re.compile(r'^headlight_ready\{.*replica="(.+)"\} 1', re.MULTILINE)
# Answers keep the order of their requests: what an earlier one still gets is there before this
# one's answer, or before the end of a connection that takes no more.
LAST = (
    b"GET /live HTTP/1.1\r\nHost: localhost\r\nX-Request-Id: the-last\r\nConnection: close\r\n\r\n"
)
PATIENCE_SECONDS = 30.0  # above the 10 s for a body, below what else would end a connection
WARM = 30
ROUNDS, REPEATS, MOST_GROWTH_BYTES = 3, 100, 32 * 1024 * 1024


@dataclass
class Stack:
    """A door of a service, and what must not change.

    Args:
        fronted: whether it is HAProxy's.
    """

    fronted: bool
    port: int
    service: "Service"
    client: httpx.Client
    golden: Any
    replicas: dict[int, str]  # when each was started, by its process
    names: list[str]
    silent: "dict[str, Future[Statuses]]" = field(default_factory=dict)

    def right(self) -> None:
        """Ready, and the same bits."""
        assert self.client.get("/ready").status_code == 200
        for _ in self.replicas:
            assert self.client.post("/v1/encode", json=GOLDEN).json()["data"] == self.golden

    def unchanged(self) -> None:
        """Right, nothing waits, the same processes."""
        self.right()
        page = self.client.get("/metrics").text
        assert [float(found) for found in WAITING.findall(page)] == [0, 0] * len(self.replicas)
        assert sorted(READY.findall(page)) == self.names
        assert {pid: started(pid) for pid in self.replicas} == self.replicas

    def listed(self, wire: "Wire") -> Statuses:
        """The statuses that should come back."""
        return wire.haproxy if self.fronted else wire.replica

    def talk(self, wire: "Wire") -> Statuses:
        """Send bytes; the statuses that come back before the answer to a last request.

        Who fell silent in a body cannot send one, and hangs up.
        """
        told, answers = b"", len(self.listed(wire))
        with socket.create_connection(("127.0.0.1", self.port)) as connection:
            connection.settimeout(PATIENCE_SECONDS)
            with suppress(ConnectionError):
                connection.sendall(wire.sent())
            with suppress(ConnectionError):
                while len(STATUS.findall(told)) < answers and (piece := connection.recv(65536)):
                    told += piece
            with suppress(OSError):
                if 408 in self.listed(wire):
                    connection.shutdown(socket.SHUT_WR)
                else:
                    connection.sendall(LAST)
            with suppress(ConnectionError):
                while piece := connection.recv(65536):
                    told += piece
        statuses = tuple(map(int, STATUS.findall(told)))
        return statuses[:-1] if b"the-last" in told else statuses

    def rss(self) -> int:
        """Resident bytes of the replicas."""
        pages = [int(Path(f"/proc/{pid}/statm").read_text().split()[1]) for pid in self.replicas]
        return sum(pages) * 4096


def started(pid: int) -> str:
    """When a process was started, in the kernel's ticks."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[19]


DOORS = ["haproxy", pytest.param("replica", marks=pytest.mark.prove)]


@pytest.fixture(scope="module", params=DOORS)
def stack(
    request: pytest.FixtureRequest, running: "Service", start: "Start", wires: "list[Wire]"
) -> Iterator[Stack]:
    """One service for all rows; who falls silent does so from the start, since it takes 10 s."""
    service, fronted = running, request.param == "haproxy"
    with ExitStack() as until:
        port = service.port
        if not fronted:  # a service of one replica, which is asked past its HAProxy
            service = until.enter_context(start())
            targets = httpx.get(f"{service.url}/metrics/targets").json()
            port = int(targets[0]["targets"][0].rpartition(":")[2])
        base = f"http://127.0.0.1:{port}"
        client = until.enter_context(httpx.Client(base_url=base, timeout=30))
        golden = client.post("/v1/encode", json=GOLDEN).json()["data"]
        pids = [pid for pid, name in service.family().items() if name == "ServeReplica"]
        names = sorted(READY.findall(client.get("/metrics").text))
        assert len(pids) == len(names)
        replicas = {pid: started(pid) for pid in pids}
        stack = Stack(fronted, port, service, client, golden, replicas, names)
        pool = until.enter_context(ThreadPoolExecutor())
        stack.silent |= {
            wire.name: pool.submit(stack.talk, wire) for wire in wires if 408 in stack.listed(wire)
        }
        yield stack


def test_each_request_is_answered_as_listed(stack: Stack, bad_group: "list[Row]") -> None:
    """Status and code, request after request; then everything is as before."""
    listed = {row.name: expected(stack, row) for row in bad_group}

    assert {row.name: told(stack, row) for row in bad_group} == listed
    stack.unchanged()


def expected(stack: Stack, row: "Row") -> tuple[int, str | None]:
    """The status and the code of our refusal, if it is ours."""
    if stack.fronted and row.haproxy is not None:
        return row.haproxy, None
    return row.status, row.code


def told(stack: Stack, row: "Row") -> tuple[int, str | None]:
    """The same of the answer that came."""
    answer = stack.client.send(request(stack, row))
    if not stack.fronted or row.haproxy is None:
        assert re.fullmatch(r"[\w.-]{1,128}", answer.headers["x-request-id"], re.ASCII)
    ours = answer.headers.get("content-type") == "application/problem+json"
    return answer.status_code, answer.json()["code"] if ours else None


def request(stack: Stack, row: "Row") -> httpx.Request:
    """A row as a request."""
    headers = [(name.decode("latin-1"), value) for name, value in row.headers]
    return stack.client.build_request(row.method, row.path, content=row.body(), headers=headers)


def test_each_wire_is_answered_as_listed(stack: Stack, bad_wire: "Wire") -> None:
    """These statuses and no others come back; then the next answer is right."""
    silent = stack.silent.get(bad_wire.name)

    statuses = silent.result() if silent else stack.talk(bad_wire)

    assert statuses == stack.listed(bad_wire)
    stack.right()


@pytest.mark.prove
@pytest.mark.parametrize("stack", DOORS, indirect=True, scope="module")
def test_a_hundred_of_each_class_leave_no_memory_behind(
    stack: Stack, rows: "dict[str, list[Row]]"
) -> None:
    """The replicas' resident memory, after as many of each for warmth.

    A heap may take a piece once, and give it back; what leaks grows each time.
    """
    grown = {}
    for name, group in rows.items():
        requests = [request(stack, row) for row in group]
        send(stack, islice(cycle(requests), max(WARM, 2 * len(group))))  # the heap keeps its size
        for _ in range(ROUNDS):
            before = stack.rss()
            send(stack, islice(cycle(requests), REPEATS))
            grown[name] = stack.rss() - before
            if grown[name] < MOST_GROWTH_BYTES:
                break

    assert all(most < MOST_GROWTH_BYTES for most in grown.values()), grown
    stack.unchanged()


def send(stack: Stack, requests: Iterable[httpx.Request]) -> None:
    """Send requests, as many at a time as there are replicas."""
    with ThreadPoolExecutor(len(stack.replicas)) as pool:
        for _ in pool.map(stack.client.send, requests):
            pass
