"""Replicas that follow the load: of one service, from one to more and back."""

import asyncio
import json
import os
import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.ray import drill

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

CROWD = 4  # clients, for each replica that there may be
PAUSE_SECONDS = 0.25  # between two requests of who passes
SHORT = json.dumps({"inputs": ["All is well"], "encoding": "base64"}).encode()
LONG = json.dumps({"inputs": [{"token_ids": [2035] * 241}] * 3, "encoding": "base64"}).encode()
FLAGS = ("--threads", "1", "--downscale-delay-seconds", "3")


@dataclass
class Load:
    """Clients that send the same request over and over, pausing in between."""

    port: int
    clients: int
    body: bytes
    pause: float = 0.0
    host: str = "127.0.0.1"


MORE_CORES = pytest.mark.skipif(
    len(os.sched_getaffinity(0)) < 3, reason="three replicas of a thread each take three cores"
)


async def client(load: Load, over: Callable[[], bool], journal: drill.Journal) -> None:
    """One of them; what it got is in the journal."""
    connection = drill.Connection(load.port, load.host)
    while not over():
        try:
            journal.note(*await connection.request(load.body))
        except (drill.Lost, ConnectionRefusedError) as error:
            journal.lost.append(repr(error))
        await asyncio.sleep(load.pause)
    connection.close()


@contextmanager
def under(load: Load, journal: drill.Journal) -> Iterator[None]:
    """Have them send from a thread of their own while the block runs."""
    over = threading.Event()

    async def every() -> None:
        await asyncio.gather(*(client(load, over.is_set, journal) for _ in range(load.clients)))

    thread = threading.Thread(target=asyncio.run, args=[every()])
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def reach(service: "Service", number: int, seen: list[tuple[float, int]]) -> float:
    """Wait until so many replicas are ready, noting each change; the seconds that it took."""
    began = time.monotonic()

    def there() -> bool:
        now = len(service.ready())
        if not seen or seen[-1][1] != now:
            seen.append((time.monotonic(), now))
        return now == number

    drill.wait(there, f"{number} replicas")
    return time.monotonic() - began


@pytest.mark.prove
@pytest.mark.parametrize("most", [2, pytest.param(3, marks=MORE_CORES)])
def test_a_crowd_brings_replicas_which_leave_after_it(start: "Start", most: int) -> None:
    """From one to the bound and back by load alone, while one passes by: no request fails."""
    crowd, passer, seen = drill.Journal(), drill.Journal(), list[tuple[float, int]]()
    with start("--max-replicas", str(most), *FLAGS) as service:
        assert f"1 to {most} replicas" in service.greeting
        with under(Load(service.port, 1, SHORT, PAUSE_SECONDS), passer):
            with under(Load(service.port, CROWD * most, LONG), crowd):
                up = reach(service, most, seen)
                drill.wait(lambda: len(crowd.replicas) == most, "all serve")
            down = reach(service, 1, seen)

    first = seen[0][0]
    steps = ", ".join(f"{number} after {when - first:.1f} s" for when, number in seen)
    print(f"up {up:.1f} s, down {down:.1f} s: {steps}; {crowd.codes} and {passer.codes}")
    for journal in (crowd, passer):
        assert journal.lost == [] and set(journal.codes) == {200} and len(journal.data) == 1
    assert len(crowd.replicas) == most and [number for _, number in seen][-1] == 1


def test_every_replica_answers_for_itself_at_its_own_address(running: "Service") -> None:
    """What Prometheus is told of: as many addresses as replicas, each with one replica's page."""
    (group,) = httpx.get(f"{running.url}/metrics/targets").json()
    path, scope = group["labels"]["__metrics_path__"], group["labels"]["__param_scope"]
    pages = [
        httpx.get(f"http://{target}{path}", params={"scope": scope}).text
        for target in group["targets"]
    ]

    labels = [set(re.findall(r'replica="(.+?)"', page)) for page in pages]
    assert [len(each) for each in labels] == [1, 1]
    assert set.union(*labels) == running.ready()
