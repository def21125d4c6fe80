"""Ray's HAProxy configuration with what it lacks, held against the installed Ray's own template."""

import http.client
import importlib.util
import json
import re
import runpy
import socket
import subprocess
import sys
import time
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from jinja2 import Environment

from service import refusals
from service.cluster import choice, haproxy
from service.refusals import problem_details

CONFIG = """\
global
    log stderr local0 info
    stats socket /run/admin mode 666 level admin expose-fd listeners
    maxconn 1024
defaults
    mode http
    timeout http-keep-alive 90s
    errorfile 502 /run/500.http
frontend prometheus
    bind :9101
frontend http_frontend
    bind *:8000
    use_backend http-minilm if is_minilm
    default_backend default_backend
backend default_backend
    http-request return status 404 content-type text/plain string "not found"
backend http-minilm
    http-check expect status 200
    default-server fall 3 check
    server one 127.0.0.1:9 check observe layer4 error-limit 1 on-error mark-down
listen stats
  bind *:8404
"""

# The least that is Ray's
GLOBAL = """\
global
    maxconn 1024
"""
FRONTEND = """\
frontend http_frontend
    bind 127.0.0.1:{port}
    default_backend default_backend
backend default_backend
"""
FLAG = Path("/run/stopping")
STOPPING = ' if { str(stopping) -f "/run/stopping" }'
UNLESS_SENT_ON = " !{ req.hdr(x-headlight-forwarded) -m found }"  # which was accepted before


def rewrite(config: str, descriptors: int = 20_000) -> str:
    """Rewrite with a flag that lies somewhere."""
    return haproxy.rewrite(config, FLAG, descriptors)


def test_requests_are_taken_whole_and_in_time() -> None:
    """What came whole can be sent to another replica; the defaults hold for every section."""
    lines = rewrite(CONFIG).splitlines()

    start = lines.index("defaults")
    assert lines[start + 1 : start + 5] == [
        "    option http-buffer-request",
        "    option disable-h2-upgrade",
        "    option http-ignore-probes",
        "    timeout http-request 10s",
    ]
    assert "    timeout http-keep-alive 65s" in lines


def test_no_request_asks_a_replica_for_another_protocol() -> None:
    """It would not read the body; once, also where the file is written again."""
    lines = rewrite(rewrite(CONFIG)).splitlines()

    assert lines.count("    http-request del-header upgrade") == 1
    start, choice = (
        lines.index("frontend http_frontend"),
        lines.index(haproxy.DEFAULT_BACKEND_RULE + STOPPING + UNLESS_SENT_ON),
    )
    assert start < lines.index("    http-request del-header upgrade") < choice


@pytest.mark.parametrize(
    ("said", "code"),
    [
        (haproxy.NOT_READY, "not_ready"),
        (haproxy.NOT_FOUND, "not_found"),
        (haproxy.TIMED_OUT, "deadline_exceeded"),
        (haproxy.SLOW_BODY, "request_timeout"),
        (haproxy.OVERLOADED, "overloaded"),
        (haproxy.BAD_REQUEST, "bad_request"),
        (haproxy.FAILED, "internal"),
        (haproxy.REPLICA_LOST, "replica_lost"),
    ],
)
def test_what_haproxy_answers_itself_is_a_refusal_of_the_table(said: str, code: str) -> None:
    """The wrapper is too quick to read the table, so its copy is held against it."""
    (quoted,) = re.findall("'({.*})'", said)
    refused = refusals.Refused(code)

    assert json.loads(quoted) == json.loads(problem_details(refused, "%[unique-id]"))
    assert f"status {refused.status} content-type {refusals.MEDIA_TYPE}" in said
    assert " hdr X-Content-Type-Options nosniff " in said


