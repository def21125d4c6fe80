"""Our configuration of HAProxy, for what the installed Ray writes."""

import http.client
import json
import re
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest

from service.cluster import choose_model, haproxy
from service.tables import refusals
from service.tables.refusals import problem_details
from tests.rays_haproxy import (
    DRAINS,
    PATIENCE_SECONDS,
    UNCHECKED,
    WELL,
    Health,
    free_port,
    running,
    takes_connections,
    written_by_ray,
)

NOTHING_YET = Health(False, 503, "Route table is not populated yet.")


@pytest.fixture
def rendered(tmp_path: Path) -> Any:
    """Our configuration, where Ray was told so."""

    def render(**told: Any) -> str:
        told = {"port": 8000, "replicas": {"/": [9]}, "folder": tmp_path} | told
        return haproxy.render(written_by_ray(**told), tmp_path)

    return render


STATES: Mapping[str, tuple[Mapping[str, Sequence[int]], Health]] = {
    "nothing is deployed": ({}, WELL),
    "nothing is known": ({}, NOTHING_YET),
    "one model": ({"/": [9]}, WELL),
    "no replica": ({"/": []}, WELL),
    "several models": ({"/a": [9, 10], "/b": [], "/": [11]}, WELL),
    "none at the root": ({"/a": [9], "/b": [10]}, WELL),
    "the node drains": ({"/": [9]}, DRAINS),
}


@pytest.mark.parametrize("host", ["127.0.0.1", "::"])
@pytest.mark.parametrize(("replicas", "health"), STATES.values(), ids=STATES.keys())
def test_haproxy_takes_the_configuration(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    replicas: Mapping[str, Sequence[int]],
    health: Health,
    host: str,
) -> None:
    """Of every state, run as Ray runs it, whose own file stays as it was."""
    monkeypatch.setenv(haproxy.HOST_VARIABLE, host)
    config = tmp_path / "haproxy.cfg"
    rays = written_by_ray(8000, replicas, tmp_path, health)
    config.write_text(rays)

    checked = subprocess.run(
        [sys.executable, haproxy.__file__, "-c", "-f", config], capture_output=True, text=True
    )

    assert checked.returncode == 0 and "Configuration file is valid" in checked.stdout
    warnings = re.findall(r"^\[(?:WARNING|ALERT)\].*", checked.stderr, re.MULTILINE)
    assert all("log format ignored for frontend 'prometheus'" in line for line in warnings)
    assert "option http-buffer-request" in (tmp_path / haproxy.OUR_FILE).read_text()
    assert config.read_text() == rays


@pytest.mark.parametrize("code", haproxy.REFUSALS)
def test_what_haproxy_answers_itself_is_a_refusal_of_the_table(code: str) -> None:
    """The wrapper is too quick to read the table, so its copy is held against it."""
    said = haproxy.refusal(code)
    (quoted,) = re.findall("'({.*})'", said)
    refused, variable = refusals.Refused(code), r'%\[var\(\S+?,"((?:\\"|[^"])*)"\)\]'
    as_object = re.sub(variable, lambda match: match[1].replace('\\"', '"'), quoted)
    as_text = re.sub(variable, "", quoted)

    assert json.loads(as_object) == json.loads(problem_details(refused, "%[unique-id]"))
    assert json.loads(as_text) == json.loads(
        problem_details(refused, "%[unique-id]", "/a/v2/models/b")
    )
    assert f"status {refused.status} content-type {refusals.MEDIA_TYPE}" in said
    assert " hdr X-Content-Type-Options nosniff " in said


@pytest.mark.parametrize(("descriptors", "most"), [(1024, 256), (2560, 1024), (10**9, 1024)])
def test_connections_never_need_more_descriptors_than_there_are(
    descriptors: int, most: int
) -> None:
    """Two for each: who finds no room is told so, and a replica can always be asked."""
    bounds = haproxy.bound_connections(1024, descriptors)

    assert bounds["answered"] == most and bounds["maxconn"] == most + haproxy.PROBE_RESERVE


def test_connections_have_a_bound_and_probes_a_reserve_beyond_it() -> None:
    """Of one client all but 256, and more for its probes; of all what Ray says, and more."""
    assert haproxy.bound_connections(1024, 10**9) == {
        "answered": 1024,
        "accepted": 1088,
        "maxconn": 1152,
        "own_answered": 768,
        "own_accepted": 832,
    }


