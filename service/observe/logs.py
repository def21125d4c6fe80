"""A replica's log: one JSON object a line, or text for a terminal.

    {"ts": "...", "level": "info", "event": "request", "replica": "...", "route": "/v1/encode", ...}

log.schema.json describes a line. An event is a constant, and its facts are those of FACTS and no
others: that keeps inputs out. So does leaving out an exception's own text; its class and the places
it went through are enough to find it.

A log that is a file starts anew at FILE_BYTES, and the previous one is kept. A line that cannot be
written is lost, and counted: a full disk stops no request.
"""

import json
import logging
import os
import stat
import traceback
from collections.abc import Callable
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

RECORD_FIELDS = (
    "request_id",
    "trace_id",
    "route",
    "key",
    "code",
    "duration_ms",
    "sequences",
    "tokens",
    "weights",
    "reason",
    "count",
)
Format = Literal["json", "text"]
FILE_BYTES = 64 * 1024 * 1024  # of a replica's log; with the one before, twice as many


class JsonFormatter(logging.Formatter):
    """Writes records as JSON.

    Args:
        replica: the name that every line carries.
    """

    def __init__(self, replica: str) -> None:
        super().__init__()
        self._replica = replica

    def format(self, record: logging.LogRecord) -> str:
        """Return one line, in ASCII: no string in it can end the line."""
        return json.dumps(self.entry(record))

    def entry(self, record: logging.LogRecord) -> dict[str, Any]:
        """Return what a line says, by name."""
        time = datetime.fromtimestamp(record.created, UTC)
        line = {
            "ts": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "replica": self._replica,
        }
        facts = ((name, getattr(record, name, None)) for name in RECORD_FIELDS)
        line |= {name: fact for name, fact in facts if fact is not None}
        if record.exc_info and record.exc_info[1]:
            line |= _describe_exception(record.exc_info[1])
        return line


class TextFormatter(JsonFormatter):
    """Writes records for people."""

    def format(self, record: logging.LogRecord) -> str:
        """Return one line: time, level, event, then `name=value`."""
        entry = self.entry(record)
        time, level = entry.pop("ts"), entry.pop("level")
        event = json.dumps(entry.pop("event"))[1:-1]
        facts = (f"{name}={json.dumps(value)}" for name, value in entry.items())
        return " ".join([time, f"{level:7}", event, *facts])


FORMATS: dict[Format, type[JsonFormatter]] = {"json": JsonFormatter, "text": TextFormatter}


class DescriptorHandler(logging.Handler):
    """Writes lines to a descriptor, each at once.

    Nothing is kept for later: what a full disk did not take would appear in the middle of another
    line.

    Args:
        descriptor: of a file, a pipe or a terminal; a file's is replaced by a new one when full.
        most: bytes of a file.
    """

    def __init__(self, descriptor: int, most: int = FILE_BYTES) -> None:
        super().__init__()
        self._descriptor, self._most, self._broken = descriptor, most, False
        self.on_loss: Callable[[], None] = lambda: None

    def emit(self, record: logging.LogRecord) -> None:
        """Write one line, or count it as lost."""
        try:
            line = f"{self.format(record)}\n".encode()
            self._rotate(len(line))
            if self._broken:
                line = b"\n" + line
            self._broken = os.write(self._descriptor, line) < len(line)
        except OSError:
            self.on_loss()
        else:
            if self._broken:
                self.on_loss()

    def _rotate(self, size: int) -> None:
        """Replace a full file by an empty one; the full one stays next to it, once, as `.1`."""
        state = os.fstat(self._descriptor)
        if not stat.S_ISREG(state.st_mode) or state.st_size + size <= self._most:
            return
        try:
            self._replace_file(os.readlink(f"/proc/self/fd/{self._descriptor}"), state.st_mode)
        except OSError:  # the file was removed, or the disk has no room for another
            os.ftruncate(self._descriptor, 0)

    def _replace_file(self, path: str, mode: int) -> None:
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
    """Send what this service logs from now on to the process's own stdout.

    Args:
        mirror_fd: another descriptor, to which warnings and errors go too.
        mirror_all: whether all lines do.

    Ray's loggers keep their own ways. Where Serve is told to write JSON it puts an object in the
    place of sys.stdout that would wrap our lines in its own; descriptor 1 stays.
    """
    handlers = [
        DescriptorHandler(each) for each in (make_nonblocking(1), mirror_fd) if each is not None
    ]
    for handler in handlers:
        handler.setFormatter(FORMATS[format](replica))
    for handler in handlers[1:]:
        handler.setLevel(logging.INFO if mirror_all else logging.WARNING)
    ours = logging.getLogger("service")
    ours.handlers, ours.propagate = list(handlers), False
    ours.setLevel(logging.INFO)


def make_nonblocking(descriptor: int) -> int:
    """Return a descriptor that loses a line rather than wait, if this one is a pipe's.

    In a container where Ray was started with --no-redirect-output, all processes write to one pipe,
    which the container's runtime reads; while it does not, no request may wait for it. The pipe is
    opened anew, so that other processes keep their own mode.
    """
    if not stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        return descriptor
    try:
        return os.open(f"/proc/self/fd/{descriptor}", os.O_WRONLY | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # another user's, as under an older runtime
        return descriptor


def warning_line(form: Format, replica: str, event: str) -> bytes:
    """Return a warning about a replica, as that replica would have written it."""
    record = logging.LogRecord("service", logging.WARNING, "", 0, event, (), None)
    return f"{FORMATS[form](replica).format(record)}\n".encode()


def count_losses(count: Callable[[], None]) -> None:
    """Count each line that is lost from now on."""
    for handler in logging.getLogger("service").handlers:
        if isinstance(handler, DescriptorHandler):
            handler.on_loss = count


def _describe_exception(error: BaseException) -> dict[str, Any]:
    return {"error": type(error).__name__, "where": _list_frames(error.__traceback__)}


def _list_frames(trace: TracebackType | None) -> list[str]:
    """Return the places an exception went through, as module.function:line, outermost first."""
    return [
        f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}:{line}"
        for frame, line in traceback.walk_tb(trace)
    ]