def test_connections_have_a_bound_and_probes_a_reserve_beyond_it() -> None:
    """Of one client all but 256, and more for its probes; of all what Ray says, and more."""
    lines = rewrite(CONFIG).splitlines()

    assert "    maxconn 1152 # 1024" in lines
    start = lines.index("frontend http_frontend")
    rules = lines[start + 1 : start + 7]
    assert rules[1:3] == [
        "    tcp-request connection track-sc0 src,ipmask(32,64)",
        "    tcp-request connection reject if { sc_conn_cur(0) gt 832 }",
    ]
    assert rules[3].endswith(" if { fe_conn gt 1088 } { sc_conn_cur(0) gt 8 }")
    assert rules[4].endswith(" if { sc_conn_cur(0) gt 768 } || { fe_conn gt 1024 }")
    assert (
        f"return {haproxy.OVERLOADED} if {{ var(sess.late) -m found }} !{{ path_end /live "
        in rules[5]
    )


@pytest.mark.parametrize(("descriptors", "most"), [(1024, 256), (2560, 1024), (10**9, 1024)])
def test_connections_never_need_more_descriptors_than_there_are(
    descriptors: int, most: int
) -> None:
    """Two for each: who finds no room is told so, and a replica can always be asked."""
    (written, bound) = re.findall(r"maxconn (\d+) # (\d+)", rewrite(CONFIG, descriptors))[0]

    assert int(bound) == most and int(written) == most + haproxy.PROBE_RESERVE
    assert rewrite(rewrite(CONFIG, descriptors), descriptors) == rewrite(CONFIG, descriptors)


def test_a_replica_is_left_by_its_checks_and_not_by_one_error() -> None:
    """Who waits for one that hangs goes elsewhere; one that says it is leaving may finish."""
    config = rewrite(CONFIG)

    assert haproxy.LEAVE_RULE in config.splitlines()
    assert "http-check expect status 200 error-status L7OKC\n" in config
    assert "observe layer4 error-limit 1 on-error sudden-death\n" in config


def test_a_path_is_unknown_only_where_an_application_is_known() -> None:
    """With another application it is our 404; without any, it may be there in a moment."""
    alone = "\n".join(line for line in CONFIG.splitlines() if "http-minilm" not in line)

    assert haproxy.REFUSE_RULE + STOPPING in rewrite(CONFIG).splitlines()
    assert haproxy.REFUSE_RULE not in rewrite(CONFIG).splitlines()
    assert haproxy.NOT_FOUND_RULE in rewrite(CONFIG).splitlines()
    assert haproxy.REFUSE_RULE in rewrite(alone).splitlines()
    assert haproxy.NOT_FOUND_RULE not in rewrite(alone).splitlines()


def test_only_a_node_that_drains_closes_its_connections() -> None:
    """And refuses all clients after a time; undone, it leaves no trace."""
    drains = haproxy.rewrite(CONFIG, FLAG, 20_000, pause=4.25)

    assert (
        haproxy.CLOSE_RULE in drains.splitlines()
        and f"{haproxy.LOAD_PAUSE_SCRIPT} 4.2" in drains.splitlines()
    )
    assert haproxy.CLOSE_RULE not in rewrite(CONFIG) and haproxy.LOAD_PAUSE_SCRIPT not in rewrite(
        CONFIG
    )
    assert rewrite(drains) == rewrite(CONFIG)


def test_a_service_that_stops_chooses_no_replica() -> None:
    """HAProxy takes the first choice whose condition holds."""
    lines = rewrite(CONFIG).splitlines()

    choices = [line for line in lines if line.strip().startswith("use_backend")]
    assert choices == [
        haproxy.DEFAULT_BACKEND_RULE + STOPPING + UNLESS_SENT_ON,
        "    use_backend http-minilm if is_minilm",
    ]


def test_a_variable_shows_the_counts_to_prometheus_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The page of its state stays where it is; written again, the file is the same."""
    monkeypatch.setenv(haproxy.METRICS_HOST_VARIABLE, "0.0.0.0")
    config = rewrite(CONFIG)

    assert "bind 0.0.0.0:9101\n" in config
    assert "bind 127.0.0.1:8404\n" in config
    assert rewrite(config) == config


@pytest.mark.parametrize(
    "line",
    [
        "    bind 127.0.0.1:9101",
        "  bind 127.0.0.1:8404",
        "    bind *:8000",
        "    stats socket /run/admin mode 600 level admin expose-fd listeners",
        "    log stderr local0 notice",  # the file is not rotated
    ],
    ids=["metrics", "state", "clients", "the admin socket", "the log"],
)
def test_a_line_says_what_it_must(line: str) -> None:
    """Only the service listens for others, and what redirects it is its owner's."""
    assert line in rewrite(CONFIG).splitlines()


