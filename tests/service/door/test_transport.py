"""A reader that takes no answer is cut off; a slow one holds up no other."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, suppress
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
import uvloop
from starlette.responses import Response
from starlette.types import ASGIApp, Receive, Scope, Send

from service.door import transport
from service.door.transport import (
    CLIENT,
    HEAD_BYTES,
    PATIENCE_SECONDS,
    READER_BYTES,
    AnswerReader,
    Protocol,
)
from service.tables.memory import PROCESS
from tests.metric_samples import samples

SIZE = 1000  # of queries and keys: some 20 MB of numbers, more than sockets hold
LARGE = {
    "query": [[1]] * SIZE,
    "key": [[number / SIZE] for number in range(SIZE)],
    "value": [[1]] * SIZE,
}


@dataclass
class Pipe:
    """A connection and its loop, by hand."""

    size: int = 0
    now: float = 0.0
    ends: list[float] = field(default_factory=list)  # when each time-out would come
    aborted: bool = False

    def time(self) -> float:
        return self.now

    def get_write_buffer_size(self) -> int:
        return self.size

    def call_later(self, seconds: float, function: Callable[[], None]) -> "Pipe":
        self.ends.append(seconds)
        self.end = function
        return self

    def cancel(self) -> None: ...

    def abort(self) -> None:
        self.aborted = True


def behind(reader: AnswerReader, pipe: Pipe, seconds: float, taken: int) -> None:
    """Let a reader fall behind by 3 seconds' worth, and take so much of it in so long."""
    pipe.size = 3 * READER_BYTES
    reader.falls_behind()
    pipe.now, pipe.size = pipe.now + seconds, pipe.size - taken
    reader.catches_up()


def test_a_reader_may_be_late_by_so_much_in_all() -> None:
    """What it takes at the stated rate costs it nothing, what it is late adds up."""
    pipe = Pipe()
    reader = AnswerReader(pipe, pipe)  # type: ignore[arg-type]

    behind(reader, pipe, seconds=2, taken=2 * READER_BYTES)
    behind(reader, pipe, seconds=6, taken=2 * READER_BYTES)
    behind(reader, pipe, seconds=1, taken=2 * READER_BYTES)
    behind(reader, pipe, seconds=0, taken=3 * READER_BYTES)
    behind(reader, pipe, seconds=0, taken=3 * READER_BYTES)
    behind(reader, pipe, seconds=0, taken=3 * READER_BYTES)

    late = [0, 0, 4, 3, 0, 0]
    assert pipe.ends == [PATIENCE_SECONDS + 3 - seconds for seconds in late]


def test_a_reader_who_is_too_late_is_cut_off_and_counted() -> None:
    """At once: what it has not taken is dropped."""
    pipe, before = Pipe(size=READER_BYTES), PROCESS.cut_off
    reader = AnswerReader(pipe, pipe)  # type: ignore[arg-type]

    reader.falls_behind()
    pipe.end()
    reader.catches_up()

    assert pipe.aborted and PROCESS.cut_off == before + 1


@pytest_asyncio.fixture
async def url(
    app: ASGIApp, listen: Callable[..., AbstractAsyncContextManager[str]]
) -> AsyncIterator[str]:
    """Where the replica answers on connections like those of a replica in its place."""
    async with listen(app, http=Protocol) as url:
        yield url


def never_read(url: str) -> socket.socket:
    """Ask for a large answer and take none of it."""
    body = json.dumps(LARGE).encode()
    head = "POST /v1/attend HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    client = socket.socket()
    client.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
    client.connect(("127.0.0.1", urlsplit(url).port))
    client.sendall(f"{head}content-length: {len(body)}\r\n\r\n".encode() + body)
    return client


async def until(true: Callable[[], bool]) -> None:
    """Wait for what the service will do by itself."""
    async with asyncio.timeout(60):
        while not true():
            await asyncio.sleep(0.01)


