"""Many large requests at once: a replica grows by what it counts, and within its budget."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

import orjson
import pytest

from service.shapes.answer import INFERENCE_HEADER, JSON, OCTETS
from tests.ray.drill import wait
from tests.ray.test_connections import replicas
from tests.ray.test_floods import MIB, resident
from tests.ray.test_readers import figures

if TYPE_CHECKING:
    from tests.ray.conftest import Service, Start

pytestmark = [pytest.mark.ray, pytest.mark.prove]

WIDTH, ROWS, TENSORS = 384, 700, 40
COUNT, CROWD, WARM = 48, 470, 8
LOOK_SECONDS, ASK_SECONDS = 0.02, 0.25
MOST_TIMES, BUDGET_BYTES = 1.2, 512 * MIB
# beside what is counted: one body being parsed at each of two layers, what batches take
SPARE_BYTES = 16 * MIB


def zeros() -> tuple[str, str, bytes]:
    """An input of JSON numbers, as short as they can be: 539 kB, cut to 256 rows of 700."""
    rows = [[0] * WIDTH] * ROWS
    body = orjson.dumps({"inputs": [{"embeddings": rows}], "truncate": "right"})
    return "/v1/encode", f"content-type: {JSON}", body


def halves() -> tuple[str, str, bytes]:
    """A tensor of 7.7 MB of FP16 after its JSON, which the model takes as float32."""
    data = bytes(2 * TENSORS * 250 * WIDTH)
    shape, size = [TENSORS, 250, WIDTH], {"binary_data_size": len(data)}
    tensor = {"name": "inputs_embeds", "shape": shape, "datatype": "FP16", "parameters": size}
    told = orjson.dumps({"inputs": [tensor]})
    headers = f"content-type: {OCTETS}\r\n{INFERENCE_HEADER}: {len(told)}"
    return "/v2/models/all-MiniLM-L6-v2/infer", headers, told + data


KINDS: dict[str, Callable[[], tuple[str, str, bytes]]] = {"zeros": zeros, "halves": halves}


async def crowd(port: int, kind: str, count: int) -> Counter[str]:
    """Send so many of a kind at once; how often each status came."""
    path, headers, body = KINDS[kind]()
    head = (
        f"POST {path} HTTP/1.1\r\nhost: localhost\r\n{headers}\r\n"
        f"connection: close\r\ncontent-length: {len(body)}\r\n\r\n"
    ).encode()

    async def ask() -> str:
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            sending = asyncio.create_task(send(writer))
            line = await reader.readline()
            await reader.read()
            await sending
            writer.close()
        except OSError:
            return "cut off"
        return line[9:12].decode()

    async def send(writer: asyncio.StreamWriter) -> None:
        writer.write(head)
        try:
            for first in range(0, len(body), 64 * 1024):
                writer.write(body[first : first + 64 * 1024])
                await writer.drain()
        except OSError:  # it was answered before the end
            return

    async with asyncio.timeout(300):
        return Counter(await asyncio.gather(*(ask() for _ in range(count))))


class Watch:
    """The most that a replica grew by and the most that it counted, while a context lasts."""

    def __init__(self, service: "Service", pid: int) -> None:
        self._service, self._pid, self._over = service, pid, threading.Event()
        self._looking = [threading.Thread(target=each) for each in (self._look, self._ask)]
        self.most, self.held = 0, 0.0

    def __enter__(self) -> "Watch":
        self.begun = self._resident()
        for thread in self._looking:
            thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._over.set()
        for thread in self._looking:
            thread.join()

    @property
    def grown(self) -> int:
        """Bytes."""
        return self.most - self.begun

    def _resident(self) -> int:
        return resident({self._pid: ""})[self._pid]

    def _look(self) -> None:
        while not self._over.wait(LOOK_SECONDS):
            self.most = max(self.most, self._resident())

    def _ask(self) -> None:
        while not self._over.wait(ASK_SECONDS):
            self.held = max(self.held, figures(self._service)["held"])


def drill(service: "Service", kind: str, count: int) -> Watch:
    """Send so many of a kind at once to a service of one replica that has had a few."""
    (pid,) = replicas(service)
    assert set(asyncio.run(crowd(service.port, kind, WARM))) <= {"200", "429"}
    wait(lambda: figures(service)["held"] == 0, "nothing is held")
    with Watch(service, pid) as watch:
        codes = asyncio.run(crowd(service.port, kind, count))
    wait(lambda: figures(service)["held"] == 0, "nothing is held")
    print(
        f"{count} of {kind}: {dict(codes)}, grown {watch.grown / MIB:.0f} MiB, "
        f"counted at most {watch.held / MIB:.0f} MiB"
    )
    assert codes.keys() <= {"200", "429"} and codes["200"]
    assert pid in replicas(service)
    return watch


@pytest.fixture(scope="module")
def alone(start: "Start") -> Iterator["Service"]:
    """A service of one replica."""
    with start() as service:
        yield service


@pytest.mark.parametrize("count", [COUNT, CROWD])
@pytest.mark.parametrize("kind", KINDS)
def test_large_requests_at_once_grow_a_replica_by_what_it_counts(
    alone: "Service", kind: str, count: int
) -> None:
    """Those that find no room are refused, by the replica: HAProxy never takes it for dead."""
    watch = drill(alone, kind, count)

    assert watch.grown < MOST_TIMES * watch.held + SPARE_BYTES
    assert watch.grown < BUDGET_BYTES
