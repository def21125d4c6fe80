"""Clients that know exactly what they sent and what came back, while a service is hurt."""

import asyncio
import json
import threading
import time
from collections import Counter
from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from prometheus_client.parser import text_string_to_metric_families

if TYPE_CHECKING:
    from tests.ray.conftest import Service

BODY = json.dumps({"inputs": ["All is well"], "encoding": "base64"}).encode()
ENCODE = "/v1/encode", BODY  # what most clients ask
TOLD = ("data", "answers")  # what is equal in all answers to one request
PAUSE_SECONDS = 0.02  # between head and body, when they go apart
AGAIN_SECONDS = 0.01  # after a refused connection
PATIENCE_SECONDS = 60  # for what is awaited


class Lost(Exception):
    """A request that got no whole answer."""


def name_answer(headers: Mapping[str, str], body: bytes) -> tuple[str, bytes]:
    """The weights that answered, and what they answer to this request every time."""
    told = json.loads(body)
    data = json.dumps([told[name] for name in TOLD if name in told]).encode()
    return headers["x-headlight-weights"], data


@dataclass
class Journal:
    """What the clients saw."""

    codes: Counter[int] = field(default_factory=Counter)
    replicas: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    data: set[bytes] = field(default_factory=set)
    named: set[tuple[str, bytes]] = field(default_factory=set)  # weights, and data of theirs
    longest: float = 0.0  # seconds between two answers of 200
    latest: float | None = None
    refusals: set[tuple[str, ...]] = field(default_factory=set)
    unconnected: int = 0

    def note(self, status: int, headers: dict[str, str], body: bytes) -> None:
        """Keep what tells one answer from another."""
        self.codes[status] += 1
        self.replicas[headers.get("x-headlight-replica", "")] += 1
        if status == 200:
            named = name_answer(headers, body)
            self.data.add(named[1])
            self.named.add(named)
            now = time.monotonic()
            self.longest = max(self.longest, now - (self.latest or now))
            self.latest = now
        elif headers.get("content-type") == "application/problem+json":
            retry_after = headers.get("retry-after", "never")
            self.refusals.add((json.loads(body)["code"], retry_after))
        else:
            self.refusals.add((body.decode("latin-1"),))


class Connection:
    """One connection at a time, kept alive."""

    def __init__(self, port: int, host: str = "127.0.0.1") -> None:
        self._host, self._port = host, port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(
        self, body: bytes, *, path: str = ENCODE[0], apart: bool = False
    ) -> tuple[int, dict[str, str], bytes]:
        """POST a body; status, headers and body of the answer.

        Raises:
            ConnectionRefusedError: nobody listens.
            Lost: the request was taken, and got no whole answer.
        """
        if self._reader is None or self._reader.at_eof():
            self.close()
            self._reader, self._writer = await asyncio.open_connection(self._host, self._port)
        assert self._writer is not None
        head = (
            f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        try:
            if apart:
                self._writer.write(head)
                await asyncio.sleep(PAUSE_SECONDS)
                self._writer.write(body)
            else:
                self._writer.write(head + body)
            return await self._answer(self._reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise Lost(repr(error)) from error

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, value in pairs}
        if "content-length" not in headers:
            raise asyncio.IncompleteReadError(lines[0].encode(), None)  # none of ours
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), headers, body

    def close(self) -> None:
        """Forget the connection; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
        self._reader = self._writer = None


async def client(
    port: int,
    number: int,
    over: Callable[[], bool],
    journal: Journal,
    kept: bool,
    pause: float,
    body: bytes = BODY,
    path: str = ENCODE[0],
) -> None:
    """Send the same request over and over, every third one in two parts."""
    connection, sent = Connection(port), number
    while not over():
        sent += 1
        try:
            journal.note(*await connection.request(body, path=path, apart=sent % 3 == 0))
        except ConnectionRefusedError:
            journal.unconnected += 1
            await asyncio.sleep(AGAIN_SECONDS)
        except Lost as error:
            journal.lost.append(str(error))
        if not kept:
            connection.close()
        if pause:
            await asyncio.sleep(pause)
    connection.close()


async def clients(
    port: int,
    over: Callable[[], bool],
    *,
    kept: int = 0,
    fresh: int = 0,
    pause: float = 0.0,
    asked: Sequence[tuple[str, bytes]] = (ENCODE,),
) -> Journal:
    """Run clients side by side until it is over; what they saw.

    Args:
        kept: clients that keep their connection.
        fresh: clients that open one for each request.
        pause: of each client after an answer, in seconds.
        asked: path and body that clients send, one each in turn.
    """
    journal, running = Journal(), list[Coroutine[None, None, None]]()
    for number, kind in enumerate([True] * kept + [False] * fresh):
        path, body = asked[number % len(asked)]
        running.append(client(port, number, over, journal, kind, pause, body, path))
    await asyncio.gather(*running)
    return journal


def during(do: Callable[[], object], port: int, **load: Any) -> Journal:
    """Run clients, as `clients` takes them, while something is done; what they saw."""
    over = threading.Event()

    async def both() -> Journal:
        running = asyncio.create_task(clients(port, over.is_set, **load))
        try:
            await asyncio.to_thread(do)
        finally:
            over.set()
        return await running

    return asyncio.run(both())


def total(service: "Service", name: str, **labels: str) -> float:
    """What all replicas tell under a name, added up."""
    return sum(
        sample.value
        for family in text_string_to_metric_families(service.metrics())
        for sample in family.samples
        if sample.name == name and labels.items() <= sample.labels.items()
    )


def under_way(service: "Service") -> float:
    """How many requests are not answered yet."""
    return total(service, "headlight_requests_in_flight")


def wait(done: Callable[[], bool], what: str, seconds: float = PATIENCE_SECONDS) -> None:
    """Wait until something is so."""
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline, f"in vain: {what}"
        time.sleep(0.05)


def hold(journal: Journal) -> None:
    """Hold what the clients of a service that stopped saw against what they may see."""
    codes, busy = set(journal.codes), journal.refusals - {("not_ready", "1")}
    assert journal.lost == [] and {200, 503} <= codes <= {200, 429, 503}, journal
    # on a busy machine, behind a long request, some would be late
    assert len(journal.data) == 1 and busy < journal.refusals
    assert {code for code, _ in busy} <= {"overloaded"}
    assert journal.unconnected > 0
