"""What clients feel of a shadow: dead, silent, slow, fast, or a Headlight on the same cores."""

import json
import math
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from service.encode.shadow import HEADER
from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

ANOTHER = Path(__file__).with_name("another.py")
HEAD = (
    "POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "{}Content-Length: {}\r\n\r\n{}"
)
HELD_BACK = f"{HEADER}: 1\r\n"  # what comes from a shadowing service is sent to no shadow
SLOW_SECONDS = 4.0
CYCLES, REQUESTS = 80, 30  # 2,320 requests that count of each kind, 23 of them beyond the p99
QUANTILES, KINDS = (0.5, 0.95, 0.99), ("", HELD_BACK)
MOST = 1.1

Other = Callable[["Start", int], AbstractContextManager[None]]


class Client:
    """A connection that is kept; head and body go in one piece, which Nagle and no one holds up."""

    def __init__(self, service: "Service") -> None:
        self._socket = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, text: str, more: str) -> float:
        """The seconds that the answer to a text took; `more` is of the head."""
        body = json.dumps({"inputs": [text], "encoding": "base64"})
        request = HEAD.format(more, len(body), body).encode()
        begun = time.perf_counter()
        self._socket.sendall(request)
        told = b""
        while not (end := told.find(b"\r\n\r\n") + 4) > 3 or len(told) < end + length(told[:end]):
            told += self._socket.recv(65536)
        taken = time.perf_counter() - begun
        assert told.startswith(b"HTTP/1.1 200 "), told[:400]
        return taken

    def close(self) -> None:
        """End the connection."""
        self._socket.close()

    def turn(self, first: int, more: str) -> list[float]:
        """The seconds of some requests on end, without the one that comes after another's turn."""
        texts = [f"Text {first + each:06d} of a drill" for each in range(REQUESTS)]
        return [self.ask(text, more) for text in texts][1:]


def length(head: bytes) -> int:
    """How long the body of an answer is."""
    return int(head.lower().partition(b"content-length:")[2].split()[0])


def quantile(taken: list[float], of: float) -> float:
    """A quantile, by its rank."""
    return sorted(taken)[math.ceil(of * len(taken)) - 1]


# The shadows


@contextmanager
def dead(start: "Start", port: int) -> Iterator[None]:
    """Nothing listens."""
    yield


@contextmanager
def silent(start: "Start", port: int) -> Iterator[None]:
    """A socket listens, and no one accepts or answers."""
    with socket.create_server(("127.0.0.1", port)):
        yield


def answering(seconds: float) -> Other:
    """One that answers after some seconds."""

    @contextmanager
    def another(start: "Start", port: int) -> Iterator[None]:
        command = [sys.executable, ANOTHER, str(port), str(seconds)]
        pipe = subprocess.PIPE
        with subprocess.Popen(command, stdin=pipe, stdout=pipe, text=True) as process:
            assert process.stdout and process.stdout.readline()
            yield

    return another


@contextmanager
def headlight(start: "Start", port: int) -> Iterator[None]:
    """A Headlight with the same model, on the same cores."""
    with start("--threads", "1", port=port):
        yield


SHADOWS = {
    "dead": dead,
    "silent": silent,
    "slow": answering(SLOW_SECONDS),
    "fast": answering(0.0),
    "headlight": headlight,
}


class Trio(NamedTuple):
    """Services that differ in their shadow: none, one that is sent all texts, or a hundredth."""

    none: "Service"
    all: "Service"
    few: "Service"
    shadow: int  # its port


@pytest.fixture(scope="module")
def trio(start: "Start", left: int) -> Iterator[Trio]:
    """Started once; what stands behind the port changes."""
    own = ("--threads", "1")
    to = (*own, "--shadow", f"http://127.0.0.1:{left}")
    with (
        start(*to, "--shadow-share", "1") as all_,
        start(*to, "--shadow-share", "0.01") as few,
        start(*own) as none,
    ):
        yield Trio(none, all_, few, left)


def in_turns(clients: Sequence[Client], cycles: int) -> dict[tuple[Client, str], list[float]]:
    """The seconds of requests that may be sent on and of those that may not, of each service.

    All kinds within a second or so, and by turns in either order, so that what drifts cancels.
    """
    kinds = [(client, more) for more in KINDS for client in clients]
    taken: dict[tuple[Client, str], list[float]] = {kind: [] for kind in kinds}
    for cycle in range(cycles):
        for client, more in kinds if cycle % 2 else reversed(kinds):
            taken[client, more].extend(client.turn(cycle * REQUESTS, more))
    return taken


@pytest.mark.parametrize("shadow", SHADOWS)
def test_clients_feel_nothing_of_a_shadow(start: "Start", trio: Trio, shadow: str) -> None:
    """The p99 of requests of which all, or a hundredth, go to it is that of those held back.

    Of one service, since a process may be a fifth faster than its like; a service without a shadow
    shows what chance does. A Headlight on the same two cores works off what it was sent in others'
    turns: nothing is asked of that.
    """
    services, ratios = trio[:3], dict[str, float]()
    with ExitStack() as stack:
        stack.enter_context(SHADOWS[shadow](start, trio.shadow))
        clients = [stack.enter_context(closing(Client(service))) for service in services]
        in_turns(clients, 4)
        before = [counted(service) for service in services]
        taken = in_turns(clients, CYCLES)
        told = [counted(service) - was for service, was in zip(services, before, strict=True)]

    for name, client, counts in zip(Trio._fields, clients, told, strict=False):
        sent, held = ([quantile(taken[client, more], of) for of in QUANTILES] for more in KINDS)
        ratios[name] = sent[-1] / held[-1]
        ms, beside = ([round(1e3 * seconds, 2) for seconds in each] for each in (sent, held))
        print(f"{shadow}, {name}: {ratios[name]:.3f}; {ms} ms, held back {beside} ms; {counts}")
    asked = [] if shadow == "headlight" else ["all", "few"]
    assert all(ratios[name] <= MOST * max(1, ratios["none"]) for name in asked), ratios


def counted(service: "Service") -> Counter[str]:
    """What became of the texts of its shadow's share."""
    names = ("sent", "dropped", "failed")
    totals = {name: drill.total(service, f"headlight_shadow_{name}_total") for name in names}
    return Counter({name: int(total) for name, total in totals.items()})
