"""What clients feel of a shadow: dead, silent, slow, fast, or a Headlight on the same cores."""

import json
import math
import socket
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import pytest

from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

ANOTHER = Path(__file__).with_name("another.py")
HEAD = (
    "POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    "Content-Length: {}\r\n\r\n{}"
)
SLOW_SECONDS = 4.0
ROUNDS, TURNS, REQUESTS = 7, 20, 30  # of each service: 580 a round that count, 6 beyond their p99
MOST = 1.1

Other = Callable[["Start", int], AbstractContextManager[None]]


class Client:
    """A connection that is kept; head and body go in one piece, which Nagle and no one holds up."""

    def __init__(self, service: "Service") -> None:
        self._socket = socket.create_connection(("127.0.0.1", service.port), timeout=60)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def ask(self, text: str) -> float:
        """The seconds that the answer to a text took."""
        body = json.dumps({"inputs": [text], "encoding": "base64"})
        request = HEAD.format(len(body), body).encode()
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

    def turn(self, first: int) -> list[float]:
        """The seconds of some requests on end, without the one that comes after another's turn."""
        return [self.ask(f"Text {first + each:06d} of a drill") for each in range(REQUESTS)][1:]


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
            assert process.stdin and process.stdout and process.stdout.readline()
            yield
            process.stdin.close()

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


def in_turns(one: Client, other: Client) -> tuple[list[float], list[float]]:
    """The seconds of requests to either; who is first changes, so that what drifts cancels."""
    clients, taken = (one, other), (list[float](), list[float]())
    for turn in range(TURNS):
        for which in (0, 1) if turn % 2 else (1, 0):
            taken[which].extend(clients[which].turn(turn * REQUESTS))
    return taken


@pytest.mark.parametrize("share", ["all", "few"])
@pytest.mark.parametrize("shadow", SHADOWS)
def test_clients_feel_nothing_of_a_shadow(
    start: "Start", trio: Trio, shadow: str, share: str
) -> None:
    """Their p99 is that of a service without one, within a tenth: the median of rounds' ratios.

    All the texts are too much for a Headlight on the same two cores, of which it takes its part:
    that is printed, and nothing is asked of it.
    """
    service = getattr(trio, share)
    with (
        SHADOWS[shadow](start, trio.shadow),
        closing(Client(trio.none)) as without,
        closing(Client(service)) as beside,
    ):
        in_turns(without, beside)
        before = counted(service)
        rounds = [in_turns(without, beside) for _ in range(ROUNDS)]
        told = {name: value - before[name] for name, value in counted(service).items()}

    ratios = {
        of: statistics.median(quantile(theirs, of) / quantile(ours, of) for ours, theirs in rounds)
        for of in (0.5, 0.95, 0.99)
    }
    whole = [[taken for each in rounds for taken in each[which]] for which in (0, 1)]
    ms = [[round(quantile(taken, of) * 1e3, 2) for of in ratios] for taken in whole]
    figures = f"{shadow}, {share}: p50, p95, p99 without {ms[0]} ms, with {ms[1]} ms, {ratios}"
    print(f"{figures}; {told}")
    assert (shadow, share) == ("headlight", "all") or ratios[0.99] <= MOST, figures


def counted(service: "Service") -> dict[str, float]:
    """What became of the texts of its shadow's share."""
    names = ("sent", "dropped", "failed")
    return {name: drill.total(service, f"headlight_shadow_{name}_total") for name in names}
