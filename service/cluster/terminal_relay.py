"""The replicas' lines, passed on to the terminal of a service with a Ray of its own.

All replicas write to one named pipe, in which the kernel keeps lines of up to 4,096 bytes whole; a
slow terminal costs lines, not time. A replica first sends its process id and name, so that its end
is noticed.

Ray's own way (log_to_driver) reads every line of every file again, at most a thousand in a tenth of
a second: with an access log, warnings would come late, and reading it would take a core.
"""

import fcntl
import os
import select
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Self

PIPE_BYTES = 1024 * 1024  # the most for an unprivileged process: some 3,000 lines
POLL_SECONDS = 0.2  # between two checks of which replicas still run
JOIN_SECONDS = 2  # to pass on the last lines at the end
HELLO = b"\0"  # begins a replica's first line: its process id and its name


class Relay:
    """Reads the replicas' lines from a named pipe, in a thread of its own.

    Args:
        path: of the pipe, to which replicas write.
        say: prints a line, or several.
        ended: takes the name of a replica that has gone while `watches` is set.
    """

    def __init__(
        self, path: Path, say: Callable[[str], None], ended: Callable[[str], None]
    ) -> None:
        self.path, self.watches = path, False
        self._say, self._ended = say, ended
        self._replicas: dict[str, int] = {}  # name -> process id
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="relay", daemon=True)

    def __enter__(self) -> Self:
        """Make the pipe and start reading it."""
        os.mkfifo(self.path, 0o600)
        self._pipe = os.open(self.path, os.O_RDWR | os.O_NONBLOCK)  # it ends with no replica
        with suppress(OSError):  # more than this user may have: the usual size will do
            fcntl.fcntl(self._pipe, fcntl.F_SETPIPE_SZ, PIPE_BYTES)
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Pass on the lines that have come, then end."""
        self._over.set()
        self._thread.join(JOIN_SECONDS)

    def _run(self) -> None:
        """Read the pipe until the end: pass lines on, and report replicas that have gone."""
        piece, rest = b"", b""
        while piece or not self._over.is_set():
            ready, _, _ = select.select([self._pipe], [], [], POLL_SECONDS)
            piece = os.read(self._pipe, PIPE_BYTES) if ready else b""
            *lines, rest = (rest + piece).split(b"\n")
            for hello in (line[1:].decode() for line in lines if line.startswith(HELLO)):
                process, _, name = hello.partition(" ")
                self._replicas[name] = int(process)
            if text := b"\n".join(line for line in lines if not line.startswith(HELLO)):
                with suppress(OSError, ValueError):  # their reader has gone
                    self._say(text.decode(errors="replace"))
            self._report_gone()
        os.close(self._pipe)

    def _report_gone(self) -> None:
        """Forget each replica whose process has ended, and report it while `watches` is set."""
        for name, process in list(self._replicas.items()):
            try:
                os.kill(process, 0)
            except OSError:
                del self._replicas[name]
                if self.watches:
                    with suppress(OSError, ValueError):
                        self._ended(name)


def open_pipe(path: Path, name: str) -> int:
    """Return a descriptor to which a replica writes lines for a relay, and on which it never waits.

    Raises:
        OSError: the relay is not there, or takes no more.
    """
    writer = os.open(path, os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    os.write(writer, HELLO + f"{os.getpid()} {name}\n".encode())
    return writer