def test_haproxys_errors_keep_their_status() -> None:
    """Ray's pages make a 500 of 502 to 504, which no client retries."""
    assert "errorfile" not in rewrite(CONFIG)


def test_a_second_time_changes_nothing() -> None:
    """Ray may start HAProxy twice on one file."""
    once = rewrite(CONFIG)

    assert rewrite(once) == once


@pytest.mark.parametrize("section", ["defaults", "backend default_backend", "    use_backend"])
def test_a_file_that_lacks_a_place_of_ours_is_refused(section: str) -> None:
    """Rather no HAProxy than one that breaks the promise silently."""
    config = CONFIG.replace("default_backend default_backend", "") if section[0] == " " else CONFIG

    with pytest.raises(ValueError, match="lacks a section"):
        rewrite(config.replace(section, "    # gone"))


def written_by_ray(*backends: dict[str, Any]) -> str:
    """The configuration that the installed Ray writes, as far as it is rewritten."""
    ray = importlib.util.find_spec("ray")
    assert ray and ray.origin
    templates = runpy.run_path(str(Path(ray.origin).parent / "serve/_private/haproxy_templates.py"))
    jinja = Environment()
    jinja.filters["haproxy_fmt"] = str  # Ray's own, for names of applications
    text = jinja.from_string(templates["HAPROXY_CONFIG_TEMPLATE"])
    made: str = text.render(
        config={
            "error_file_path": "/500.http",
            "metrics_port": 1,
            "stats_port": 2,
            "log_target": "stderr",
            "maxconn": 1024,
            "timeout_http_keep_alive_s": 90,
            "observe_mark_down_enabled": True,
            "observe_error_limit": 1,
        },
        route_info={"status": 200},
        backends=backends,
        backends_with_health_config=[
            {
                "backend": backend,
                "health_config": {
                    "health_path": "/h",
                    "default_server_directive": "default-server fall 3 check",
                },
            }
            for backend in backends
        ],
    )
    return made


def test_the_installed_rays_template_has_what_is_rewritten() -> None:
    """Each line that the rewrite looks for is in Ray's template, so that none is missed."""
    made = written_by_ray({"name": "b", "servers": [{"name": "s", "host": "h", "port": 3}]})

    before, after = made.splitlines(), rewrite(made).splitlines()

    gone = {line.strip() for line in set(before) - set(after)}
    assert gone == {
        "log stderr local0 info",
        "stats socket  mode 666 level admin expose-fd listeners",
        "errorfile 502 /500.http",
        "errorfile 503 /500.http",
        "errorfile 504 /500.http",
        "bind :1",
        "bind *:2",
        "maxconn 1024",
        "timeout http-keep-alive 90s",
        "http-check expect status 200",
        "server s h:3 check observe layer4 error-limit 1 on-error mark-down",
    }


def test_the_installed_rays_template_names_applications_and_replicas() -> None:
    """By which several models are found."""
    backends = [
        {
            "name": name,
            "path_prefix": prefix,
            "servers": [{"name": f"{name}#{port}", "host": "127.0.0.1", "port": port}],
        }
        for name, prefix, port in (("http-base", "/base", 3), ("http-minilm", "/", 4))
    ]

    assert choice.read_backends(written_by_ray(*backends)) == [
        choice.Backend("http-base", "/base", {"http-base#3": ("127.0.0.1", 3)}),
        choice.Backend("http-minilm", "/", {"http-minilm#4": ("127.0.0.1", 4)}),
    ]


def test_a_drain_is_known_by_rays_own_words() -> None:
    """They stand in the configuration of a node that drains, and Ray's period is ours."""
    with warnings.catch_warnings(action="ignore"):  # of Ray's age
        from ray.serve._private import constants

    assert haproxy.DRAINING == constants.DRAINING_MESSAGE
    assert haproxy.DRAIN_SECONDS == constants.PROXY_MIN_DRAINING_PERIOD_S


