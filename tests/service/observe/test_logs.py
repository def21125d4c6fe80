"""Lines of the log: one JSON object each, whatever is in them."""

import io
import json
import logging
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
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
    assert set(SCHEMA["properties"]) == {*logs.RECORD_FIELDS, *own}


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
    capfd: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Not through sys.stdout, where Ray may have put its own logger, nor through the root's."""
    rays = io.StringIO()
    monkeypatch.setattr(sys, "stdout", rays)
    logs.start_logging("json", "r")
    logs.start_logging("json", "r")
    logging.getLogger("service.pipeline.gateway").info("started")

    (line,) = capfd.readouterr().out.splitlines()
    assert json.loads(line)["event"] == "started"
    assert rays.getvalue() == "" and not caplog.records


@pytest.mark.usefixtures("restored")
@pytest.mark.parametrize(("whole", "events"), [(False, ["slow"]), (True, ["started", "slow"])])
def test_warnings_go_to_the_terminal_too_and_all_lines_where_it_is_said(
    tmp_path: Path, whole: bool, events: list[str]
) -> None:
    """Each as the log has it."""
    file = tmp_path / "terminal"
    terminal = os.open(file, os.O_WRONLY | os.O_CREAT)
    logs.start_logging("json", "r", terminal, whole)
    logging.getLogger("service.app").info("started")
    logging.getLogger("service.app").warning("slow")
    os.close(terminal)

    assert [json.loads(line)["event"] for line in file.read_text().splitlines()] == events


@pytest.mark.parametrize("form", ["json", "text"])
def test_a_line_about_a_replica_is_as_its_own(form: logs.Format) -> None:
    """By the same schema."""
    text = logs.write_line(form, "r", "replica ended")

    assert "replica ended" in text and "warning" in text
    if form == "json":
        jsonschema.validate(json.loads(text), SCHEMA)


@pytest.mark.parametrize(
    ("said", "level", "event"),
    [
        ("starting Ray", "info", "starting Ray"),
        ("warning: anyone may ask", "warning", "anyone may ask"),
        ("headlight: no GPU", "critical", "no GPU"),
    ],
)
def test_a_line_of_the_command_is_one_of_the_log(said: str, level: str, event: str) -> None:
    """By the same schema, with time and level."""
    line = json.loads(logs.word_line("json", said))

    jsonschema.validate(line, SCHEMA)
    assert (line["level"], line["event"], line["replica"]) == (level, event, "headlight serve")


@pytest.fixture
def write(tmp_path: Path) -> Iterator[Callable[..., logs.DescriptorHandler]]:
    """Make a writer of plain messages into a file called log."""
    descriptors = []

    def make(most: int = logs.FILE_BYTES, file: str = "log") -> logs.DescriptorHandler:
        descriptors.append(os.open(tmp_path / file, os.O_WRONLY | os.O_CREAT | os.O_APPEND))
        return logs.DescriptorHandler(descriptors[-1], most)

    yield make
    for descriptor in descriptors:
        os.close(descriptor)


def tell(writer: logs.DescriptorHandler, message: str) -> None:
    """Log one message with it."""
    writer.handle(logging.makeLogRecord({"msg": message}))


def test_a_full_file_gives_way_to_an_empty_one(
    tmp_path: Path, write: Callable[..., logs.DescriptorHandler]
) -> None:
    """The last two files are kept, every line whole, even if others hold the descriptor."""
    writer = write(most=30)
    for number in range(7):
        tell(writer, f"line {number:04}")  # 10 bytes

    assert (tmp_path / "log.1").read_text() == "line 0003\nline 0004\nline 0005\n"
    assert (tmp_path / "log").read_text() == "line 0006\n"
    assert {path.name for path in tmp_path.iterdir()} == {"log", "log.1"}


def test_a_file_that_cannot_be_put_aside_begins_anew(
    tmp_path: Path, write: Callable[..., logs.DescriptorHandler]
) -> None:
    """Somebody removed it; its bytes are on the disk while it is open."""
    writer = write(most=30)
    os.link(tmp_path / "log", tmp_path / "held")
    (tmp_path / "log").unlink()
    for number in range(5):
        tell(writer, f"line {number:04}")

    assert (tmp_path / "held").read_text() == "line 0003\nline 0004\n"


def test_a_full_disk_loses_lines_and_nothing_else(
    tmp_path: Path, write: Callable[..., logs.DescriptorHandler]
) -> None:
    """Each is counted; what comes after begins a line of its own."""
    writer, lost = write(), []
    writer.on_loss = lambda: lost.append(1)
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (25, limits[1]))
    try:
        for number in range(5):
            tell(writer, f"line {number:04}")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    tell(writer, "there is room")

    assert (tmp_path / "log").read_text() == "line 0000\nline 0001\nline \nthere is room\n"
    assert len(lost) == 3


@pytest.mark.usefixtures("restored")
def test_a_pipe_that_is_not_read_costs_lines_and_no_time(
    capfd: pytest.CaptureFixture[str],
) -> None:
    """As a container's, which all its processes write to: they wait for it as before."""
    reading, writing = os.pipe()
    kept, lost = os.dup(1), threading.Event()

    def fill() -> None:
        while not lost.is_set():
            logging.getLogger("service.x").info("request")

    os.dup2(writing, 1)
    try:
        logs.start_logging("json", "r")
        logs.count_losses(lost.set)
        threading.Thread(target=fill, daemon=True).start()
        in_time, waits = lost.wait(10), os.get_blocking(writing)
    finally:
        os.dup2(kept, 1)
        os.close(kept)
        os.close(writing)
    lines = os.read(reading, 1 << 20).splitlines()
    os.close(reading)

    assert in_time and waits
    assert len(lines) > 100 and all(json.loads(line)["event"] == "request" for line in lines)


def test_a_pipe_is_written_to_as_it_is() -> None:
    """It has no size, and nothing could take its place."""
    reading, writing = os.pipe()
    writer = logs.DescriptorHandler(writing, most=5)
    tell(writer, "line one")
    tell(writer, "line two")

    assert os.read(reading, 100) == b"line one\nline two\n"
    os.close(reading)
    os.close(writing)
