"""HAProxy as it runs, told to refuse and to shut."""

import json
import os
import socket
import subprocess
import threading
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import NamedTuple

import pytest

from service.cluster import choose_model, drain, haproxy
from service.start import launch
from tests import rays_haproxy

SENT_ON = {choose_model.FORWARDED_HEADER: "1"}


@pytest.fixture
def replica() -> Iterator[socket.socket]:
    """What listens where a replica would; the test answers in its place."""
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener


class Running(NamedTuple):
    """HAProxy, on our configuration."""

    port: int
    process: subprocess.Popen[bytes]


@contextmanager
def started(
    directory: Path,
    replica: socket.socket,
    edits: Mapping[str, str] | None = None,
    health: rays_haproxy.Health = rays_haproxy.WELL,
) -> Iterator[Running]:
    """HAProxy with its files where Ray keeps them."""
    port, config = rays_haproxy.free_port(), directory / "haproxy.cfg"
    directory.mkdir()
    behind = {"/": [replica.getsockname()[1]]}
    config.write_text(rays_haproxy.written_by_ray(port, behind, directory, health))
    edits = rays_haproxy.UNCHECKED | (edits or {})
    with rays_haproxy.running(config, port, edits=edits) as process:
        yield Running(port, process)


@pytest.fixture
def running(tmp_path: Path, replica: socket.socket) -> Iterator[Running]:
    """HAProxy as it runs."""
    with started(tmp_path / "node", replica) as here:
        yield here


@contextmanager
def asked(port: int, **headers: str) -> Iterator[HTTPConnection]:
    """A connection with a request on its way; the answer is the caller's to read."""
    with closing(HTTPConnection("127.0.0.1", port, timeout=9)) as connection:
        connection.request("POST", "/v1/encode", b"{}", headers)
        yield connection


def test_who_was_admitted_is_answered_and_who_comes_after_is_refused(
    tmp_path: Path, running: Running, replica: socket.socket
) -> None:
    """Until the last answer has left, the application must not go."""
    frontend = drain.Frontend(tmp_path, running.port)
    with asked(running.port) as admitted, replica.accept()[0] as taken:
        frontend.refuse(0)
        refusing = threading.Thread(target=frontend.refuse, args=[9])
        refusing.start()

        with asked(running.port) as late:
            refused = late.getresponse()
            assert (refused.status, json.load(refused)["code"]) == (503, "not_ready")
            assert (refused.headers["retry-after"], refused.headers["connection"]) == ("1", "close")
        assert refusing.is_alive(), "a request is with the replica"
        assert frontend.count_requests() == 1

        taken.recv(1 << 16)
        taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright")
        assert admitted.getresponse().read() == b"right"
        refusing.join()
        assert frontend.count_requests() == 0


def test_a_stop_says_what_it_waits_for(
    tmp_path: Path, running: Running, replica: socket.socket
) -> None:
    """How many requests, and how long at most; nothing where there is none."""
    frontend, said = drain.Frontend(tmp_path, running.port), list[str]()
    with asked(running.port), replica.accept()[0]:
        launch.answer_admitted(frontend, 0.1, said.append)

    assert said == ["requests under way: 1; they get up to 0.1 s, new ones a 503"]


def test_where_no_haproxy_runs_no_request_is_waited_for(tmp_path: Path) -> None:
    """As after it died: the stop goes on."""
    assert drain.Frontend(tmp_path, 1).count_requests() == 0


def test_what_a_replica_sends_on_is_answered_while_the_service_stops(
    tmp_path: Path, running: Running, replica: socket.socket
) -> None:
    """It belongs to a request that was accepted before."""
    drain.Frontend(tmp_path, running.port).refuse(0)

    with asked(running.port, **SENT_ON) as sent_on, replica.accept()[0] as taken:
        taken.recv(1 << 16)
        taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright")

        assert sent_on.getresponse().read() == b"right"


def test_no_client_of_another_machine_sets_the_mark_of_what_is_sent_on(
    tmp_path: Path, replica: socket.socket
) -> None:
    """It is taken away; while the service stops its request is refused like any other."""
    edits = {
        "    stick-table": "    tcp-request connection set-src ipv4(203.0.113.9)\n    stick-table"
    }
    with started(tmp_path / "node", replica, edits) as here:
        with asked(here.port, **SENT_ON), replica.accept()[0] as taken:
            assert choose_model.FORWARDED_HEADER.encode() not in taken.recv(1 << 16)
        drain.Frontend(tmp_path, here.port).refuse(0)
        with asked(here.port, **SENT_ON) as late:
            assert late.getresponse().status == 503