def test_the_wrapper_becomes_haproxy(tmp_path: Path) -> None:
    """Run as Ray runs it: same process, arguments passed on, the file rewritten."""
    config = tmp_path / "haproxy.cfg"
    timeouts = "".join(f"    timeout {side} 1s\n" for side in ("client", "server", "connect"))
    config.write_text(f"{GLOBAL}defaults\n    mode http\n{timeouts}{FRONTEND.format(port=1)}")

    checked = subprocess.run(
        [sys.executable, haproxy.__file__, "-c", "-f", config],
        capture_output=True,
        text=True,
        check=False,
    )

    assert "option http-buffer-request" in config.read_text()
    assert "Configuration file" in checked.stdout + checked.stderr


PATIENCE_SECONDS = 60


@contextmanager
def started(config: Path, port: int) -> Iterator[subprocess.Popen[bytes]]:
    """The wrapper's HAProxy on a configuration, once it takes connections."""
    command = [sys.executable, haproxy.__file__, "-db", "-f", str(config)]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        try:
            deadline = time.monotonic() + PATIENCE_SECONDS
            while time.monotonic() < deadline:
                with socket.socket() as client:
                    if client.connect_ex(("127.0.0.1", port)) == 0:
                        break
                time.sleep(0.05)
            yield process
        finally:
            process.terminate()


def exchange(port: int, sent: bytes) -> tuple[http.client.HTTPResponse, bytes]:
    """What is answered first to some bytes."""
    with socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client:
        client.sendall(sent)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        return answer, answer.read()


def test_on_a_full_disk_haproxy_starts_all_the_same(tmp_path: Path) -> None:
    """With all of our rules, and Ray knows its process by the path."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = tmp_path / "haproxy.cfg"
    timeouts = "".join(f"    timeout {side} 1s\n" for side in ("client", "server", "connect"))
    rays = f"{GLOBAL}defaults\n    mode http\n{timeouts}{FRONTEND.format(port=port)}"
    config.write_text(rays)
    config.with_name("haproxy.cfg.new").mkdir()  # so that it cannot be written

    with started(config, port) as process:
        answer, body = exchange(port, GET)
        words = Path(f"/proc/{process.pid}/cmdline").read_bytes().split(b"\0")

    assert config.read_text() == rays
    assert (answer.status, json.loads(body)["code"]) == (503, "not_ready")
    assert str(config).encode() in words


GET = b"GET / HTTP/1.1\r\nHost: a\r\n\r\n"
# by what a client sends, and what the replica answers before it hangs up
ITS_OWN = {
    "no answer": (GET, b"", 502, "replica_lost"),
    "half a head": (GET, b"HTTP/1.1 200 OK\r\nContent-Le", 502, "replica_lost"),
    "no HTTP": (GET, b"garbage\r\n\r\n", 502, "replica_lost"),
    "below no prefix": (b"GET /elsewhere HTTP/1.1\r\nHost: a\r\n\r\n", b"", 404, "not_found"),
    "another protocol": (b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"", 400, "bad_request"),
}


@pytest.mark.parametrize(("sent", "said", "status", "code"), ITS_OWN.values(), ids=ITS_OWN.keys())
def test_what_haproxy_answers_of_its_own_has_our_shape(
    tmp_path: Path, sent: bytes, said: bytes, status: int, code: str
) -> None:
    """The installed one, for a replica that is lost: with an id, in the body and as a header."""
    with socket.create_server(("127.0.0.1", 0)) as replica, socket.create_server(("", 0)) as probe:
        port, behind = probe.getsockname()[1], replica.getsockname()[1]
        probe.close()
        config = tmp_path / "haproxy.cfg"
        timeouts = "".join(f"    timeout {side} 5s\n" for side in ("client", "server", "connect"))
        config.write_text(
            f"{GLOBAL}defaults\n    mode http\n    errorfile 502 /500.http\n{timeouts}"
            f"frontend http_frontend\n    bind 127.0.0.1:{port}\n"
            "    use_backend http-a if !{ path /elsewhere }\n    default_backend default_backend\n"
            "backend default_backend\n"
            "    http-request return status 404 content-type text/plain string nowhere\n"
            f"backend http-a\n    server one 127.0.0.1:{behind}\n"
        )
        Thread(target=hang_up, args=(replica, said), daemon=True).start()
        with started(config, port):
            answer, body = exchange(port, sent)

    told = json.loads(body)
    assert answer.status == told["status"] == status and told["code"] == code
    assert answer.headers["content-type"] == refusals.MEDIA_TYPE
    assert answer.headers["x-request-id"] == told["request_id"] != ""


@pytest.mark.parametrize(
    ("sent", "answered"), [(b"", []), (GET[:-2], [408]), (GET, [503])], ids=["", "half", "whole"]
)
def test_a_connection_that_said_nothing_is_told_nothing(
    tmp_path: Path, sent: bytes, answered: list[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """After the time for a head: a pool would take the 408 for the answer to its next request."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    config = tmp_path / "haproxy.cfg"
    timeouts = "".join(f"    timeout {side} 5s\n" for side in ("client", "server", "connect"))
    soon = FRONTEND.format(port=port).replace(
        "    bind", "    timeout http-request 100ms\n    bind"
    )
    config.write_text(
        f"{GLOBAL}defaults\n    mode http\n    timeout http-keep-alive 90s\n{timeouts}{soon}"
    )
    monkeypatch.setenv(haproxy.KEEP_ALIVE_VARIABLE, "1")

    with (
        started(config, port),
        socket.create_connection(("127.0.0.1", port), PATIENCE_SECONDS) as client,
    ):
        client.sendall(sent)
        whole = b"".join(iter(lambda: client.recv(65536), b""))

    assert [int(status) for status in re.findall(rb"HTTP/1.1 (\d+) ", whole)] == answered


