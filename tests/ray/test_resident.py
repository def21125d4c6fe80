"""What a replica keeps in memory, under texts whose lengths never repeat."""

import itertools
import random
import statistics
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING

import httpx
import pytest

from tests.ray.test_connections import replicas
from tests.ray.test_floods import MIB, resident

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = pytest.mark.ray

CONNECTIONS, MOST_TEXTS, MOST_WORDS = 3, 23, 90
MOST_GROWTH, FLAT = 1.3, 1.03  # of what a replica takes after its start, and after ten minutes
WORDS = "river stone cat because warm under green house bright seven old and the of".split()
SHORT_SECONDS, STEP_SECONDS = 15, 1.0
LONG_SECONDS, LONG_STEP_SECONDS, WARM_MINUTES = 1800, 60, 10


def curve(service: "Service", seconds: float, step: float) -> list[dict[int, int]]:
    """The replicas' resident bytes at every step, under load from before the first on."""
    over = threading.Event()
    codes: list[int] = []

    def ask(seed: int) -> None:
        chance = random.Random(seed)
        with httpx.Client(base_url=service.url, timeout=60) as client:
            while not over.is_set():
                texts = [
                    " ".join(chance.choices(WORDS, k=chance.randint(1, MOST_WORDS)))
                    for _ in range(chance.randint(1, MOST_TEXTS))
                ]
                codes.append(client.post("/embed", json={"inputs": texts}).status_code)

    asking = [threading.Thread(target=ask, args=(seed,)) for seed in range(CONNECTIONS)]
    for thread in asking:
        thread.start()
    points, ends = [], time.monotonic() + seconds
    while time.monotonic() < ends:
        over.wait(step)
        points.append(resident(dict.fromkeys(replicas(service), "")))
    over.set()
    for thread in asking:
        thread.join()
    assert set(codes) == {200}
    print(f"{len(codes)} requests")
    return points


@pytest.mark.prove
def test_a_replica_grows_little_under_lengths_that_never_repeat(running: "Service") -> None:
    """A short form of the drill below; once it grew to twice its size in as long."""
    running.encode("All is well")
    before = resident(dict.fromkeys(replicas(running), ""))

    points = curve(running, SHORT_SECONDS, STEP_SECONDS)

    most = {pid: max(point[pid] for point in points) for pid in before}
    assert all(most[pid] < MOST_GROWTH * before[pid] for pid in before), (before, most)


def test_replicas_take_memory_from_rays_jemalloc(running: "Service") -> None:
    """Its own programs have it anyway; its workers only where it is told so."""
    maps = [Path(f"/proc/{pid}/maps").read_text() for pid in replicas(running)]

    assert maps and all("/libjemalloc.so" in one for one in maps)


def test_the_command_holds_no_torch(running: "Service") -> None:
    """Nor does what starts HAProxy: a replica alone computes."""
    holding = {
        name
        for pid, name in running.family().items()
        if "/libtorch" in Path(f"/proc/{pid}/maps").read_text()
    }

    assert holding == {"ServeReplica"}


@pytest.mark.prove
def test_half_an_hour_of_lengths_that_never_repeat_leaves_memory_flat(start: "Start") -> None:
    """At most 1.3 times what it was after the start, and flat once it is warm."""
    with start() as service:
        (pid,) = replicas(service)
        service.encode("All is well")
        before = resident({pid: ""})[pid]
        points = curve(service, LONG_SECONDS, LONG_STEP_SECONDS)

    sizes = [point[pid] for point in points]
    whole = [round(size / MIB) for size in itertools.chain([before], sizes)]
    print(f"MiB, after the start and each minute: {whole}")
    assert max(sizes) < MOST_GROWTH * before, whole
    warm = sizes[WARM_MINUTES:]
    half = len(warm) // 2
    assert statistics.mean(warm[half:]) < FLAT * statistics.mean(warm[:half]), whole
