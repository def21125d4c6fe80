"""Readers who ask for large answers and take none of them: what is held, and who else is served."""

import re
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack
from typing import TYPE_CHECKING

import httpx
import orjson
import pytest

from tests.metric_samples import samples
from tests.ray.drill import wait
from tests.ray.test_floods import MIB, p99, resident

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

FEW, MANY, SMALL_PACE_SECONDS = 3, 100, 0.05
# an answer of 8 MB of arrays, some 20 MB of numbers: more than sockets and HAProxy hold
SIZE = 1000
LARGE = orjson.dumps(
    {
        "query": [[1]] * SIZE,
        "key": [[number / SIZE] for number in range(SIZE)],
        "value": [[1]] * SIZE,
    }
)
MOST_GROWTH_BYTES = 640 * MIB  # of the budget, 512, and what work on an answer takes
MOST_LEFT_BYTES = 256 * MIB


class Reader:
    """A client that sends a request and takes nothing of the answer."""

    def __init__(self, port: int, body: bytes = LARGE) -> None:
        head = "POST /v1/attend HTTP/1.1\r\nhost: localhost\r\ncontent-type: application/json\r\n"
        self._socket = socket.socket()
        self._socket.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        self._socket.connect(("127.0.0.1", port))
        self._socket.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)

    def close(self) -> None:
        self._socket.close()


def figures(service: "Service") -> dict[str, float]:
    """What all replicas hold, whom they cut off, and whose client left."""
    page = list(samples(service.metrics()))
    return {
        "held": sum(value for name, _, value in page if name == "headlight_held_bytes"),
        "cut off": sum(v for name, _, v in page if name == "headlight_readers_cut_off_total"),
        "499": sum(
            value
            for name, labels, value in page
            if name == "headlight_requests_total" and labels["code"] == "499"
        ),
        "memory": sum(
            value
            for name, labels, value in page
            if name == "headlight_shed_total" and labels["reason"] == "memory"
        ),
    }


@pytest.mark.prove
def test_readers_who_never_read_are_cut_off_and_others_are_served(running: "Service") -> None:
    """Behind HAProxy; a large answer to who takes it is whole, and at last nothing is held."""
    before = figures(running)

    with ExitStack() as stack:
        for _ in range(FEW):
            stack.callback(Reader(running.port).close)
        wait(lambda: figures(running)["held"] > MIB, "an answer is held")
        large = httpx.post(f"{running.url}/v1/attend", content=LARGE, headers=JSON, timeout=60)
        small = running.encode("All is well")
        wait(lambda: figures(running)["cut off"] >= before["cut off"] + FEW, "they are cut off")
    wait(lambda: figures(running)["held"] == 0, "nothing is held")
    after = figures(running)

    assert (large.status_code, small.status_code) == (200, 200)
    assert len(large.json()["concat"]) == SIZE
    assert after["cut off"] == before["cut off"] + FEW
    assert after["499"] == before["499"] + FEW


JSON = {"content-type": "application/json"}


@pytest.fixture(scope="module")
def alone(start: "Start") -> Iterator["Service"]:
    """A service of one replica."""
    with start() as service:
        yield service


@pytest.mark.prove
def test_a_hundred_readers_who_never_read_take_no_more_than_the_budget(alone: "Service") -> None:
    """Over and over for half a minute; small requests are answered, the memory comes back."""
    (pid,) = (pid for pid, name in alone.family().items() if name == "ServeReplica")
    alone.encode("All is well")
    begun, most, over = resident({pid: ""})[pid], 0, threading.Event()
    small: list[float] = []
    codes: list[int] = []

    def ask() -> None:
        with httpx.Client(base_url=alone.url, timeout=60) as client:
            while not over.wait(SMALL_PACE_SECONDS):
                start = time.monotonic()
                body = {"inputs": ["All is well"]}
                codes.append(client.post("/v1/encode", json=body).status_code)
                small.append(time.monotonic() - start)

    asking = threading.Thread(target=ask)
    asking.start()
    held = 0.0
    readers: list[Reader] = []
    until_ = time.monotonic() + 30
    try:
        while time.monotonic() < until_:
            if len(readers) == MANY:
                readers.pop(0).close()
            readers.append(Reader(alone.port))
            most = max(most, resident({pid: ""})[pid])
            if len(readers) % 10 == 0:
                held = max(held, figures(alone)["held"])
    finally:
        over.set()
        asking.join()
        for reader in readers:
            reader.close()
    wait(lambda: figures(alone)["held"] == 0, "nothing is held")
    after, end = figures(alone), time.monotonic()
    wait(lambda: resident({pid: ""})[pid] - begun < MOST_LEFT_BYTES, "the memory is back")
    print(
        f"grown {(most - begun) // MIB} MiB, back after {time.monotonic() - end:.1f} s, "
        f"held at most {held / MIB:.0f} MiB, "
        f"cut off {after['cut off']:.0f}, shed for memory {after['memory']:.0f}, "
        f"small: {len(small)}, p99 {p99(small):.3f} s, {set(codes)}"
    )
    assert re.match(r"\{200\}$", str(set(codes)))
    assert most - begun < MOST_GROWTH_BYTES and held <= 512 * MIB
    assert after["cut off"] + after["memory"] > 0
    assert pid in alone.family()