def test_an_idle_connection_is_kept_as_long_as_the_setting_says(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Where a file of Ray's says another time, and where it is written again."""
    monkeypatch.setenv(haproxy.KEEP_ALIVE_VARIABLE, "620")
    once = rewrite(CONFIG)

    assert "    timeout http-keep-alive 620s" in once.splitlines()
    assert rewrite(once) == once


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
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    config = tmp_path / "haproxy.cfg"
    timeouts = "".join(f"    timeout {side} 1s\n" for side in ("client", "server", "connect"))
    config.write_text(f"{GLOBAL}defaults\n    mode http\n{timeouts}{FRONTEND.format(port=port)}")
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
        with socket.socket() as client:
            if client.connect_ex(("127.0.0.1", port)) != 0:
                return
        time.sleep(0.05)
    raise AssertionError(f"haproxy {pid} still listens")


def test_clients_speak_tls_where_there_is_a_certificate_and_http_1_alone() -> None:
    """However often Ray rewrites its file; without one as before."""
    once = haproxy.rewrite(CONFIG, FLAG, 20_000, tls="/run/tls.pem")

    assert "    bind *:8000 ssl crt /run/tls.pem alpn http/1.1 ssl-min-ver TLSv1.2\n" in once
    assert haproxy.rewrite(once, FLAG, 20_000, tls="/run/tls.pem") == once
    assert haproxy.rewrite(once, FLAG, 20_000) == rewrite(CONFIG)
    assert "bind 127.0.0.1:9101\n" in once


@pytest.mark.parametrize(
    ("host", "bound"),
    [
        ("0.0.0.0", "0.0.0.0:8000"),
        ("::", ":::8000 v4v6"),
        ("::1", "::1:8000"),
        ("example", "example:8000"),
    ],
)
def test_clients_come_to_the_host_though_ray_was_told_the_loopback(host: str, bound: str) -> None:
    """Only the door for clients moves, however often Ray rewrites its file."""
    rays = CONFIG.replace("bind *:8000", "bind 127.0.0.1:8000")
    once = haproxy.rewrite(rays, FLAG, 20_000, host=host)

    assert f"    bind {bound}\n" in once and "bind 127.0.0.1:9101\n" in once
    assert haproxy.rewrite(once, FLAG, 20_000, host=host) == once
    assert haproxy.rewrite(rays, FLAG, 20_000).count("bind 127.0.0.1:8000\n") == 1
