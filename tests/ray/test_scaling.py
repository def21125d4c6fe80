"""Replicas that follow the load: of one service, from one to more and back."""

import asyncio
import json
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

CROWD, PASSERS = 6, 1  # clients
PAUSE_SECONDS = 0.25  # between two requests of who passes
LONG = json.dumps({"inputs": [{"token_ids": [2035] * 241}] * 3, "encoding": "base64"}).encode()
FLAGS = ("--threads", "1", "--downscale-delay-seconds", "3")


async def client(port: int, over: Callable[[], bool], journal: drill.Journal, pause: float) -> None:
    """Send the same request over and over."""
    connection = drill.Connection(port)
    while not over():
        try:
            journal.note(*await connection.request(LONG))
        except (drill.Lost, ConnectionRefusedError) as error:
            journal.lost.append(repr(error))
        await asyncio.sleep(pause)
    connection.close()


@contextmanager
def load(port: int, clients: int, pause: float, journal: drill.Journal) -> Iterator[None]:
    """Clients in a thread of their own while the block runs."""
    over = threading.Event()

    async def all_of_them() -> None:
        sends = (client(port, over.is_set, journal, pause) for _ in range(clients))
        await asyncio.gather(*sends)

    thread = threading.Thread(target=asyncio.run, args=[all_of_them()])
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def reach(service: "Service", number: int) -> float:
    """Wait until so many replicas are ready; the seconds that it took."""
    began = time.monotonic()
    drill.wait(lambda: len(service.ready()) == number, f"{number} replicas")
    return time.monotonic() - began


def test_a_crowd_brings_a_second_replica_which_leaves_after_it(start: "Start") -> None:
    """From 1 to 2 to 1 by load alone, while others pass by: no request fails."""
    journal = drill.Journal()
    with start("--max-replicas", "2", *FLAGS) as service:
        assert "1 to 2 replicas" in service.greeting
        with load(service.port, PASSERS, PAUSE_SECONDS, journal):
            with load(service.port, CROWD, 0, journal):
                up = reach(service, 2)
            down = reach(service, 1)
            late = "\n" + service.metrics()

    print(f"up {up:.1f} s, down {down:.1f} s, {journal.codes} by {dict(journal.replicas)}")
    assert journal.lost == [] and set(journal.codes) == {200} and len(journal.data) == 1
    assert len(journal.replicas) == 2
    assert "\nheadlight_scrape_incomplete 0\n" in late