async def test_an_answer_that_nobody_takes_is_held_until_its_reader_is_cut_off(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others get theirs meanwhile, large ones too; afterwards nothing is held."""
    monkeypatch.setattr(transport, "PATIENCE_SECONDS", 2.0)
    monkeypatch.setattr(transport, "READER_BYTES", 1 << 30)

    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        before = await cut_off(client)
        with never_read(url):
            await until(lambda: PROCESS.bytes["answers"] > SIZE)
            other = await client.post("/v1/attend", json=LARGE)
            held, count = dict(PROCESS.bytes), PROCESS.cut_off
            await until(lambda: PROCESS.cut_off > count)
            await until(lambda: not any(PROCESS.bytes.values()))
        after = await cut_off(client)

    assert other.status_code == 200 and len(other.json()["probabilities"][0]) == SIZE
    assert held["answers"] > SIZE**2 and held["arrays"] == 0
    assert after == before + 1


async def cut_off(client: httpx.AsyncClient) -> float:
    """How many readers the metrics count."""
    page = samples((await client.get("/metrics")).text)
    return sum(value for name, _, value in page if name == "headlight_readers_cut_off_total")


async def test_a_large_answer_leaves_piece_by_piece_and_whole(url: str) -> None:
    """With its length said before, to a reader who takes it."""
    async with (
        httpx.AsyncClient(base_url=url, timeout=60) as client,
        client.stream("POST", "/v1/attend", json=LARGE) as answer,
    ):
        pieces = [piece async for piece in answer.aiter_raw()]

    assert sum(map(len, pieces)) == int(answer.headers["content-length"]) > SIZE**2
    assert len(json.loads(b"".join(pieces))["concat"]) == SIZE
    assert not any(PROCESS.bytes.values())


@pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_on_either_loop_a_reader_gets_all_or_is_cut_off(
    listen: Callable[..., AbstractAsyncContextManager[str]],
    monkeypatch: pytest.MonkeyPatch,
    loop: Callable[[], asyncio.AbstractEventLoop],
) -> None:
    """asyncio's own too, whose writelines differs from one Python to the next."""
    piece, pieces = b"a" * (1 << 20), 64  # more than sockets hold

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        length = (b"content-length", b"%d" % (pieces * len(piece)))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        for left in reversed(range(pieces)):
            await send({"type": "http.response.body", "body": piece, "more_body": left > 0})

    async def ask() -> tuple[int, int]:
        async with listen(app, http=Protocol) as url, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"))
            answer = await reader.read()
            writer.close()
            monkeypatch.setattr(transport, "PATIENCE_SECONDS", 0.0)
            monkeypatch.setattr(transport, "READER_BYTES", 1 << 30)
            count = PROCESS.cut_off
            with never_read(url):
                await until(lambda: PROCESS.cut_off > count)
        return answer.count(b"a" * 1024), PROCESS.cut_off - count

    with asyncio.Runner(loop_factory=loop) as runner:
        assert runner.run(ask()) == (pieces * 1024, 1)


SWITCH = b"POST /first HTTP/1.1\r\nHost: h\r\nConnection: upgrade\r\nUpgrade: foo\r\n"
SECOND = b"GET /second HTTP/1.1\r\nHost: h\r\n\r\n"
CHUNKED = b"POST /first HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n"
PLAIN = SECOND.replace(b"second", b"first")


@dataclass
class Answering:
    """An application that says what it was asked for, once it may."""

    may: asyncio.Event = field(default_factory=asyncio.Event)
    asked: list[str] = field(default_factory=list)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.asked.append(scope["path"])
        await self.may.wait()
        body = scope["path"].encode()
        length = (b"content-length", b"%d" % len(body))
        await send({"type": "http.response.start", "status": 200, "headers": [length]})
        await send({"type": "http.response.body", "body": body})


@pytest.mark.parametrize(
    ("first", "then"),
    [
        (SWITCH + b"Content-Length: %d\r\n\r\n" % len(SECOND), SECOND),
        (SWITCH + b"Transfer-Encoding: chunked\r\n\r\n", SECOND),
        (PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), SECOND),
        (PLAIN.replace(b"1.1", b"1.0"), SECOND),
        (PLAIN, b"no request\r\n\r\n" + SECOND),
    ],
    ids=["a length", "chunks", "close", "HTTP/1.0", "noise"],
)
async def test_what_follows_the_last_request_of_a_connection_is_not_read(
    listen: Callable[..., AbstractAsyncContextManager[str]], first: bytes, then: bytes
) -> None:
    """Its answer comes, and is the only one; the connection ends."""
    app, read = Answering(), bytearray()

    class Watched(Protocol):
        def data_received(self, data: bytes) -> None:
            super().data_received(data)
            read.extend(data)

    async with listen(app, http=Watched) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        for piece in (first, then):
            writer.write(piece)
            await until(lambda: read.endswith(piece))  # noqa: B023  # awaited here
        app.may.set()
        answer = await reader.read()
        writer.close()

    assert len(app.asked) == 1
    assert answer.startswith(b"HTTP/1.1 200") and answer.count(b"HTTP/1.1") == 1


