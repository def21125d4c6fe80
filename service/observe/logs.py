"""A replica's log: one JSON object a line, or text for a terminal.

    {"ts": "...", "level": "info", "event": "request", "replica": "...", "route": "/v1/encode", ...}

log.schema.json describes a line. An event is a constant, its facts are those of FACTS and
no others: that keeps inputs out. So does leaving an exception's own text out; its class and the
places it went through are enough to find it.
"""

import json
import logging
import sys
import traceback
from datetime import UTC, datetime
from types import TracebackType
from typing import Any, Literal

FACTS = (
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
)
Format = Literal["json", "text"]


class Lines(logging.Formatter):
    """Writes records as JSON.

    Args:
        replica: the name that every line carries.
    """

    def __init__(self, replica: str) -> None:
        super().__init__()
        self._replica = replica

    def format(self, record: logging.LogRecord) -> str:
        """One line, in ASCII: whatever a string holds, it cannot end the line."""
        return json.dumps(self.entry(record))

    def entry(self, record: logging.LogRecord) -> dict[str, Any]:
        """What a line says, by name."""
        time = datetime.fromtimestamp(record.created, UTC)
        line = {
            "ts": time.isoformat(timespec="milliseconds"),
            "level": record.levelname.lower(),
            "event": record.getMessage(),
            "replica": self._replica,
        }
        facts = ((name, getattr(record, name, None)) for name in FACTS)
        line |= {name: fact for name, fact in facts if fact is not None}
        if record.exc_info and record.exc_info[1]:
            line |= _failure(record.exc_info[1])
        return line


class Words(Lines):
    """Writes records for people."""

    def format(self, record: logging.LogRecord) -> str:
        """One line: time, level, event, then `name=value`."""
        entry = self.entry(record)
        time, level = entry.pop("ts"), entry.pop("level")
        event = json.dumps(entry.pop("event"))[1:-1]
        facts = (f"{name}={json.dumps(value)}" for name, value in entry.items())
        return " ".join([time, f"{level:7}", event, *facts])


FORMATS: dict[Format, type[Lines]] = {"json": Lines, "text": Words}


def start(form: Format, replica: str) -> None:
    """Send what this service logs, from now on, to the process's own stdout, and nowhere else.

    Ray's loggers keep their own ways. Where Serve is told to write JSON it puts an object in the
    place of sys.stdout that would wrap our lines in its own; `sys.__stdout__` stays.
    """
    handler = logging.StreamHandler(sys.__stdout__)
    handler.setFormatter(FORMATS[form](replica))
    ours = logging.getLogger("service")
    ours.handlers, ours.propagate = [handler], False
    ours.setLevel(logging.INFO)


def _failure(error: BaseException) -> dict[str, Any]:
    return {"error": type(error).__name__, "where": _places(error.__traceback__)}


def _places(trace: TracebackType | None) -> list[str]:
    """Where an exception went through, as module.function:line, outermost first."""
    return [
        f"{frame.f_globals.get('__name__')}.{frame.f_code.co_qualname}:{line}"
        for frame, line in traceback.walk_tb(trace)
    ]
