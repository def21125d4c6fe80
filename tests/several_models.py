"""Several models at one address: real replicas in this process behind the installed HAProxy.

Ray's part alone is played: the configuration is by its own template. What clients see is told
apart by weights, which every answer carries. The same checks run over Ray in tests/ray.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import httpx
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from service.door.door import Door
from service.door.entrance import Doorway, Entrance
from service.door.transport import Protocol
from service.observe.scrape import join_pages
from service.pipeline.replica import Replica
from tests.behind_entrance import Ray
from tests.conftest import listening
from tests.rays_haproxy import free_port, running, written_by_ray
from tests.task_heads import checkpoint, embedder

FIRST, EMBEDDER, RERANKER = "all-MiniLM-L6-v2", "tiny-embedder", "my-reranker"
LARGE = 3 << 19  # bytes of a body that no buffer of HAProxy's holds
PIECE = 200_000  # of a text: a replica takes 262,144 characters


@dataclass
class Address:
    """Where several models answer.

    Args:
        url: of all.
        prefixes: of each model, by its name; empty for the one at the root.
    """

    url: str
    prefixes: Mapping[str, str]

    def weights(self) -> dict[str, str]:
        """The weights of each model, asked below its prefix; of the first, past all rules."""
        told = {
            name: httpx.get(f"{self.url}{prefix}/v1/models", timeout=60)
            for name, prefix in self.prefixes.items()
        }
        return {name: answer.headers["x-headlight-weights"] for name, answer in told.items()}

    def counted(self) -> Counter[tuple[str, str, str]]:
        """How many requests were answered, by replica, route and code."""
        found = dict[tuple[tuple[str, str], ...], Sample]()  # a replica may be on several pages
        for prefix in self.prefixes.values():
            page = httpx.get(f"{self.url}{prefix}/metrics", timeout=60).text
            for family in text_string_to_metric_families(page):
                for sample in family.samples:
                    if sample.name == "headlight_requests_total":
                        found[tuple(sorted(sample.labels.items()))] = sample
        counted = Counter[tuple[str, str, str]]()
        for sample in found.values():
            labels = sample.labels
            counted[labels["replica"], labels["route"], labels["code"]] += int(sample.value)
        return counted


def texts(size: int) -> list[str]:
    """Texts of so many characters in all, of one token each, which no model cuts."""
    return ["a" * (each + 1) for each in [PIECE - 1] * (size // PIECE) + [size % PIECE]]


def save_embedder(folder: Path) -> Path:
    """A model of 15 numbers a vector, which no other has."""
    folder = folder / EMBEDDER
    embedder(folder)
    return folder


def save_reranker(folder: Path) -> Path:
    """A cross-encoder."""
    folder = folder / RERANKER
    checkpoint(folder, "ForSequenceClassification", num_labels=1)
    return folder


@asynccontextmanager
async def one_address(replicas: Mapping[str, Replica], folder: Path) -> AsyncIterator[Address]:
    """Serve models, by name, at one address; the first at the root, each other below its name."""
    first, *others = replicas
    prefixes = {first: ""} | {name: f"/{name.lower()}" for name in others}
    port, ports = free_port(), dict[str, Sequence[int]]()
    async with AsyncExitStack() as stack:
        for name in (*others, first):
            place = prefixes[name] or "/"
            app, door = _behind_entrance(replicas[name], place, f"http://127.0.0.1:{port}")
            stack.push_async_callback(door.close)
            url = await stack.enter_async_context(listening(app, http=Protocol))
            ports[place] = [int(url.rpartition(":")[2])]
        config = folder / "haproxy.cfg"
        config.write_text(written_by_ray(port, ports, folder))
        front = running(config, port)
        await asyncio.to_thread(front.__enter__)
        stack.push_async_callback(asyncio.to_thread, front.__exit__, None, None, None)
        yield Address(f"http://127.0.0.1:{port}", prefixes)


def _behind_entrance(replica: Replica, place: str, front: str) -> tuple[Entrance, Door]:
    """A replica's application below a prefix, and its door, which sends on through HAProxy."""

    async def scrape(openmetrics: bool, every_model: bool) -> bytes:
        replica.observer.report()
        page = replica.freeze_metrics(openmetrics)()
        return join_pages([page], False, openmetrics, expected=1)

    door = Door(replica, scrape, front=front)
    doorway = Doorway()
    doorway.door, doorway.names = door, door.names()
    return Entrance(Ray(place), doorway), door