CLOSING = PLAIN.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n")
POSTED = CLOSING.replace(b"GET", b"POST").replace(b"\r\n\r\n", b"\r\nContent-Length: 2\r\n\r\n")


@pytest.mark.parametrize(
    ("sent", "answered"),
    [
        (CLOSING, [b"/first"]),
        (POSTED + b"hi", [b"/first"]),
        (SECOND + CLOSING, [b"/second", b"/first"]),
        (PLAIN.replace(b"1.1", b"1.0"), [b"/first"]),
        (PLAIN, []),
        (POSTED + b"h", []),
    ],
    ids=["close", "a body", "the last of two", "HTTP/1.0", "keep-alive", "half a body"],
)
@pytest.mark.parametrize(
    "loop", [asyncio.new_event_loop, uvloop.new_event_loop], ids=["asyncio", "uvloop"]
)
def test_a_client_that_ends_its_side_after_its_last_request_is_answered(
    listen: Callable[..., AbstractAsyncContextManager[str]],
    loop: Callable[[], asyncio.AbstractEventLoop],
    sent: bytes,
    answered: list[bytes],
) -> None:
    """Any other has left, and its task is cancelled."""
    app, ends = Answering(), list[int]()

    class Watched(Protocol):
        def eof_received(self) -> bool:
            ends.append(1)
            return super().eof_received()

    async def ask() -> bytes:
        async with listen(app, http=Watched) as url, asyncio.timeout(60):
            reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
            writer.write(sent)
            await until(lambda: bool(app.asked))
            writer.write_eof()
            if sent.count(b"HTTP") == 1:  # two are read no further while the first is due
                await until(lambda: bool(ends))
            app.may.set()
            answer = await reader.read()
            writer.close()
            return answer

    with asyncio.Runner(loop_factory=loop) as runner:
        answer = runner.run(ask())

    assert answer.count(b"HTTP/1.1 200") == len(answered)
    assert all(path in answer for path in answered)


async def test_a_client_that_asks_before_it_is_answered_is_read_no_further(
    listen: Callable[..., AbstractAsyncContextManager[str]],
) -> None:
    """Until the last of those that it sent at once is under way; then its end is heard."""
    app, protocols, reads = Answering(), list[Protocol](), list[bool]()

    class Watched(Protocol):
        def connection_made(self, transport: asyncio.BaseTransport) -> None:
            super().connection_made(transport)
            protocols.append(self)

    async def waiting(scope: Scope, receive: Receive, send: Send) -> None:
        client, task = CLIENT.get(), asyncio.current_task()
        assert task and client.bind_and_listen(task)
        reads.append(protocols[0].transport.is_reading())
        await app(scope, receive, send)
        client.unbind(task)

    async with listen(waiting, http=Watched) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(PLAIN * 3 + SECOND)
        await until(lambda: bool(app.asked))
        app.may.set()
        await reader.readuntil(b"/second")
        writer.close()

    assert reads == [False, False, False, True]


async def test_a_body_that_is_broken_is_refused_at_once(
    listen: Callable[..., AbstractAsyncContextManager[str]],
) -> None:
    """Its rest will not come, so nothing else is answered."""
    app = Answering()
    async with listen(app, http=Protocol) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(CHUNKED)
        await until(lambda: bool(app.asked))
        writer.write(b"no size\r\n")
        answer = await reader.read()
        writer.close()
        app.may.set()

    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"HTTP/1.1") == 1


