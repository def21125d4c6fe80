"""Lines of the log: one JSON object each, whatever is in them."""

import io
import json
import logging
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from service.observe import logs

CANARY = "canary-f7d1"
SCHEMA = json.loads((Path(logs.__file__).parent / "log.schema.json").read_text())
HOSTILE = 'a\r\n\x1b[31m{"level":"x"}\x00\x7f\x85\u2028\ud800'


def written(form: logs.Format, event: str, **more: Any) -> str:
    """A record as a replica writes it."""
    level = more.pop("level", logging.INFO)
    exc_info = more.pop("exc_info", None)
    logger = logging.getLogger("service.x")
    record = logger.makeRecord(
        "service.x", level, "x.py", 1, event, (), exc_info, extra=more.pop("extra", None)
    )
    return logs.FORMATS[form]("replica-1").format(record)


@pytest.fixture
def restored() -> Iterator[None]:
    """The service's logger as it was."""
    ours = logging.getLogger("service")
    before = ours.handlers, ours.propagate, ours.level
    yield
    ours.handlers, ours.propagate = before[0], before[1]
    ours.setLevel(before[2])


def test_the_schema_names_what_is_written_and_nothing_else() -> None:
    """A fact that is not in the schema cannot be logged."""
    jsonschema.Draft202012Validator.check_schema(SCHEMA)

    own = {"ts", "level", "event", "replica", "error", "where"}
    assert set(SCHEMA["properties"]) == {*logs.FACTS, *own}


@pytest.mark.parametrize("form", ["json", "text"])
def test_nothing_in_a_line_ends_it(form: logs.Format) -> None:
    """CR, LF, ESC, NUL, Unicode's own line ends and half a character are all written in ASCII."""
    line = written(form, HOSTILE, extra={"reason": HOSTILE})

    assert len(line.splitlines()) == 1 and line.isascii()
    assert not set(line) & {chr(number) for number in range(32)}


def test_a_line_is_json_by_the_schema() -> None:
    """With its facts, without what is no fact of ours."""
    line = json.loads(written("json", "request", extra={"code": 200, "body": CANARY}))

    jsonschema.validate(line, SCHEMA)
    assert line == {
        "ts": line["ts"],
        "level": "info",
        "event": "request",
        "replica": "replica-1",
        "code": 200,
    }


def test_an_exception_is_named_and_located_but_not_quoted() -> None:
    """Its text may hold an input: its class and places suffice to find it."""
    try:
        json.loads(CANARY)
    except ValueError:
        line = written("json", "failed", level=logging.ERROR, exc_info=sys.exc_info())

    told = json.loads(line)
    jsonschema.validate(told, SCHEMA)
    assert CANARY not in line
    assert told["error"] == "JSONDecodeError"
    assert told["where"][0].startswith(f"{__name__}.test_an_exception")
    assert told["where"][-1].startswith("json.decoder.JSONDecoder.raw_decode:")


def test_text_reads_from_left_to_right() -> None:
    """Time, level, event, then the facts."""
    line = written("text", "request", extra={"code": 200, "route": "/live"})

    assert line.split(" ", 1)[1] == 'info    request replica="replica-1" route="/live" code=200'


@pytest.mark.usefixtures("restored")
def test_a_replica_writes_to_its_own_stdout_alone(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Not through sys.stdout, where Ray may have put its own logger, nor through the root's."""
    own, rays = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "__stdout__", own)
    monkeypatch.setattr(sys, "stdout", rays)
    logs.start("json", "r")
    logs.start("json", "r")
    logging.getLogger("service.encode.gateway").info("started")

    (line,) = own.getvalue().splitlines()
    assert json.loads(line)["event"] == "started"
    assert rays.getvalue() == "" and not caplog.records
