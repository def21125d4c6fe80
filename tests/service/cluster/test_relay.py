"""What replicas write comes to the terminal of the service, line by line."""

import os
import queue
import socket
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from service.cluster import relay
from service.cluster.relay import Relay

Said = queue.Queue[bytes]


@pytest.fixture
def said() -> Said:
    """What came, in order."""
    return queue.Queue()


@pytest.fixture
def running(tmp_path: Path, said: Said) -> Iterator[Relay]:
    """A relay."""
    path = tmp_path / "lines"
    with Relay(path, said.put, lambda name: said.put(b"gone: " + name.encode())) as running:
        yield running


def test_lines_come_whole_and_an_end_is_told(running: Relay, said: Said) -> None:
    """However they were cut; the pieces of two replicas never mix."""
    running.watches = True
    first, second = relay.pipe(running.path, "a"), relay.pipe(running.path, "b")

    os.write(first, b"one\ntw")
    assert said.get(timeout=5) == b"one\n"
    os.write(second, b"three\n")
    assert said.get(timeout=5) == b"three\n"
    os.write(first, b"o\n")
    assert said.get(timeout=5) == b"two\n"
    os.close(first)
    assert said.get(timeout=5) == b"gone: a"
    os.close(second)
    assert said.get(timeout=5) == b"gone: b"


def test_an_end_that_is_expected_is_not_told(tmp_path: Path, said: Said) -> None:
    """While the service starts or stops; what was written before is passed on first."""
    path = tmp_path / "lines"
    with Relay(path, said.put, lambda name: said.put(b"gone")) as running:
        writer = relay.pipe(running.path, "a")
        os.write(writer, b"last\n")
        os.close(writer)

    assert [said.get(timeout=5), said.empty()] == [b"last\n", True]


def test_a_terminal_that_stands_still_holds_no_replica_up(tmp_path: Path) -> None:
    """What it does not take is lost, once a MiB waits."""
    path = tmp_path / "lines"
    with pytest.raises(FileNotFoundError):
        relay.pipe(path, "a")
    moving = threading.Event()
    with Relay(path, lambda lines: moving.wait() and None, lambda name: None) as standing:
        writer = relay.pipe(standing.path, "a")

        with pytest.raises(BlockingIOError):
            for _ in range(relay.PIPE_BYTES):
                os.write(writer, b"x" * 1023 + b"\n")
        os.close(writer)
        moving.set()


def test_a_terminal_that_is_gone_does_not_end_the_relay(tmp_path: Path, said: Said) -> None:
    """Of what cannot be told, nothing is; the next replica is read all the same."""

    def ended(name: str) -> None:
        said.put(b"gone: " + name.encode())
        raise BrokenPipeError

    with Relay(tmp_path / "lines", said.put, ended) as running:
        running.watches = True
        os.close(relay.pipe(running.path, "a"))
        assert said.get(timeout=5) == b"gone: a"
        os.write(relay.pipe(running.path, "b"), b"here\n")
        assert said.get(timeout=5) == b"here\n"
        running.watches = False


def test_a_relay_that_reads_nothing_holds_no_replica_up(tmp_path: Path) -> None:
    """A replica that cannot hand over its pipe is told so at once."""
    path = tmp_path / "lines"
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as deaf:
        deaf.bind(str(path))

        with pytest.raises(BlockingIOError):
            for _ in range(1000):
                os.close(relay.pipe(path, "a"))