async def test_trailers_are_no_headers(
    listen: Callable[..., AbstractAsyncContextManager[str]],
) -> None:
    """Also where they came in the same read as the head."""
    seen = list[bytes]()

    async def app(scope: Scope, receive: Receive, send: Send) -> None:
        seen.extend(name for name, _ in scope["headers"])
        await Response("a")(scope, receive, send)

    async with listen(app, http=Protocol) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(CHUNKED + b"0\r\nAuthorization: Bearer x\r\n\r\n")
        await reader.readuntil(b"\r\n\r\n")
        writer.close()

    assert seen == [b"host", b"transfer-encoding"]


HALF = b"GET / HTTP/1.1\r\nHost: h\r\nX-Half: "


@pytest.mark.parametrize(
    "endless", [HALF, HALF[:-8], HALF[:5], b""], ids=["a header", "headers", "an address", "lines"]
)
async def test_a_head_has_so_many_bytes(
    listen: Callable[..., AbstractAsyncContextManager[str]], endless: bytes
) -> None:
    """Whatever it is made of; no more of it is read, and no key is asked for."""
    app, received = Answering(), list[int]()

    class Watched(Protocol):
        def data_received(self, data: bytes) -> None:
            received.append(len(data))
            super().data_received(data)

    line = {HALF[:-8]: b"X-One: 1\r\n", b"": b"\r\n"}.get(endless, b"a" * 64)
    async with listen(app, http=Watched) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(endless)
        with suppress(ConnectionError):
            for _ in range(8 * HEAD_BYTES // (1024 * len(line))):
                writer.write(line * 1024)
                await writer.drain()
        with suppress(ConnectionError):
            await reader.read()
        writer.close()

    assert app.asked == []
    assert sum(received) <= HEAD_BYTES + max(received)


async def test_a_head_that_fits_haproxys_buffer_is_read(
    listen: Callable[..., AbstractAsyncContextManager[str]],
) -> None:
    """Also behind another request, whose body came with its beginning."""
    app, body = Answering(), b"a" * HEAD_BYTES
    app.may.set()
    first = b"POST /first HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
    second = SECOND.replace(b"\r\n\r\n", b"\r\nX-Long: " + b"a" * (100 * 1024))
    async with listen(app, http=Protocol) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(first + body + second)
        await reader.readuntil(b"/first")
        writer.write(b"\r\n\r\n")
        await reader.readuntil(b"/second")
        writer.close()

    assert app.asked == ["/first", "/second"]


async def test_the_rest_of_a_body_that_is_refused_unread_is_no_head(
    listen: Callable[..., AbstractAsyncContextManager[str]],
) -> None:
    """However much of it comes after the answer: HAProxy sends the next request behind it."""
    app, body = Answering(), b"a" * (3 * HEAD_BYTES)
    app.may.set()
    first = b"POST /first HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n" % len(body)
    async with listen(app, http=Protocol) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(first)
        await reader.readuntil(b"/first")
        writer.write(body + SECOND)
        await reader.readuntil(b"/second")
        writer.close()

    assert app.asked == ["/first", "/second"]


@pytest.mark.parametrize("half", [b"", b"\r\n", HALF, SECOND + HALF, SECOND + b"\r\n"])
async def test_a_head_that_does_not_end_in_time_ends_its_connection(
    listen: Callable[..., AbstractAsyncContextManager[str]],
    monkeypatch: pytest.MonkeyPatch,
    half: bytes,
) -> None:
    """From the first byte, or from none; what was asked before is answered, however long it takes.

    A connection that is idle after its answer is uvicorn's to close.
    """
    monkeypatch.setattr(transport, "HEAD_SECONDS", 0.1)
    app = Answering()
    async with listen(app, http=Protocol) as url, asyncio.timeout(60):
        reader, writer = await asyncio.open_connection("127.0.0.1", urlsplit(url).port)
        writer.write(half)
        if half.startswith(SECOND):
            await until(lambda: bool(app.asked))
            await asyncio.sleep(0.3)  # of the answer's own time, in which a head would be late
            app.may.set()
            await reader.readuntil(b"/second")
            writer.write(b"\r\n")
        left = await reader.read()
        writer.close()

    assert left == b""
