"""The load: raw connections on one event loop, the same for every server.

Closed: each connection sends its next request when it has its answer. A while after the start, when
all are under way, a window begins; a request counts by the part of its time that lies in it, so
that neither the start nor the end of a short turn tells. Open: requests leave at random moments (a
Poisson process) over as many connections as that takes; the clock of each starts when it was due.

An answer is looked at as far as its length; the first few are kept, to be compared.
"""

import asyncio
import itertools
import random
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import cast

KEPT = 4  # answers that are kept
HEADS = b"\r\n\r\n"
MOST_CONNECTIONS = 1024  # of an open loop
LAST_SECONDS = 120.0  # after a closed turn's end, for its last answers
GRACE_SECONDS = 5.0  # after an open loop's end, for what is still under way

Request = tuple[int, int, bytes]  # its number, how many texts, what is written


class Failed(Exception):
    """A server answered what it should not, or not at all."""


@dataclass
class Answers:
    """What came back."""

    seconds: float = 0.0  # to the last answer
    sentences: int = 0
    rate: float = 0.0  # sentences a second of the window
    milliseconds: list[float] = field(default_factory=list)  # of what was answered in it or later
    kept: dict[int, bytes] = field(default_factory=dict)  # bodies by their requests' numbers
    missing: int = 0  # of an open loop, not answered by its end
    generator_seconds: float = 0.0  # of CPU, the load's own


class Connection(asyncio.Protocol):
    """One connection with at most one request under way."""

    def __init__(self, answered: Callable[["Connection", bytes], None]) -> None:
        self.answered, self.buffer, self.end = answered, bytearray(), 0
        self.request: Request | None = None
        self.due = 0.0
        self.lost = asyncio.get_running_loop().create_future()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Note that it may send."""
        self.transport = cast(asyncio.Transport, transport)  # uvloop's is none by inheritance

    def send(self, request: Request, due: float) -> None:
        """Write one request."""
        self.request, self.due, self.end = request, due, 0
        self.buffer.clear()
        self.transport.write(request[2])

    def data_received(self, data: bytes) -> None:
        """Collect an answer until its announced length is there."""
        self.buffer += data
        if not self.end and (head := self.buffer.find(HEADS)) >= 0:
            self.end = head + len(HEADS) + announced_length(bytes(self.buffer[:head]))
        if self.end and len(self.buffer) >= self.end:
            self.answered(self, bytes(self.buffer[self.buffer.find(HEADS) + len(HEADS) :]))

    def connection_lost(self, error: Exception | None) -> None:
        """Note the loss, which nothing else would notice."""
        if not self.lost.done():
            self.lost.set_result(None)


def announced_length(head: bytes) -> int:
    """Return how long an answer's body is; it has to be one."""
    first, *lines = head.decode("latin-1").split("\r\n")
    headers = dict(line.lower().split(": ", 1) for line in lines)
    if first.split()[1] != "200" or "content-length" not in headers:
        raise Failed(first)
    return int(headers["content-length"])


class Load:
    """One turn of one server."""

    def __init__(self, port: int, requests: Iterator[Request]) -> None:
        self.port, self.requests, self.answers = port, requests, Answers()
        self.idle: list[Connection] = []
        self.all: list[Connection] = []
        self.begins = self.until = 0.0  # the window
        self.spans: list[tuple[float, float, int]] = []  # of requests: sent, answered, texts
        self.finished = asyncio.get_running_loop().create_future()

    async def connect(self) -> Connection:
        """Open one more connection."""
        loop = asyncio.get_running_loop()
        loop.set_exception_handler(lambda _, context: self.fail(context.get("exception")))
        _, connection = await loop.create_connection(
            lambda: Connection(self.note), "127.0.0.1", self.port
        )
        connection.lost.add_done_callback(lambda _: self.dropped(connection))
        self.all.append(connection)
        return connection

    def fail(self, error: BaseException | None) -> None:
        """Report a failure to the waiting task."""
        if not self.finished.done():
            self.finished.set_exception(error or Failed("a connection was lost"))

    def dropped(self, connection: Connection) -> None:
        """Forget an idle connection; fail for one with a request under way."""
        if connection in self.idle:
            self.idle.remove(connection)
        elif connection.request:
            self.fail(Failed("a connection was lost"))

    def note(self, connection: Connection, body: bytes) -> None:
        """Count one answer; then the connection's next request, or its rest."""
        assert connection.request
        now, (number, texts, _) = time.perf_counter(), connection.request
        answers, connection.request = self.answers, None
        if now >= self.begins:
            answers.milliseconds.append((now - connection.due) * 1000)
        self.spans.append((connection.due, now, texts))
        answers.sentences += texts
        answers.seconds = now
        if number < KEPT:
            answers.kept[number] = body
        self.free(connection, now)

    def free(self, connection: Connection, now: float) -> None:
        """Choose what a connection does after an answer."""
        raise NotImplementedError

    async def run(self, seconds: float, lead: float = 0.0) -> Answers:
        """Ask for so long; the answers with their times.

        Args:
            lead: seconds before that, after which the window begins.

        Raises:
            Failed: an answer was none, or a connection was lost.
        """
        cpu = time.process_time()
        try:
            begun = await self.ask(seconds, lead)
        finally:
            for connection in self.all:
                connection.request = None
                connection.transport.abort()
        self.answers.seconds -= begun
        self.answers.rate = within(self.spans, self.begins, self.until)
        self.answers.generator_seconds = time.process_time() - cpu
        return self.answers

    async def ask(self, seconds: float, lead: float) -> float:
        """Send and wait; when the first request left."""
        raise NotImplementedError


