"""uvicorn's connections, hardened: headers and body leave in one write, slow readers are cut off.

uvicorn writes them separately. A replica killed between the two leaves its client half an answer,
which HAProxy cannot ask another replica for; before an answer's first byte it can.

uvicorn waits as long as a reader likes, and what the reader has not taken stays in memory. Here a
reader that is behind takes READER_BYTES a second, or its connection ends.

A client may disconnect. uvicorn tells only a task that awaits `receive`; here the request's own
task is cancelled. One that ends its side of the connection after its last request, `Connection:
close`, is answered.

HAProxy sends the requests of many clients on one connection. uvicorn does not read the body of a
request that asks for another protocol, takes what it left unread for the next request, and the
answer to that reaches another client. Here such a request is the last of its connection.

uvicorn accepts a head of any length, and waits for its end for ever. HAProxy sends whole heads that
fit its buffer, but on a cluster others may reach a replica's port too: here a head has HEAD_BYTES
and HEAD_SECONDS, before its key is checked.
"""

import asyncio
from collections.abc import Callable, Sized
from contextvars import ContextVar
from typing import Any

from uvicorn import config
from uvicorn.protocols.http.flow_control import FlowControl
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from service.tables.memory import PROCESS
from service.tables.settings import KIB

READER_BYTES = 64 * KIB  # per second: what a reader of answers must take at least
PATIENCE_SECONDS = 10.0  # a reader may be late by this much: networks pause
HEAD_BYTES = 128 * KIB  # received of a request before its headers end: HAProxy's whole buffer
HEAD_SECONDS = 10.0  # for the headers to arrive: as HAProxy gives its own clients


class JoinedWrites:
    """A transport that holds a write back until the next one, or until the loop's turn ends."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._held = transport, b""  # _held: written, and not sent yet
        self._loop = asyncio.get_running_loop()
        self.is_closing = transport.is_closing  # bound once: it is called for each answer
        self._flush_handle: asyncio.Handle | None = None  # flushes if no other write follows

    def __getattr__(self, name: str) -> Any:
        """Return any other attribute of the transport itself."""
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Hold data until the end of the loop's turn, or send it together with what is held."""
        if self._held:
            self._flush(data)
        elif data:
            self._held = data
            self._flush_handle = self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held, then close."""
        self._flush()
        self._transport.close()

    def _flush(self, data: bytes = b"") -> None:
        """Send what is held, then data, in one write."""
        held, self._held = self._held, b""
        if self._flush_handle:
            self._flush_handle.cancel()
        if held and not self.is_closing():
            # asyncio's writelines spins on an empty part from 3.12 on, and in 3.13.0 never pauses
            self._transport.write(held + data)


class AnswerReader:
    """Watches how fast a connection's client reads its answers, and cuts off one that is slow."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport, self._loop = transport, loop
        self._patience = PATIENCE_SECONDS  # seconds by which it may still be late
        self._behind_since, self._unread_bytes = 0.0, 0  # when it last fell behind, and by how much
        self._cut_off_timer: asyncio.TimerHandle | None = None  # while it is behind

    def falls_behind(self) -> None:
        """Start the timer that cuts the reader off, since bytes wait for it."""
        self._behind_since = self._loop.time()
        self._unread_bytes = self._transport.get_write_buffer_size()
        seconds = self._patience + self._unread_bytes / READER_BYTES
        self._cut_off_timer = self._loop.call_later(seconds, self._cut_off)

    def catches_up(self) -> None:
        """Stop the timer, since few bytes wait or the connection has ended."""
        if self._cut_off_timer is None:
            return
        self._cut_off_timer.cancel()
        self._cut_off_timer = None
        taken = self._unread_bytes - self._transport.get_write_buffer_size()
        late = self._loop.time() - self._behind_since - taken / READER_BYTES
        self._patience = min(PATIENCE_SECONDS, self._patience - late)

    def _cut_off(self) -> None:
        """Abort the connection and count it."""
        PROCESS.cut_off += 1
        self._cut_off_timer = None
        self._transport.abort()


class Client:
    """The client of a connection, whose tasks are cancelled when it disconnects.

    Args:
        listen: resumes reading, which shows a disconnection; uvicorn pauses it for a large body.
    """

    def __init__(self, listen: Callable[[], None] = lambda: None) -> None:
        self._listen, self.left = listen, False  # left: whether it has disconnected
        self._tasks = set[asyncio.Task[Any]]()  # two where one ends as the next begins

    def bind(self, task: asyncio.Task[Any]) -> bool:
        """Bind a task, to be cancelled when the client leaves; return False if it has left.

        While a large body is unread, a disconnection is seen late.
        """
        if not self.left:
            self._tasks.add(task)
        return not self.left

    def bind_and_listen(self, task: asyncio.Task[Any]) -> bool:
        """Bind a task whose body is read, and listen; return False if the client has left."""
        if not self.left:
            self._tasks.add(task)
            self._listen()
        return not self.left

    def unbind(self, task: asyncio.Task[Any]) -> None:
        """Forget a task that is done, so that the client's leaving does not cancel it."""
        self._tasks.discard(task)

    def leave(self) -> None:
        """Mark the client as disconnected, and cancel its tasks."""
        self.left = True
        for task in self._tasks:
            task.cancel()


