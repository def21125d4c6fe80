"""uvicorn's connections: headers and body leave in one write, and a slow reader is cut off.

uvicorn writes them separately. A replica killed between the two leaves its client half an answer,
which HAProxy cannot ask another replica for; before an answer's first byte it can.

uvicorn waits as long as a reader likes, and what the reader has not taken stays in memory. Here a
reader that is behind takes READER_BYTES a second, or its connection ends.

A client may leave. uvicorn tells only a task that waits for that; here the request's own task is
cancelled.

HAProxy sends the requests of many clients on one connection. uvicorn does not read the body of a
request that asks for another protocol, takes what it left unread for the next request, and the
answer to that reaches another client. Here such a request is the last of its connection.

uvicorn keeps as long a head as anyone sends, and waits for its end for ever. HAProxy sends whole
heads that fit its buffer, but on a cluster others may reach a replica's port too: here a head has
HEAD_BYTES and HEAD_SECONDS, before anything is known of its key.
"""

import asyncio
from collections.abc import Callable, Sized
from contextvars import ContextVar
from typing import Any

from uvicorn import config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.memory import PROCESS
from service.settings import KIB

READER_BYTES = 64 * KIB  # a second
PATIENCE_SECONDS = 10.0  # a reader may be late by this much: networks pause
HEAD_BYTES = 128 * KIB  # of a request that has not ended its headers: HAProxy's whole buffer
HEAD_SECONDS = 10.0  # as HAProxy gives its own clients


class JoinedWrites:
    """A transport that holds a write back until the next one, or until the loop's turn ends."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._first = transport, b""
        self._loop = asyncio.get_running_loop()
        self.is_closing = transport.is_closing  # called for each answer
        self._alone: asyncio.Handle | None = None  # sends what is held if nothing follows

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send with what is held, or hold: the next write follows at once or not at all."""
        if self._first:
            self._flush(data)
        elif data:
            self._first = data
            self._alone = self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held, then close."""
        self._flush()
        self._transport.close()

    def _flush(self, data: bytes = b"") -> None:
        first, self._first = self._first, b""
        if self._alone:
            self._alone.cancel()
        if first and not self.is_closing():
            # asyncio's writelines spins on an empty part from 3.12 on, and in 3.13.0 never pauses
            self._transport.write(first + data)


class AnswerReader:
    """The reader of a connection's answers, and how late it may still be."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._patience, self._since, self._behind = PATIENCE_SECONDS, 0.0, 0
        self._end: asyncio.TimerHandle | None = None

    def falls_behind(self) -> None:
        """Start its clock, since bytes wait for it."""
        self._since, self._behind = self._loop.time(), self._transport.get_write_buffer_size()
        seconds = self._patience + self._behind / READER_BYTES
        self._end = self._loop.call_later(seconds, self._cut_off)

    def catches_up(self) -> None:
        """Stop its clock, since few bytes wait or the connection has ended."""
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
    """The client of a connection.

    Args:
        listen: resumes listening for its end, which uvicorn stops where a body is large.
    """

    def __init__(self, listen: Callable[[], None] = lambda: None) -> None:
        self._listen, self.left = listen, False
        self._tasks = set[asyncio.Task[Any]]()  # two where one ends as the next begins

    def bind(self, task: asyncio.Task[Any]) -> bool:
        """Bind a task to this client until it leaves; False if it has left.

        That it leaves is seen late where a large body is unread.
        """
        if not self.left:
            self._tasks.add(task)
        return not self.left

    def bind_and_listen(self, task: asyncio.Task[Any]) -> bool:
        """Bind a task whose body is read, and listen; False if its client has left."""
        if self.bind(task):
            self._listen()
        return not self.left

    def end(self, task: asyncio.Task[Any]) -> None:
        """Release a task from this client."""
        self._tasks.discard(task)

    def leave(self) -> None:
        """End all work done for it."""
        self.left = True
        for task in self._tasks:
            task.cancel()


CLIENT = ContextVar[Client]("client")  # the client whose request a task serves
NO_CLIENT = Client()  # the client of a connection that is not ours; it never leaves


class Flow(FlowControl):
    """uvicorn's flow control, except that it stops reading while requests wait behind another.

    Args:
        pipeline: the requests that wait.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """Read on, unless requests wait behind the one being answered."""
        if self.read_paused and not self._pipeline:
            super().resume_reading()


class Protocol(HttpToolsProtocol):
    """uvicorn's own HTTP on a transport that joins writes, for readers that are watched."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Take requests until one is the last; a WebSocket is not a request."""
        super().__init__(*args, **kwargs)
        self.ws_protocol_class, self._last = None, False
        self._head_bytes = 0  # that came without the end of the head that they belong to
        self._head_due: asyncio.TimerHandle | None = None  # while a head is awaited or under way
        self._in_body = False  # which may still come when its request is refused already

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve a connection."""
        loop = asyncio.get_running_loop()
        self._reader = AnswerReader(transport, loop)  # type: ignore[arg-type]  # a connection's is one
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]  # a transport in all but name
        self.flow = Flow(self.transport, self.pipeline)
        self._client = Client(self.flow.resume_reading)
        self._await_head()

    def data_received(self, data: bytes) -> None:
        """Read; the task of each request knows its client."""
        if self._last:
            return
        CLIENT.set(self._client)
        if self._head_due is None and self._idle() and not self._in_body:
            self._await_head()  # uvicorn waits without a limit for the end of what begins here
        due = self._head_due
        super().data_received(data)
        if due is not None and due is self._head_due:  # the same head, not one behind its request
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The headers of a request may have {HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Begin a head, perhaps behind a request that is not answered yet."""
        super().on_message_begin()
        if self._head_due is None:
            self._await_head()

    def on_headers_complete(self) -> None:
        """Begin a request; httptools reads no body if it asks for another protocol."""
        self._end_head()
        self._in_body = True
        super().on_headers_complete()
        self.headers = []  # takes the trailers, which thus stay out of the request's headers
        if self.parser.should_upgrade():
            self._end_with_it()

    def on_message_complete(self) -> None:
        """End a request; what comes next is a head."""
        super().on_message_complete()
        self._in_body = False

    def send_400_response(self, msg: str) -> None:
        """Refuse what is not a request, but never in place of an answer that is due."""
        if self._idle() or (self.cycle.more_body and not self.pipeline):  # or its body is at fault
            super().send_400_response(msg)
        else:
            self._end_with_it()

    def _idle(self) -> bool:
        """Tell whether no answer is due."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _await_head(self) -> None:
        self._head_bytes = 0
        self._head_due = self.loop.call_later(HEAD_SECONDS, self._late)

    def _end_head(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None

    def _late(self) -> None:
        """Close where a head has not ended in time; behind an answer that is due, wait for that."""
        if self._idle():
            self._head_due = None
            self.transport.close()
        else:
            self._head_due = self.loop.call_later(HEAD_SECONDS, self._late)

    def _end_with_it(self) -> None:
        """Close the connection after the latest request, and read no more."""
        self.cycle.keep_alive, self._last = False, True

    def pause_writing(self) -> None:
        """Pause until the reader catches up."""
        super().pause_writing()
        self._reader.falls_behind()

    def resume_writing(self) -> None:
        """Go on writing, and stop the clock of a slow reader."""
        super().resume_writing()
        self._reader.catches_up()

    def connection_lost(self, exc: Exception | None) -> None:
        """Forget a connection."""
        self._end_head()
        self._reader.catches_up()
        super().connection_lost(exc)
        self._client.leave()


def install() -> None:
    """Make every server that uvicorn starts in this process from now on use Protocol."""
    config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{Protocol.__name__}"