def test_haproxy_has_what_ray_was_told(rendered: Any) -> None:
    """Ports, files and limits; what is not rotated has a line for what is wrong alone."""
    told = {"metrics_port": 1, "nbthread": 3, "hard_stop_after_s": 5}
    seconds = {"timeout_connect_s": 6, "timeout_client_s": 7, "timeout_server_s": 8}
    lines = [line.strip() for line in rendered(socket_path="/a", **told, **seconds).splitlines()]

    assert {
        "bind 127.0.0.1:8000",
        "bind 127.0.0.1:1",
        "nbthread 3",
        "tune.bufsize 131072",
        "hard-stop-after 5s",
        "timeout connect 6s",
        "timeout client 7s",
        "timeout server 8s",
        "timeout http-keep-alive 65s",
        "stats socket /a mode 600 level admin expose-fd listeners",
        "log stderr local0 notice",
    } <= set(lines)


def test_variables_say_where_prometheus_comes_and_how_long_idle_connections_are_kept(
    rendered: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What Ray was told of them does not count."""
    monkeypatch.setenv(haproxy.METRICS_HOST_VARIABLE, "0.0.0.0")
    monkeypatch.setenv(haproxy.KEEP_ALIVE_VARIABLE, "620")
    config = rendered(metrics_port=9101)

    assert "bind 0.0.0.0:9101\n" in config
    assert "timeout http-keep-alive 620s\n" in config


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("0.0.0.0", "0.0.0.0:8000"),
        ("::", ":::8000 v4v6"),
        ("::1", "::1:8000"),
        ("example", "example:8000"),
    ],
)
def test_clients_come_to_the_host_though_ray_was_told_the_loopback(
    rendered: Any, monkeypatch: pytest.MonkeyPatch, host: str, bound: str
) -> None:
    """Only the door for clients moves."""
    monkeypatch.setenv(haproxy.HOST_VARIABLE, host)

    assert f"    bind {bound}\n" in rendered() and "    bind 127.0.0.1:8000\n" not in rendered()


@pytest.mark.parametrize(
    "line", ["defaults", "frontend http_frontend", "    maxconn", "    bind", "backend http-root"]
)
def test_a_file_that_lacks_what_is_taken_from_it_is_refused(tmp_path: Path, line: str) -> None:
    """Rather no HAProxy than one that breaks the promise silently."""
    config = written_by_ray(8000, {"/": [9]}, tmp_path)

    assert f"\n{line}" in config
    with pytest.raises((KeyError, ValueError)):
        haproxy.render(config.replace(f"\n{line}", "\n    # gone"), tmp_path)


def test_the_installed_rays_template_names_applications_and_replicas() -> None:
    """By which models are found."""
    sections = choose_model.read_sections(written_by_ray(8000, {"/base": [3, 4], "/": []}))

    assert choose_model.read_backends(sections) == [
        choose_model.Backend(
            "http-base",
            "/base",
            {"http-base-3": ("127.0.0.1", 3), "http-base-4": ("127.0.0.1", 4)},
        ),
        choose_model.Backend("http-root", "/", {}),
    ]


def test_a_drain_is_known_by_rays_own_words() -> None:
    """They stand in the configuration of a node that drains, and Ray's period is ours."""
    with warnings.catch_warnings(action="ignore"):  # of Ray's age
        from ray.serve._private import constants

    assert haproxy.DRAINING == constants.DRAINING_MESSAGE
    assert haproxy.DRAIN_SECONDS == constants.PROXY_MIN_DRAINING_PERIOD_S


def exchange(port: int, sent: bytes) -> tuple[http.client.HTTPResponse, bytes]:
    """What is answered first to some bytes."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
        client.sendall(sent)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        return answer, answer.read()


def test_on_a_full_disk_haproxy_starts_all_the_same(tmp_path: Path) -> None:
    """With all of our rules, and Ray knows its process by the path."""
    port, config = free_port(), tmp_path / "haproxy.cfg"
    config.write_text(written_by_ray(port, {}, tmp_path))
    config.with_name(f"{haproxy.OUR_FILE}.new").mkdir()  # so that it cannot be written

    with running(config, port) as process:
        answer, body = exchange(port, GET)
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")

    assert not config.with_name(haproxy.OUR_FILE).exists()
    assert (answer.status, json.loads(body)["code"]) == (503, "not_ready")
    assert str(config).encode() in words


GET = b"GET /a HTTP/1.1\r\nHost: a\r\n\r\n"
# by what a client sends, and what the replica answers before it hangs up
ITS_OWN = {
    "no answer": (GET, b"", 502, "replica_lost"),
    "half a head": (GET, b"HTTP/1.1 200 OK\r\nContent-Le", 502, "replica_lost"),
    "no HTTP": (GET, b"garbage\r\n\r\n", 502, "replica_lost"),
    "below no prefix": (b"GET /elsewhere HTTP/1.1\r\nHost: a\r\n\r\n", b"", 404, "not_found"),
    "to Triton's clients": (
        b"GET /a/v2/models/b HTTP/1.1\r\nHost: a\r\n\r\n",
        b"",
        *(502, "replica_lost"),
    ),
    "another protocol": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"", 400, "bad_request"),
}


@pytest.mark.parametrize(("sent", "said", "status", "code"), ITS_OWN.values(), ids=ITS_OWN.keys())
def test_what_haproxy_answers_of_its_own_has_our_shape(
    tmp_path: Path, sent: bytes, said: bytes, status: int, code: str
) -> None:
    """The installed one, for a replica that is lost: with an id, in the body and as a header."""
    port, config = free_port(), tmp_path / "haproxy.cfg"
    with socket.create_server(("127.0.0.1", 0)) as replica:
        config.write_text(written_by_ray(port, {"/a": [replica.getsockname()[1]]}, tmp_path))
        Thread(target=hang_up, args=(replica, said), daemon=True).start()
        with running(config, port, edits=UNCHECKED):
            answer, body = exchange(port, sent)

    told = json.loads(body)
    assert answer.status == told["status"] == status and told["code"] == code
    assert answer.headers["content-type"] == refusals.MEDIA_TYPE
    assert answer.headers["x-request-id"] == told["request_id"] != ""
    error = {"message": told["detail"], "code": code}
    assert told["error"] == (told["detail"] if b"/v2/models/" in sent else error)


@pytest.mark.parametrize(
    ("sent", "answered"), [(b"", []), (GET[:-2], [408]), (GET, [503])], ids=["", "half", "whole"]
)
def test_a_connection_that_said_nothing_is_told_nothing(
    tmp_path: Path, sent: bytes, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time for a head: a pool would take the 408 for the answer to its next request."""
    monkeypatch.setenv(haproxy.KEEP_ALIVE_VARIABLE, "1")
    port, config = free_port(), tmp_path / "haproxy.cfg"
    config.write_text(written_by_ray(port, {}, tmp_path))

    with (
        running(config, port, edits={"timeout http-request 10s": "timeout http-request 100ms"}),
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client,
    ):
        client.sendall(sent)
        whole = b"".join(iter(lambda: client.recv(65536), b""))

    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", whole)] == answered


def hang_up(replica: socket.socket, said: bytes) -> None:
    """Answer every request so, and close the connection, until there is none."""
    with suppress(OSError):
        while True:
            connection, _ = replica.accept()
            with connection:
                if connection.recv(65536):
                    connection.sendall(said)


PARENT = """
import asyncio, socket, sys

async def main():
    wrapper, config, port = sys.argv[1:]
    command = [sys.executable, wrapper, "-db", "-f", config, "-dR"]
    first = await asyncio.create_subprocess_exec(*command)
    with socket.socket() as client:
        while client.connect_ex(("127.0.0.1", int(port))):
            await asyncio.sleep(0.05)
    second = await asyncio.create_subprocess_exec(*command, "-sf", str(first.pid))
    print(await first.wait(), second.pid, flush=True)
    await second.wait()

asyncio.run(main())
"""


def test_haproxy_ends_with_the_process_that_started_it_also_after_a_reload(tmp_path: Path) -> None:
    """A reload hands over to a new process with the port; a killed parent leaves none."""
    port, config = free_port(), tmp_path / "haproxy.cfg"
    config.write_text(written_by_ray(port, {}, tmp_path))
    command = [sys.executable, "-c", PARENT, haproxy.__file__, str(config), str(port)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as parent:
        assert parent.stdout
        first, pid = parent.stdout.readline().split()
        assert first == "0"
        with socket.create_connection(("127.0.0.1", port)):
            assert Path(f"/proc/{pid}/exe").readlink().name == "haproxy"

        parent.kill()

    deadline = time.monotonic() + PATIENCE_SECONDS
    while time.monotonic() < deadline:
        if not takes_connections(port):
            return
        time.sleep(0.05)
    raise AssertionError(f"haproxy {pid} still listens")
