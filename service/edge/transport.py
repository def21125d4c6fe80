"""uvicorn's connections: head and body leave in one write, and a slow reader is cut off.

uvicorn writes them apart. A replica that is killed between the two leaves its client half an
answer, which HAProxy cannot ask another replica for; before the head's first byte it can.

uvicorn waits for as long as a reader likes, and what it has not taken stays in memory. Here it
takes READER_BYTES a second while it is behind, or its connection ends.

Whoever asked may leave. uvicorn says so to whoever waits for it in a task of its own; here the
request's task is cancelled.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

from uvicorn import config
from uvicorn.protocols.http.auto import AutoHTTPProtocol

from service.memory import PROCESS
from service.settings import KIB

READER_BYTES = 64 * KIB  # a second
PATIENCE_SECONDS = 10.0  # by which a reader may be late: networks pause


class JoinedWrites:
    """A transport that holds a write back until the next, or for the rest of the loop's turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._first = transport, b""
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send with what is held, or hold: what comes next comes at once, or nothing does."""
        if self._first:
            self._flush(data)
        elif data:
            self._first = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held, then close."""
        self._flush()
        self._transport.close()

    def _flush(self, data: bytes = b"") -> None:
        first, self._first = self._first, b""
        if first and not self._transport.is_closing():
            self._transport.writelines((first, data))


class Reader:
    """Whoever takes a connection's answers, and how late it may still be."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._patience, self._since, self._behind = PATIENCE_SECONDS, 0.0, 0
        self._end: asyncio.TimerHandle | None = None

    def falls_behind(self) -> None:
        """Bytes wait for it."""
        self._since, self._behind = self._loop.time(), self._transport.get_write_buffer_size()
        seconds = self._patience + self._behind / READER_BYTES
        self._end = self._loop.call_later(seconds, self._cut_off)

    def catches_up(self) -> None:
        """Few bytes wait, or the connection has ended."""
        if self._end is None:
            return
        self._end.cancel()
        self._end = None
        taken = self._behind - self._transport.get_write_buffer_size()
        late = self._loop.time() - self._since - taken / READER_BYTES
        self._patience = min(PATIENCE_SECONDS, self._patience - late)

    def _cut_off(self) -> None:
        PROCESS.cut_off += 1
        self._end = None
        self._transport.abort()


class Client:
    """Whoever asks on a connection."""

    def __init__(self) -> None:
        self._left = False
        self._tasks = set[asyncio.Task[Any]]()  # two where one ends as the next begins

    @contextmanager
    def waiting(self) -> Iterator[None]:
        """Do something for it in this task, until it has left."""
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]  # a request is
        self._tasks.add(task)
        if self._left:
            task.cancel()
        try:
            yield
        except asyncio.CancelledError:
            if not self._left:
                raise
            task.uncancel()
        finally:
            self._tasks.discard(task)

    def leave(self) -> None:
        """End what is done for it."""
        self._left = True
        for task in self._tasks:
            task.cancel()


CLIENT = ContextVar[Client]("client")  # whose request a task is
NOBODY = Client()  # of a connection that is not ours; it never leaves


class Protocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # which one, uvicorn decides
    """uvicorn's own HTTP on a transport that joins, for readers who are watched."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve a connection."""
        loop = asyncio.get_running_loop()
        self._reader = Reader(transport, loop)  # type: ignore[arg-type]  # of a connection it is one
        self._client = Client()
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]  # a transport but in name

    def data_received(self, data: bytes) -> None:
        """Read; the task of each request knows whose it is."""
        CLIENT.set(self._client)
        super().data_received(data)

    def pause_writing(self) -> None:
        """Wait for the reader."""
        super().pause_writing()
        self._reader.falls_behind()

    def resume_writing(self) -> None:
        """Go on."""
        super().resume_writing()
        self._reader.catches_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._reader.catches_up()
        super().connection_lost(exc)
        self._client.leave()


def install() -> None:
    """Have each server that uvicorn starts from now on in this process answer so."""
    config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{Protocol.__name__}"