def test_a_door_that_is_shut_lets_nobody_in_and_nobody_down(
    tmp_path: Path, running: Running
) -> None:
    """Who has shaken hands is answered; who has not gets no connection, and so no reset one."""
    with socket.create_server(("127.0.0.1", 0)) as other:
        try:
            drain.drop_syn(other)
        except PermissionError:
            pytest.skip("this kernel lets root alone drop packets to a socket that listens")
    frontend = drain.Frontend(tmp_path, running.port)
    frontend.refuse(9)
    with closing(HTTPConnection("127.0.0.1", running.port, timeout=9)) as early:
        early.connect()

        frontend.close_listener()

        with socket.socket() as late, pytest.raises(TimeoutError):
            late.settimeout(0.2)
            late.connect(("127.0.0.1", running.port))
        early.request("GET", "/ready")
        assert early.getresponse().status == 503


def test_a_reload_does_not_forget_that_the_service_stops(tmp_path: Path, running: Running) -> None:
    """Ray reloads HAProxy when a replica goes, maybe while the application's route is there."""
    drain.Frontend(tmp_path, running.port).refuse(9)

    node, first = tmp_path / "node", str(running.process.pid)
    takes_over = "-x", str(node / "admin"), "-sf", first
    with rays_haproxy.running(node / "haproxy.cfg", running.port, *takes_over):
        running.process.wait(9)  # it goes when the second has taken over

        with asked(running.port) as late:
            assert late.getresponse().status == 503


def test_a_node_that_drains_sends_its_clients_elsewhere_and_then_lets_nobody_in(
    tmp_path: Path, replica: socket.socket, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Ray ends HAProxy once nothing is on its way there, which with kept connections is a guess."""
    monkeypatch.setenv(haproxy.DRAIN_VARIABLE, str(haproxy.SHUT_SECONDS + 0.3))
    with (
        started(tmp_path / "node", replica, health=rays_haproxy.DRAINS) as node,
        asked(node.port) as admitted,
        replica.accept()[0] as taken,
    ):
        while rays_haproxy.takes_connections(node.port):
            pass
        taken.recv(1 << 16)
        taken.sendall(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nright")

        answer = admitted.getresponse()

        assert (answer.read(), answer.headers["connection"]) == (b"right", "close")


def test_a_drain_is_as_old_as_its_first_configuration(tmp_path: Path) -> None:
    """A replica that goes meanwhile reloads HAProxy; a node that stays after all begins anew."""
    since, draining = tmp_path / haproxy.DRAINING_FILE, f'string "{haproxy.DRAINING}"'
    whole = haproxy.DRAIN_SECONDS - haproxy.SHUT_SECONDS

    first = haproxy.seconds_until_closed(draining, since)
    os.utime(since, (time.time() - 20, time.time() - 20))
    second = haproxy.seconds_until_closed(draining, since)

    assert first == pytest.approx(whole, abs=2) and second == pytest.approx(whole - 20, abs=2)
    os.utime(since, (0, 0))
    assert haproxy.seconds_until_closed(draining, since) == 0
    assert haproxy.seconds_until_closed("", since) is None
    assert haproxy.seconds_until_closed(draining, since) == pytest.approx(whole, abs=2)


def test_what_is_quiet_once_may_be_between_two_requests(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is done when it was so twice in a row."""
    monkeypatch.setattr(drain, "POLL_SECONDS", 0)
    quiet = iter([True, False, True, True])

    drain.wait_until(lambda: next(quiet), 9)

    assert list(quiet) == []


def test_a_certificate_that_haproxy_does_not_take_is_an_error(
    tmp_path: Path, running: Running
) -> None:
    """HAProxy says so in words, on a connection that is fine."""
    frontend = drain.Frontend(tmp_path, running.port)

    with pytest.raises(OSError, match="did not take the certificate"):
        frontend.replace_certificate(tmp_path / "tls.pem", b"none\n")


def test_without_haproxy_there_is_nothing_to_drain(tmp_path: Path) -> None:
    """It died, or the start failed before it was there; the stop goes on."""
    frontend = drain.Frontend(tmp_path, 1)

    frontend.refuse(9)
    frontend.close_listener()
