"""What replicas write comes to the terminal of the service, line by line."""

import os
import queue
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cluster import terminal_relay
from service.cluster.terminal_relay import Relay

Said = queue.Queue[str]
# A replica that writes a line and goes
REPLICA = """
import os, sys
from pathlib import Path
from service.cluster import terminal_relay
os.write(terminal_relay.open_pipe(Path(sys.argv[1]), sys.argv[2]), b"here\\n")
"""


@pytest.fixture
def said() -> Said:
    """What came, in order."""
    return queue.Queue()


@pytest.fixture
def running(tmp_path: Path, said: Said) -> Iterator[Relay]:
    """A relay."""
    with Relay(tmp_path / "lines", said.put, lambda name: said.put(f"gone: {name}")) as running:
        yield running


def replica(path: Path, name: str) -> None:
    """Run a replica to its end."""
    subprocess.run([sys.executable, "-c", REPLICA, str(path), name], check=True)


def test_lines_of_several_replicas_come_whole(running: Relay, said: Said) -> None:
    """However a terminal reads them; who writes is not told."""
    first, second = (
        terminal_relay.open_pipe(running.path, "a"),
        terminal_relay.open_pipe(running.path, "b"),
    )
    long = "x" * 4095

    for _ in range(50):
        os.write(first, f"{long}\n".encode())
        os.write(second, b"short\n")

    lines: list[str] = []
    while len(lines) < 100:
        lines += said.get(timeout=5).split("\n")
    assert lines == [long, "short"] * 50


def test_an_end_is_told_after_the_last_line(running: Relay, said: Said) -> None:
    """While the service runs; one that still runs has not ended."""
    running.watches = True
    terminal_relay.open_pipe(running.path, "this process")

    replica(running.path, "a")

    assert [said.get(timeout=5), said.get(timeout=5)] == ["here", "gone: a"]
    assert said.empty()


def test_an_end_that_is_expected_is_not_told(tmp_path: Path, said: Said) -> None:
    """While the service starts or stops; what was written before is passed on first."""
    with Relay(tmp_path / "lines", said.put, lambda name: said.put("gone")) as running:
        replica(running.path, "a")

    assert [said.get(timeout=5), said.empty()] == ["here", True]


def test_a_terminal_that_stands_still_holds_no_replica_up(tmp_path: Path) -> None:
    """What it does not take is lost, once a MiB waits; without a relay, a replica is told so."""
    with pytest.raises(FileNotFoundError):
        terminal_relay.open_pipe(tmp_path / "lines", "a")
    moving = threading.Event()
    with Relay(tmp_path / "lines", lambda lines: moving.wait() and None, str) as standing:
        writer = terminal_relay.open_pipe(standing.path, "a")

        with pytest.raises(BlockingIOError):
            for _ in range(terminal_relay.PIPE_BYTES):
                os.write(writer, b"x" * 1023 + b"\n")
        moving.set()


def test_a_terminal_that_is_gone_does_not_end_the_relay(tmp_path: Path, said: Said) -> None:
    """Of what cannot be told, nothing is; the next replica is read all the same."""

    def ended(name: str) -> None:
        said.put(f"gone: {name}")
        raise BrokenPipeError

    with Relay(tmp_path / "lines", said.put, ended) as running:
        running.watches = True
        replica(running.path, "a")
        assert [said.get(timeout=5), said.get(timeout=5)] == ["here", "gone: a"]
        os.write(terminal_relay.open_pipe(running.path, "b"), b"again\n")
        assert said.get(timeout=5) == "again"
        running.watches = False
