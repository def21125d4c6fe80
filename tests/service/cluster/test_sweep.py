"""What a service leaves is swept: its processes and its directory, and nothing else."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.cluster import sweep


@contextmanager
def sleeper(**variables: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that would stay."""
    with subprocess.Popen(["sleep", "60"], env={**os.environ, **variables}) as process:
        try:
            yield process
        finally:
            process.kill()


@pytest.fixture
def directory(tmp_path: Path) -> Path:
    """A service's private directory, with something in it."""
    (tmp_path / "headlight-x" / "haproxy").mkdir(parents=True)
    return tmp_path / "headlight-x"


def test_what_carries_the_directory_in_its_environment_is_ended(directory: Path) -> None:
    """As everything does that Ray starts; a bystander is left alone."""
    with sleeper(PLACE=f"{directory}/haproxy") as ours, sleeper(PLACE="/elsewhere") as bystander:
        command = [sys.executable, "-I", "-S", sweep.__file__, str(directory)]
        # A service that was killed has left no parent: the sweeper's is another process.
        subprocess.run(["sh", "-c", '"$@" </dev/null & wait', "sh", *command], check=True)

        assert ours.wait(5) < 0
        assert bystander.poll() is None
        assert not directory.exists()


def test_it_waits_for_the_end_of_its_input(directory: Path) -> None:
    """Which comes when the service ends, in whatever way."""
    command = [sys.executable, "-I", "-S", sweep.__file__, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as sweeper:
        with pytest.raises(subprocess.TimeoutExpired):
            sweeper.wait(0.3)
        assert directory.exists()

        sweeper.communicate(timeout=5)
        assert not directory.exists()
