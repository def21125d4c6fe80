"""HAProxy as it runs: who is let in, who is told to go, and whom a replica's fault reaches."""

import json
import socket
import subprocess
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from http.client import HTTPConnection
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from service.cluster import haproxy
from tests.metric_samples import samples
from tests.rays_haproxy import free_port, running, written_by_ray

MOST, PER_SOURCE = 40, 20
SOON = {  # what takes longer with ours
    "fall 3 rise 2 inter 2s fastinter 250ms downinter 250ms": "fall 1 rise 1 inter 20ms "
    "fastinter 20ms downinter 20ms",
    "balance leastconn": "balance first",
}
# What deploy/prometheus/rules asks of each HAProxy
COUNTS = (
    "haproxy_frontend_http_responses_total",
    "haproxy_server_http_responses_total",
    "haproxy_frontend_denied_connections_total",
)
REFUSED = ("4xx", "5xx", None)
H2C = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes.fromhex("000000040000000000")


@dataclass
class Replica:
    """Answers its own name, once it may; its checks at once, unless it is not healthy."""

    name: str
    healthy: bool = True
    status: int = 200  # of its answers
    may: threading.Event = field(default_factory=threading.Event)
    asked: threading.Event = field(default_factory=threading.Event)
    checked: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))

    def __post_init__(self) -> None:
        replica = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_GET(self) -> None:
                probe = self.path == "/-/healthz"
                if not probe:
                    replica.asked.set()
                    replica.may.wait()
                self.send_response((200 if replica.healthy else 503) if probe else replica.status)
                self.send_header("Content-Length", str(len(replica.name)))
                self.end_headers()
                self.wfile.write(replica.name.encode())
                if probe:
                    replica.checked.release()

            def log_message(self, format: str, *args: object) -> None:
                """Say nothing."""

        class Server(ThreadingHTTPServer):
            daemon_threads = True

            def handle_error(self, *args: object) -> None:
                """Somebody left."""

        self.server = Server(("127.0.0.1", 0), Handler)
        self.may.set()

    def checks(self, count: int) -> None:
        """Wait until it was checked so often from now on."""
        while self.checked.acquire(blocking=False):
            pass
        for _ in range(count):
            assert self.checked.acquire(timeout=30)


@dataclass
class Front:
    """HAProxy before two replicas, the first of which is asked first."""

    port: int
    metrics: int
    one: Replica
    two: Replica
    process: subprocess.Popen[bytes]

    def connect(self, source: str = "127.0.0.1") -> socket.socket:
        """Connect, as one of several clients."""
        place = ("127.0.0.1", self.port)
        return socket.create_connection(place, timeout=30, source_address=(source, 0))

    def ask(self, path: str, source: str = "127.0.0.1") -> tuple[int, bytes]:
        """Status and body of an answer."""
        place = ("127.0.0.1", self.port, 8)  # before idle ones are closed, at 10
        with closing(HTTPConnection(*place, source_address=(source, 0))) as connection:
            connection.request("GET", path)
            answer = connection.getresponse()
            return answer.status, answer.read()

    def own(self) -> tuple[int, int]:
        """Answers 4xx and 5xx that no replica gave, and connections refused, as the rules count."""
        with closing(HTTPConnection("127.0.0.1", self.metrics)) as connection:
            connection.request("GET", "/metrics")
            page = connection.getresponse().read().decode()
        count = Counter[str]()
        for name, labels, value in samples(page):
            if name in COUNTS and labels["proxy"] != "prometheus" and labels.get("code") in REFUSED:
                count[name] += int(value)
        answers, by_replicas, connections = (count[name] for name in COUNTS)
        return answers - by_replicas, connections


@pytest.fixture
def front(tmp_path: Path) -> Iterator[Front]:
    """HAProxy with few connections."""
    with ExitStack() as stack:
        replicas = Replica("one"), Replica("two")
        for replica in replicas:
            server = stack.enter_context(replica.server)
            threading.Thread(target=server.serve_forever, args=(0.01,)).start()
            stack.callback(server.shutdown)
            stack.callback(replica.may.set)
        port, metrics, config = free_port(), free_port(), tmp_path / "haproxy.cfg"
        behind = {"/": [each.server.server_port for each in replicas]}
        told = {"maxconn": MOST, "nbthread": 1, "metrics_port": metrics, "timeout_server_s": 6}
        config.write_text(written_by_ray(port, behind, tmp_path, **told))
        process = stack.enter_context(running(config, port, edits=SOON))
        for replica in replicas:
            replica.checks(2)
        yield Front(port, metrics, *replicas, process)


