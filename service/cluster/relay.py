"""The replicas' lines, passed on to the terminal of a service with a Ray of its own.

Each replica makes a pipe and hands over its reading end, so that no line of one comes in the
midst of another's, a slow terminal costs lines and not time, and a replica's end is seen.

Ray's own way (log_to_driver) reads every line of every file again, a thousand in a tenth of a
second at most: warnings would come late beside an access log, and a core would read it.
"""

import fcntl
import os
import selectors
import socket
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

PIPE_BYTES = 1024 * 1024  # what an unprivileged process may have: some 3,000 lines
READ_BYTES = 64 * 1024
NAME_BYTES = 256
JOIN_SECONDS = 2  # for the last lines


class Relay:
    """What reads the replicas' lines, in a thread of its own.

    Args:
        path: where replicas find it.
        write: takes whole lines of one replica.
        ended: takes the name of a replica that has gone while `watches` is set.
    """

    def __init__(
        self, path: Path, write: Callable[[bytes], None], ended: Callable[[str], None]
    ) -> None:
        self.path, self.watches = path, False
        self._write, self._ended = write, ended
        self._door = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._selector = selectors.DefaultSelector()
        self._names: dict[int, str] = {}
        self._rests: dict[int, bytes] = {}  # what a line's end has not come of
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> Self:
        self._door.bind(str(self.path))
        self._selector.register(self._door, selectors.EVENT_READ)
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, _: TracebackType | None
    ) -> None:
        """Pass on what is there, then end."""
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door, suppress(OSError):
            door.setblocking(False)  # a terminal that stands still holds up who would take it
            door.sendto(b"", str(self.path))
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        going = True
        while going or self._names:
            ready = self._selector.select(None if going else 0)
            if not (going or ready):
                break
            for key, _ in ready:
                if key.fd == self._door.fileno():
                    going = self._admit() and going
                else:
                    self._read(key.fd)
        for descriptor in self._names:  # of replicas that are still there
            os.close(descriptor)
        self._selector.close()
        self._door.close()

    def _admit(self) -> bool:
        """Take a replica's pipe; False where it is our own word that it is over."""
        name, descriptors, _, _ = socket.recv_fds(self._door, NAME_BYTES, 1)
        for descriptor in descriptors:
            self._names[descriptor], self._rests[descriptor] = name.decode(), b""
            self._selector.register(descriptor, selectors.EVENT_READ)
        return bool(name)

    def _read(self, descriptor: int) -> None:
        piece = os.read(descriptor, READ_BYTES)
        lines, end, rest = (self._rests[descriptor] + piece).rpartition(b"\n")
        self._rests[descriptor] = rest
        if lines:
            with suppress(OSError, ValueError):  # nobody reads them any more
                self._write(lines + end)
        if not piece:
            self._selector.unregister(descriptor)
            os.close(descriptor)
            name, _ = self._names.pop(descriptor), self._rests.pop(descriptor)
            if self.watches:
                with suppress(OSError, ValueError):
                    self._ended(name)


def pipe(path: Path, name: str) -> int:
    """Return where a replica writes lines for a relay; it never waits there.

    Raises:
        OSError: the relay is not there, or takes no more.
    """
    reader, writer = os.pipe()
    try:
        with suppress(OSError):  # beyond what this user may have: the usual size does
            fcntl.fcntl(writer, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        os.set_blocking(writer, False)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as door:
            door.setblocking(False)
            door.connect(str(path))
            socket.send_fds(door, [name.encode()], [reader])
    except OSError:
        os.close(writer)
        raise
    finally:
        os.close(reader)
    return writer
