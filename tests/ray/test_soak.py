"""Half an hour of everything at once: nothing grows, and the bits stay."""

import asyncio
import contextlib
import json
import random
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import httpx
import pytest

from tests.attacks import every

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

MIB = 1024 * 1024
ROUNDS, ROUND_SECONDS = 6, 300  # after one that warms the service
SETTLE_SECONDS = 20
# Which pages are left in part use differs from round to round by some MiB; a leak is in each
OF_ROUNDS = 3
CLIENTS = 8
MOST_GROWTH_BYTES, PER_REQUESTS = 1 * MIB, 10_000
MOST_DESCRIPTORS = 8  # more than at the start: of connections under way
GOLDEN = {"inputs": ["All is well"], "encoding": "base64"}
WORDS = "the cat sat on a mat because it was warm and then ran off".split()
# small enough not to be the whole of the time
OVERSIZE = [
    one for one in every() if one.name in ("both as json", "every token of TEI", "gates of ones")
]


def resident(service: "Service") -> dict[int, int]:
    """Fewest resident bytes of each process of a service that is asked nothing.

    jemalloc gives pages back some 10 s after they were freed.
    """
    fewest = dict[int, int]()
    for _ in range(SETTLE_SECONDS):
        time.sleep(1)
        for pid in service.family():
            pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
            fewest[pid] = min(fewest.get(pid, pages * 4096), pages * 4096)
    return fewest


def descriptors(service: "Service") -> dict[int, int]:
    """Open files of each process."""
    return {pid: len(list(Path(f"/proc/{pid}/fd").iterdir())) for pid in service.family()}


def valid(chance: random.Random) -> dict[str, Any]:
    """A request that is answered."""
    texts = [" ".join(chance.choices(WORDS, k=chance.randint(1, 60))) for _ in range(3)]
    shown = [{}, {"attention": {"layers": [chance.randint(0, 5)]}}, {"tokens": True}]
    return {"inputs": texts, **chance.choice(shown)}


async def ask(client: httpx.AsyncClient, chance: random.Random, codes: Counter[str]) -> None:
    """One request of any kind."""
    match chance.randint(0, 99):
        case kind if kind < 60:
            answer = await client.post("/v1/encode", json=valid(chance))
        case kind if kind < 80:
            wrong = json.dumps({"inputs": [{"token_ids": [chance.randint(40_000, 10**9)]}]})
            answer = await client.post("/v1/encode", content=wrong)
        case kind if kind < 98:
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(chance.random() * 0.02):
                    await client.post("/v1/encode", json=valid(chance))
            codes["left"] += 1
            return
        case _:
            attack = chance.choice(OVERSIZE)
            answer = await client.post(attack.path, content=attack.body(), headers=attack.headers)
    codes[str(answer.status_code)] += 1


async def soak(url: str, seconds: float, codes: Counter[str]) -> None:
    """Clients side by side for so long."""
    until = time.monotonic() + seconds
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:

        async def one(seed: int) -> None:
            chance = random.Random(seed)
            while time.monotonic() < until:
                await ask(client, chance, codes)

        await asyncio.gather(*(one(seed) for seed in range(CLIENTS)))


def growth(readings: Sequence[Mapping[int, int]], pid: int) -> float:
    """MiB that a process takes more from one reading to the next: fewest of the first and last."""
    first, last = (
        min(reading[pid] for reading in some)
        for some in (readings[:OF_ROUNDS], readings[-OF_ROUNDS:])
    )
    return (last - first) / MIB / (len(readings) - OF_ROUNDS)


def test_half_an_hour_of_everything_leaves_nothing_behind(start: "Start") -> None:
    """Valid, invalid, cancelled and oversize: memory and descriptors of every process stay."""
    codes = Counter[str]()
    with start() as service:
        golden = httpx.post(f"{service.url}/v1/encode", json=GOLDEN).json()["data"]
        asyncio.run(soak(service.url, ROUND_SECONDS, Counter()))
        readings, opened = [resident(service)], descriptors(service)
        for _ in range(ROUNDS):
            asyncio.run(soak(service.url, ROUND_SECONDS, codes))
            readings.append(resident(service))
        left = descriptors(service)
        family = service.family()
        again = httpx.post(f"{service.url}/v1/encode", json=GOLDEN).json()["data"]

    rooms = codes.total() / ROUNDS / PER_REQUESTS
    grown = {f"{family[pid]} {pid}": growth(readings, pid) / rooms for pid in opened}
    print(f"{dict(codes)}; MiB per {PER_REQUESTS} requests: {grown}; files {opened} -> {left}")
    assert set(codes) <= {"200", "413", "422", "429", "left"} and codes["200"] > 0
    assert max(grown.values()) * MIB < MOST_GROWTH_BYTES, grown
    assert all(left[pid] <= opened[pid] + MOST_DESCRIPTORS for pid in opened), (opened, left)
    assert again == golden