CLIENT = ContextVar[Client]("client")  # the client whose request a task serves
NO_CLIENT = Client()  # for a connection of another protocol class; it never leaves


class Flow(FlowControl):
    """uvicorn's flow control, except that it resumes reading only when no request is queued.

    Args:
        pipeline: the connection's requests that wait for an earlier one's answer.
    """

    def __init__(self, transport: asyncio.Transport, pipeline: Sized) -> None:
        super().__init__(transport)
        self._pipeline = pipeline

    def resume_reading(self) -> None:
        """Resume reading, unless requests wait behind the one being answered."""
        if self.read_paused and not self._pipeline:
            super().resume_reading()


class Protocol(HttpToolsProtocol):
    """uvicorn's HTTP/1.1 protocol with joined writes, limits on heads, and watched readers."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        """Start without WebSockets: an upgrade ends the connection with that request."""
        super().__init__(*args, **kwargs)
        self.ws_protocol_class, self._reads_no_more = None, False
        self._head_bytes = 0  # received of a head that has not ended
        self._head_timer: asyncio.TimerHandle | None = None  # while a head is awaited or incomplete
        self._in_body = False  # a body may still arrive after its request is refused

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Set up the transport, flow control and client of a new connection."""
        loop = asyncio.get_running_loop()
        self._reader = AnswerReader(transport, loop)  # type: ignore[arg-type]  # a connection's is one
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]  # a transport in all but name
        self.flow = Flow(self.transport, self.pipeline)
        self._client = Client(self.flow.resume_reading)
        self._start_head_timer()

    def data_received(self, data: bytes) -> None:
        """Parse data, with CLIENT set for the tasks that it starts, and limit the head's bytes."""
        if self._reads_no_more:
            return
        CLIENT.set(self._client)
        if self._head_timer is None and self._is_idle() and not self._in_body:
            self._start_head_timer()  # uvicorn waits without a limit for the end of this head
        timer = self._head_timer
        super().data_received(data)
        if timer is not None and timer is self._head_timer:  # still the same head
            self._head_bytes += len(data)
            if self._head_bytes > HEAD_BYTES and not self.transport.is_closing():
                self.send_400_response(f"The headers of a request may have {HEAD_BYTES} bytes.")

    def on_message_begin(self) -> None:
        """Start the timer of a head, which may follow a request that is not answered yet."""
        super().on_message_begin()
        if self._head_timer is None:
            self._start_head_timer()

    def on_headers_complete(self) -> None:
        """Start a request, the last if it asks for another protocol: httptools reads no body."""
        self._stop_head_timer()
        self._in_body = True
        super().on_headers_complete()
        self.headers = []  # takes the trailers, which thus stay out of the request's headers
        if self.parser.should_upgrade():
            self._close_after_request()

    def on_message_complete(self) -> None:
        """End a request's body; the next bytes are of a head."""
        super().on_message_complete()
        self._in_body = False

    def send_400_response(self, msg: str) -> None:
        """Answer 400 to bytes that are no request, but never in place of an answer that is due."""
        # no answer is due, or the fault is in the body of the request that is being answered
        if self._is_idle() or (self.cycle.more_body and not self.pipeline):
            super().send_400_response(msg)
        else:
            self._close_after_request()

    def _is_idle(self) -> bool:
        """Tell whether no answer is due."""
        return self.cycle is None or bool(self.cycle.response_complete)

    def _start_head_timer(self) -> None:
        """Give a head HEAD_SECONDS, and count its bytes from 0."""
        self._head_bytes = 0
        self._head_timer = self.loop.call_later(HEAD_SECONDS, self._time_out_head)

    def _stop_head_timer(self) -> None:
        """Stop the timer of a head that has ended."""
        if self._head_timer is not None:
            self._head_timer.cancel()
            self._head_timer = None

    def _time_out_head(self) -> None:
        """Close the connection, as a head has not ended in time; while an answer is due, wait."""
        if self._is_idle():
            self._head_timer = None
            self.transport.close()
        else:
            self._head_timer = self.loop.call_later(HEAD_SECONDS, self._time_out_head)

    def _close_after_request(self) -> None:
        """Close the connection after the latest request's answer, and read no more."""
        self.cycle.keep_alive, self._reads_no_more = False, True

    def pause_writing(self) -> None:
        """Pause writing until the reader catches up, which is timed."""
        super().pause_writing()
        self._reader.falls_behind()

    def resume_writing(self) -> None:
        """Resume writing, and stop the reader's timer."""
        super().resume_writing()
        self._reader.catches_up()

    def eof_received(self) -> bool:  # type: ignore[override]  # asyncio's, which uvicorn narrows
        """Tell whether a client that sends no more is still to be answered.

        It is where it said so, by Connection: close, and its request is whole; any other has left.
        """
        cycle = self.cycle
        return not (self._is_idle() or cycle.keep_alive or cycle.more_body)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the timers of a connection that has ended, and cancel its client's tasks."""
        self._stop_head_timer()
        self._reader.catches_up()
        super().connection_lost(exc)
        self._client.leave()


def install() -> None:
    """Make every server that uvicorn starts in this process from now on use Protocol."""
    config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{Protocol.__name__}"
