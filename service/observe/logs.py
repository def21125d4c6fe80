"""Writes a replica's log: one JSON object per line, or text for a terminal.

    {"ts": "...", "level": "info", "event": "request", "replica": "...", "route": "/v1/encode", ...}

log.schema.json describes a line. An event is a constant, and its fields are those of RECORD_FIELDS
and no others, which keeps inputs out. So does leaving out an exception's message: its class and the
functions that it went through are enough to find it.

A log file is replaced by an empty one at FILE_BYTES, and the previous one is kept. A line that
cannot be written is lost and counted: a full disk stops no request.
"""

import json
import logging
import os
import stat
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Literal

RECORD_FIELDS = (  # optional fields of a line, taken from attributes of the logging record
    *("request_id", "trace_id", "route", "key", "code", "duration_ms", "sequences", "tokens"),
    *("weights", "reason", "count"),
)
Format = Literal["json", "text"]  # of a line
COMMAND = "headlight serve"  # stands for the replica in lines of the command
# Levels of the command's lines, by how they begin
LEVELS = {"warning: ": logging.WARNING, "headlight: ": logging.CRITICAL}
FILE_BYTES = 64 * 1024 * 1024  # most bytes of a log file; the previous one takes as many again


class JsonFormatter(logging.Formatter):
    """Formats logging records as JSON.

    Args:
        replica: name of the replica, which every line has.
    """

    def __init__(self, replica: str) -> None:
        super().__init__()
        self._replica = replica

    def format(self, record: logging.LogRecord) -> str:
        """Return one line of JSON, in ASCII, so that no string in it can end the line."""
        return json.dumps(self.entry(record))

    def entry(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return the fields of a line, by name."""
        time = datetime.fromtimestamp(record.created, UTC)
        line: dict[str, Any] = {
            "ts": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "replica": self._replica,
        }
        facts = ((name, getattr(record, name, None)) for name in RECORD_FIELDS)
        line |= {name: fact for name, fact in facts if fact is not None}
        if record.exc_info and (error := record.exc_info[1]):
            frames = [  # as module.function:line, outermost first
                f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}:{number}"
                for frame, number in traceback.walk_tb(error.__traceback__)
            ]
            line |= {"error": type(error).__name__, "where": frames}
        return line


class TextFormatter(JsonFormatter):
    """Formats logging records as text for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line: time, level, event, then `name=value`."""
        entry = self.entry(record)
        time, level = entry.pop("ts"), entry.pop("level")
        event = json.dumps(entry.pop("event"))[1:-1]
        facts = (f"{name}={json.dumps(value)}" for name, value in entry.items())
        return " ".join([time, f"{level:7}", event, *facts])


FORMATS: dict[Format, type[JsonFormatter]] = {"json": JsonFormatter, "text": TextFormatter}


class DescriptorHandler(logging.Handler):
    """Writes lines to a file descriptor, each at once and without a buffer.

    A buffer would write the rest of a line that a full disk did not take into a later line.

    Args:
        descriptor: of a file, a pipe or a terminal; a full file is replaced by an empty one.
        most: most bytes of a file.

    Attributes:
        on_loss: called for each line that is lost.
    """

    def __init__(self, descriptor: int, most: int = FILE_BYTES) -> None:
        super().__init__()
        self._descriptor, self._most, self._is_cut = descriptor, most, False
        self.on_loss: Callable[[], None] = lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or call `on_loss`."""
        try:
            line = f"{self.format(record)}\n".encode()
            self._rotate(len(line))
            if self._is_cut:  # the previous line was written in part
                line = b"\n" + line
            self._is_cut = os.write(self._descriptor, line) < len(line)
        except OSError:
            self.on_loss()
        else:
            if self._is_cut:
                self.on_loss()

    def _rotate(self, size: int) -> None:
        """Replace the file if another `size` bytes would be too much; keep it as `.1`."""
        state = os.fstat(self._descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size + size <= self._most:
            return
        try:
            self._replace_file(os.readlink(f"/proc/self/fd/{self._descriptor}"), state.st_mode)
        except OSError:  # the file was removed, or the disk has no room for another
            os.ftruncate(self._descriptor, 0)

    def _replace_file(self, path: str, mode: int) -> None:
        """Rename a file to `.1`, and have the descriptor write to a new one of the same mode."""
        flags = os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_APPEND
        new = os.open(f"{path}.new", flags, stat.S_IMODE(mode))
        try:
            os.replace(path, f"{path}.1")
            os.replace(f"{path}.new", path)
            os.dup2(new, self._descriptor)
        finally:
            os.close(new)


def start_logging(
    format: Format, replica: str, mirror_fd: int | None = None, mirror_all: bool = False
) -> None:
    """Write the logs of `service` to the process's stdout from now on.

    Ray's loggers are left alone. They are not written to sys.stdout but to descriptor 1: if Serve
    logs JSON, it replaces sys.stdout by an object that would wrap each line in its own.

    Args:
        replica: name of the replica, which every line has.
        mirror_fd: another file descriptor, to which warnings and errors are written too.
        mirror_all: whether all lines are.
    """
    handlers = [DescriptorHandler(fd) for fd in (make_nonblocking(1), mirror_fd) if fd is not None]
    for handler in handlers:
        handler.setFormatter(FORMATS[format](replica))
    for handler in handlers[1:]:
        handler.setLevel(logging.INFO if mirror_all else logging.WARNING)
    root = logging.getLogger("service")
    root.handlers, root.propagate = list(handlers), False
    root.setLevel(logging.INFO)


def make_nonblocking(descriptor: int) -> int:
    """Return a descriptor that writes where this one does, without blocking if that is a pipe.

    In a container where Ray was started with --no-redirect-output, all processes write to one pipe,
    which the container's runtime reads. While it does not, lines are lost and no request waits.
    The pipe is opened again, so that the mode of other processes' descriptors is not changed.
    """
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a pipe of another user, as under older runtimes
        return descriptor


def write_line(form: Format, replica: str, event: str, level: int = logging.WARNING) -> str:
    """Return a line of the log, as the replica itself would have written it."""
    record = logging.LogRecord("service", level, "", 0, event, (), None)
    return FORMATS[form](replica).format(record)


def word_line(form: Format, line: str) -> str:
    """Return what `headlight serve` itself says as a line of the log, for those who collect it."""
    begins = next((prefix for prefix in LEVELS if line.startswith(prefix)), "")
    level = LEVELS.get(begins, logging.INFO)
    return write_line(form, COMMAND, line.removeprefix(begins), level)


def count_losses(count: Callable[[], None]) -> None:
    """Call `count` for each line that is lost from now on."""
    for handler in logging.getLogger("service").handlers:
        if isinstance(handler, DescriptorHandler):
            handler.on_loss = count
