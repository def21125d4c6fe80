"""What a service leaves is swept, its processes and its directory alone; where its logs stay."""

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from service.cluster import ray_directory


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
        command = [sys.executable, "-I", "-S", ray_directory.__file__, str(directory)]
        # A service that was killed has left no parent: the sweeper's is another process.
        subprocess.run(["sh", "-c", '"$@" </dev/null & wait', "sh", *command], check=True)

        assert ours.wait(5) < 0
        assert bystander.poll() is None
        assert not directory.exists()


def test_what_has_no_environment_left_is_known_by_its_open_files(directory: Path) -> None:
    """As Ray's processes, whose title overwrites theirs; who reads a log there is left alone."""
    (directory / "log").touch()
    with (directory / "log").open() as log:
        ours, reader = (
            subprocess.Popen(["sleep", "60"], env=environment, stdin=log)
            for environment in ({}, {"PLACE": "/elsewhere"})
        )
        with ours, reader:
            ray_directory.sweep(str(directory))

            assert ours.wait(5) < 0
            assert reader.poll() is None
            reader.kill()


def test_the_logs_of_the_last_five_runs_are_kept(tmp_path: Path) -> None:
    """One whose Ray failed early has the driver's alone; an older one goes."""
    kept = tmp_path / "kept"
    kept.mkdir()
    names = ["first", "second", "third", "fourth", "fifth", "early"]
    for name in names:
        run = tmp_path / name
        run.mkdir()
        (run / ray_directory.DRIVER).write_text("driver")
        if name != "early":
            (run / ray_directory.LOGS).mkdir(parents=True)
            (run / ray_directory.LOGS / "worker-1.out").write_text(name)

        ray_directory.sweep(str(run), str(kept))
        assert not run.exists()

    assert {folder.name for folder in kept.iterdir()} == {*names[1:]}
    assert (kept / "fifth" / "worker-1.out").read_text() == "fifth"
    assert (kept / "early" / "driver.log").read_text() == "driver"


def test_logs_that_cannot_be_kept_leave_those_of_the_run_before(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on a full disk; the directory goes all the same."""

    def full(*names: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(ray_directory.shutil, "copy", full)
    kept, run = tmp_path / "kept", tmp_path / "run"
    (kept / "before").mkdir(parents=True)
    (run / ray_directory.LOGS).mkdir(parents=True)
    (run / ray_directory.DRIVER).touch()

    ray_directory.sweep(str(run), str(kept))

    assert [folder.name for folder in kept.iterdir()] == ["before"]
    assert not run.exists()


def test_it_waits_for_the_end_of_its_input(directory: Path) -> None:
    """Which comes when the service ends, in whatever way."""
    command = [sys.executable, "-I", "-S", ray_directory.__file__, str(directory)]
    with subprocess.Popen(command, stdin=subprocess.PIPE) as sweeper:
        with pytest.raises(subprocess.TimeoutExpired):
            sweeper.wait(0.3)
        assert directory.exists()

        sweeper.communicate(timeout=5)
        assert not directory.exists()


def test_the_logs_stay_where_xdg_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In the state's folder, or the home's; a path that is not absolute is ignored; private."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, below in ((tmp_path / "state", "state"), (Path("here"), ".local/state")):
        monkeypatch.setenv("XDG_STATE_HOME", str(named))

        assert ray_directory.logs_folder(8000) == tmp_path / below / "headlight" / "logs" / "8000"
        assert (tmp_path / below / "headlight" / "logs" / "8000").stat().st_mode & 0o077 == 0


def test_where_nothing_can_be_written_nothing_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And the service starts all the same."""
    (tmp_path / "file").touch()
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "file"))

    assert ray_directory.logs_folder(8000) is None