@pytest.fixture
def idle(front: Front) -> Iterator[Callable[[int, str], None]]:
    """Hold connections that say nothing."""
    with ExitStack() as stack:

        def hold(count: int, source: str) -> None:
            for _ in range(count):
                with suppress(ConnectionError):
                    stack.enter_context(front.connect(source))

        yield hold


def test_http_2_in_clear_text_is_refused(front: Front) -> None:
    """A connection is one request at a time, as all bounds count them."""
    with front.connect() as connection:
        connection.sendall(H2C)
        answer = b""
        while part := connection.recv(4096):
            answer += part

    assert answer.startswith(b"HTTP/1.1 400 ")


def test_one_client_leaves_room_for_others(front: Front, idle: Callable[[int, str], None]) -> None:
    """It is told so, its own probes are answered, and beyond these it is not let in."""
    idle(PER_SOURCE, "127.0.0.1")
    status, body = front.ask("/v1/encode")

    assert (status, json.loads(body)["code"]) == (429, "overloaded")
    assert front.ask("/live") == front.ask("/v1/encode", source="127.0.0.2") == (200, b"one")
    idle(haproxy.GRACE, "127.0.0.1")
    with pytest.raises(ConnectionError):
        front.ask("/live")
    assert front.ask("/live", source="127.0.0.2") == (200, b"one")


def test_a_full_front_answers_probes_and_refuses_the_rest(
    front: Front, idle: Callable[[int, str], None]
) -> None:
    """However many clients connect, those connected before are served."""
    old = HTTPConnection("127.0.0.1", front.port, 30)
    old.connect()
    for number in range(MOST):
        idle(1, f"127.0.1.{number + 1}")
    status, body = front.ask("/v1/encode")
    old.request("GET", "/v1/encode")
    assert old.getresponse().status == 200
    old.close()

    assert (status, json.loads(body)["code"]) == (429, "overloaded")
    assert {front.ask(path) for path in ("/live", "/ready", "/metrics")} == {(200, b"one")}


def test_clients_that_hold_many_connections_leave_the_last_to_others(
    front: Front, idle: Callable[[int, str], None]
) -> None:
    """Two could hold all there are, the reserve for probes with them."""
    for source in ("127.0.1.1", "127.0.1.2", "127.0.1.3"):
        idle(PER_SOURCE + haproxy.GRACE, source)

    assert front.ask("/live") == (200, b"one")


def test_what_no_replica_saw_is_counted_by_haproxy(
    front: Front, idle: Callable[[int, str], None]
) -> None:
    """Not what a replica refuses, nor what another answered in its place."""
    front.one.status = 503
    assert front.ask("/v1/encode") == (200, b"two")
    for front.one.status in (404, 429, 500):  # sent again, each would be two requests
        assert front.ask("/v1/encode")[0] == front.one.status
    assert front.own() == (0, 0)

    idle(PER_SOURCE, "127.0.0.1")
    assert front.ask("/v1/encode")[0] == 429
    idle(haproxy.GRACE, "127.0.0.1")
    with pytest.raises(ConnectionError):
        front.ask("/v1/encode")

    assert front.own() == (1, 1)


def test_a_replica_that_hangs_is_left_for_another(front: Front) -> None:
    """The waiting task sees it when its checks fail."""
    front.one.may.clear()
    answers = list[tuple[int, bytes]]()
    waiting = threading.Thread(target=lambda: answers.append(front.ask("/v1/encode")))
    waiting.start()
    assert front.one.asked.wait(30)

    front.one.server.shutdown()  # accepts no connection, as the kernel does for a stopped process
    waiting.join(30)

    assert answers == [(200, b"two")]


def test_a_replica_that_leaves_finishes_what_it_has(front: Front) -> None:
    """It answers its checks, and says that it is not to be asked."""
    front.one.may.clear()
    answers = list[tuple[int, bytes]]()
    waiting = threading.Thread(target=lambda: answers.append(front.ask("/v1/encode")))
    waiting.start()
    assert front.one.asked.wait(30)
    front.one.healthy = False
    front.one.checks(5)

    assert front.ask("/v1/encode") == (200, b"two")
    front.one.may.set()
    waiting.join(30)

    assert answers == [(200, b"one")]


def test_who_waits_in_vain_is_told_so_in_our_words(front: Front) -> None:
    """A replica that is well but does not answer: the deadline is over."""
    front.one.may.clear()

    status, body = front.ask("/v1/encode")

    assert (status, json.loads(body)["code"]) == (504, "deadline_exceeded")