class Closed(Load):
    """So many connections, each with one request under way."""

    def __init__(self, port: int, requests: Iterator[Request], connections: int) -> None:
        super().__init__(port, requests)
        self.busy = self.connections = connections

    def free(self, connection: Connection, now: float) -> None:
        """Send the next, until the time is over."""
        if now < self.until:
            connection.send(next(self.requests), now)
            return
        self.busy -= 1
        if not self.busy and not self.finished.done():
            self.finished.set_result(None)

    async def ask(self, seconds: float, lead: float) -> float:
        """Send for so long; the last answers are waited for."""
        connections = [await self.connect() for _ in range(self.connections)]
        begun = time.perf_counter()
        self.begins = begun + lead
        self.until = self.begins + seconds
        for connection in connections:
            connection.send(next(self.requests), time.perf_counter())
        await asyncio.wait_for(self.finished, lead + seconds + LAST_SECONDS)
        return begun


class Open(Load):
    """Requests at random moments, on average so many a second."""

    def __init__(self, port: int, requests: Iterator[Request], rate: float, seed: str) -> None:
        super().__init__(port, requests)
        self.rate, self.chance = rate, random.Random(seed)

    def free(self, connection: Connection, now: float) -> None:
        """Rest until the next is due."""
        self.idle.append(connection)

    async def send(self, due: float) -> None:
        """Send one request, over a connection that rests or a new one."""
        if not self.idle and len(self.all) >= MOST_CONNECTIONS:
            self.answers.missing += 1
            return
        connection = self.idle.pop() if self.idle else await self.connect()
        connection.send(next(self.requests), due)

    async def ask(self, seconds: float, lead: float) -> float:
        """Send for so long; what is under way at the end is waited for, a little."""
        begun = due = time.perf_counter()
        self.begins = begun + lead
        self.until = self.begins + seconds
        sending = set()
        while (due := due + self.chance.expovariate(self.rate)) < self.until:
            await asyncio.sleep(max(0.0, due - time.perf_counter()))
            sending.add(asyncio.create_task(self.send(due)))
        await asyncio.gather(*sending)
        while self.under_way() and time.perf_counter() < self.until + GRACE_SECONDS:
            if self.finished.done():
                self.finished.result()
            await asyncio.sleep(0.01)
        self.answers.missing += self.under_way()
        return begun

    def under_way(self) -> int:
        """Return requests without their answers."""
        return sum(connection.request is not None for connection in self.all)


def within(spans: list[tuple[float, float, int]], begins: float, ends: float) -> float:
    """Return sentences a second between two moments: of a request the part that lies between them.

    Args:
        spans: of requests: when they left and were answered, and how many texts they held.
    """
    parts = (
        texts * max(0.0, min(end, ends) - max(begun, begins)) / (end - begun)
        for begun, end, texts in spans
    )
    return sum(parts) / (ends - begins)


def write_request(path: str, body: bytes) -> bytes:
    """Return a request as it goes over the wire."""
    head = f"POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body


def prepare_requests(make: Callable[[], tuple[int, bytes]], ahead: int) -> Iterator[Request]:
    """Yield requests with their numbers; the first ones made before the clock starts."""
    first = [make() for _ in range(ahead)]
    rest = (make() for _ in itertools.count())
    return ((number, *each) for number, each in enumerate(itertools.chain(first, rest)))
