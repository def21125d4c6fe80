"""Connections, descriptors, a stopped replica, a full disk: who is let in is answered."""

import asyncio
import json
import os
import resource
import shutil
import signal
import socket
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.ray.unfinished_requests import REQUEST, unfinished_requests

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

LIVE = b"GET /live HTTP/1.1\r\nHost: localhost\r\n\r\n"
PER_SECOND, RESPONSIVE_SECONDS = 20, 60
SETTLED_SECONDS = 10  # without a reload
HEARD = "127.0.0.2"  # a client beside those of 127.0.0.1


@dataclass
class Heard:
    """What requests at a steady rate saw."""

    codes: Counter[int] = field(default_factory=Counter)
    data: set[str] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    @property
    def p99(self) -> float:
        """Seconds that 99 of 100 took at most."""
        return sorted(self.seconds)[int(len(self.seconds) * 0.99)]

    def __str__(self) -> str:
        worst = [round(each, 2) for each in sorted(self.seconds)[-5:]]
        return f"{dict(self.codes)}, p99 {self.p99 * 1000:.1f} ms, longest {worst} s"


def hear(port: int, seconds: float, over: Callable[[], None] = lambda: None) -> Heard:
    """Ask so many times a second, whoever else has been answered; `over` runs meanwhile."""
    heard = Heard()

    async def ask() -> None:
        began = time.monotonic()
        code, body = 0, b""
        with suppress(OSError, asyncio.IncompleteReadError):
            reader, writer = await asyncio.open_connection("127.0.0.1", port, local_addr=(HEARD, 0))
            writer.write(REQUEST.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            answer = await reader.read()
            writer.close()
            await writer.wait_closed()
            if answer:
                code, body = int(answer.split()[1]), answer.partition(b"\r\n\r\n")[2]
        heard.codes[code] += 1
        heard.seconds.append(time.monotonic() - began)
        if code == 200:
            heard.data.add(json.dumps(json.loads(body)["data"]))
        else:
            heard.bodies.append(body)

    async def all_of_them() -> None:
        meanwhile = asyncio.create_task(asyncio.to_thread(over))
        tasks, until = [], time.monotonic() + seconds
        while time.monotonic() < until:
            tasks.append(asyncio.create_task(ask()))
            await asyncio.sleep(1 / PER_SECOND)
        await asyncio.gather(*tasks, meanwhile)

    asyncio.run(all_of_them())
    return heard


def replicas(service: "Service") -> list[int]:
    """The ids of its replicas."""
    return [pid for pid, name in service.family().items() if name == "ServeReplica"]


def haproxy(service: "Service") -> int:
    """The id of its newest HAProxy."""
    return max(pid for pid, name in service.family().items() if name == "haproxy")


@contextmanager
def descriptors(pid: int, spare: int) -> Iterator[None]:
    """Leave a process so many descriptors beside those it has."""
    before = resource.prlimit(pid, resource.RLIMIT_NOFILE)
    most = max(int(each.name) for each in Path(f"/proc/{pid}/fd").iterdir()) + 1 + spare
    resource.prlimit(pid, resource.RLIMIT_NOFILE, (most, before[1]))
    try:
        yield
    finally:
        resource.prlimit(pid, resource.RLIMIT_NOFILE, before)


def said(connection: socket.socket, request: bytes) -> bytes:
    """The first line of what comes back; empty where nothing does."""
    try:
        connection.sendall(request)
        return connection.recv(65536).partition(b"\r\n")[0]
    except OSError:
        return b""


def ports(service: "Service") -> dict[int, int]:
    """Where each replica itself listens, by its id."""
    found = {}
    for pid in replicas(service):
        links = (os.readlink(each) for each in Path(f"/proc/{pid}/fd").iterdir() if each.exists())
        sockets = {link[8:-1] for link in links if link.startswith("socket:[")}
        for line in Path("/proc/net/tcp").read_text().splitlines()[1:]:
            words = line.split()
            address, port = words[1].split(":")
            if words[3] == "0A" and words[9] in sockets and address == "0100007F":
                found[pid] = int(port, 16)
    return found


def test_a_crowd_that_ends_no_request_leaves_room(running: "Service") -> None:
    """Idle, half a head, half a body."""
    with unfinished_requests(running.port, 50):
        heard = hear(running.port, 2)

    assert set(heard.codes) == {200} and len(heard.data) == 1, heard


def test_a_replica_without_descriptors_serves_who_is_there(running: "Service") -> None:
    """It turns away whoever comes; nobody who comes by HAProxy notices."""
    pid, port = next(iter(ports(running).items()))
    place = ("127.0.0.1", port)
    with ExitStack() as stack:
        old = stack.enter_context(socket.create_connection(place, timeout=30))
        assert said(old, LIVE) == b"HTTP/1.1 200 OK"
        with descriptors(pid, spare=2):
            new = [stack.enter_context(socket.create_connection(place, 30)) for _ in range(20)]
            answers = Counter(said(each, LIVE) for each in new)
            heard = hear(running.port, 1)
            assert said(old, LIVE) == b"HTTP/1.1 200 OK"

    assert answers[b""] >= 15, answers
    assert set(heard.codes) == {200}, heard
    assert pid in replicas(running)


@pytest.mark.prove
def test_three_thousand_connections_that_end_no_request(start: "Start") -> None:
    """1,000 idle, 1,000 slow heads, 1,000 slow bodies for a minute, beside 20 requests a second."""
    with start("--replicas", "2") as service:
        idle = hear(service.port, 20)
        with unfinished_requests(service.port, 1000) as told:
            time.sleep(2)
            heard = hear(service.port, RESPONSIVE_SECONDS)
        figures = f"idle: {idle}; beside the crowd: {heard}; the crowd was told {told}"
        print(figures)

    assert set(heard.codes) == {200} and len(heard.data | idle.data) == 1, figures
    assert heard.p99 < 2 * idle.p99, figures


@pytest.mark.prove
@pytest.mark.parametrize("count", [2, 1])
def test_a_stopped_replicas_requests_are_answered_in_time(start: "Start", count: int) -> None:
    """SIGSTOP: elsewhere, where there is another; else by the one that takes its place, or 503.

    Of those that the only replica had when it was stopped HAProxy closes one or two unanswered.
    """
    with start("--replicas", str(count)) as service:
        (victim, *_) = replicas(service)

        def stop() -> None:
            time.sleep(2)
            os.kill(victim, signal.SIGSTOP)

        heard = hear(service.port, 45, stop)
        refused = Counter(json.loads(body)["code"] if body else "nothing" for body in heard.bodies)
        late = [round(each, 2) for each in heard.seconds if each > 1]
        figures = f"{count} replicas: {heard}, refused {dict(refused)}, over a second {late}"
        print(figures)
        service.replaced(count)
        with suppress(ProcessLookupError):  # where Ray has ended it, which may take its time
            os.kill(victim, signal.SIGCONT)
        deadline = time.monotonic() + 30
        while victim in replicas(service):
            assert time.monotonic() < deadline, "the stopped replica stayed"
            time.sleep(0.1)

    assert max(heard.seconds) < 15, figures
    assert refused.pop("nothing", 0) <= (0 if count > 1 else 2), figures
    assert set(refused) <= (set() if count > 1 else {"not_ready"}), figures


@pytest.mark.prove
def test_haproxy_with_few_descriptors_serves_who_is_there(start: "Start") -> None:
    """Crowds of two clients take all it has: who was there is served, and probes are answered."""
    with start("--replicas", "2", program=("tests.few_descriptors",)) as service:
        place, pid = ("127.0.0.1", service.port), 0
        while pid != (pid := haproxy(service)):  # one that Ray reloads closes what is idle
            time.sleep(SETTLED_SECONDS)
        with ExitStack() as stack:

            def connect(source: str) -> socket.socket:
                return stack.enter_context(socket.create_connection(place, 5, (source, 0)))

            old = [connect(HEARD) for _ in range(5)]
            assert {said(each, REQUEST) for each in old} == {b"HTTP/1.1 200 OK"}
            for number in range(600):
                with suppress(OSError):
                    connect(f"127.0.1.{number % 2 + 1}")
            seen = Counter(said(each, REQUEST) for _ in range(40) for each in old)
            probe, other = said(connect(HEARD), LIVE), said(connect(HEARD), REQUEST)
            held = len(list(Path(f"/proc/{pid}/fd").iterdir()))
            assert haproxy(service) == pid
        time.sleep(1)
        after = Counter(service.encode("All is well").status_code for _ in range(20))
        figures = (
            f"{held} descriptors held; who was there: {dict(seen)}; a new one's probe {probe!r}, "
            f"its request {other!r}; afterwards {dict(after)}"
        )
        print(figures)

    assert set(seen) == {b"HTTP/1.1 200 OK"} and set(after) == {200}, figures
    assert probe == b"HTTP/1.1 200 OK" and other.startswith(b"HTTP/1.1 429 "), figures


@pytest.mark.prove
@pytest.mark.skipif(os.geteuid() != 0, reason="a disk of its own needs root")
def test_a_full_disk_stops_the_log_and_nothing_else(start: "Start") -> None:
    """/tmp has not one byte left; each line that is lost is counted."""
    with start("--replicas", "2", program=("tests.tiny_disk",)) as service:
        disk = Path(f"/proc/{service.process.pid}/root/tmp")
        with (disk / "filler").open("wb") as filler, suppress(OSError):
            while True:
                os.write(filler.fileno(), bytes(65536))
        with (disk / "filler").open("ab") as filler, suppress(OSError):
            while True:
                os.write(filler.fileno(), b"0")
        free = shutil.disk_usage(disk).free
        heard = hear(service.port, 20)
        lost = sum(lost_lines(service).values())
        (disk / "filler").unlink()
        again = hear(service.port, 2)
        figures = f"{free} bytes free: {heard}; lines lost {lost}; then {again}"
        print(figures)

    assert free == 0 and set(heard.codes) == {200} == set(again.codes), figures
    assert lost >= sum(heard.codes.values()) * 0.9, figures


def lost_lines(service: "Service") -> dict[str, float]:
    """What each replica could not write."""
    lines = service.metrics().splitlines()
    rows = (line.rpartition(" ") for line in lines if "log_lines_lost_total{" in line)
    return {name: float(value) for name, _, value in rows}
