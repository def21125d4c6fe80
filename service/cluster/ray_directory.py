"""A private directory for what Ray writes, swept with all of the service's processes at its end.

    python ray_directory.py DIRECTORY [KEPT]      waits for the end of its input, then sweeps

Logs move to the folder KEPT, one for each service, where those of the last runs stay.

The sweeper runs in a session of its own. The service holds the other end of its input and never
writes: the input ends when the service does, however it ends, SIGKILL included. Ray's own watchers
leave HAProxy holding its port.

A process belongs to the service if the directory's name is in its environment; or, since Ray's
processes overwrite their environment with their title, if it has none left and a file open there.

Only the standard library is imported, so that the sweeper starts at once.
"""

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

LOGS, DRIVER = Path("ray/session_latest/logs"), Path("driver.log")  # in the private directory
PATIENCE_SECONDS = 1.0  # for processes that end by themselves, before they are killed
KEPT_RUNS = 5  # runs of a service whose logs are kept
SWEEP_ROUNDS = 50  # of 50 ms; processes that start processes need more than one
STOP_SECONDS = 10  # for the sweeper, beyond which we leave it alone


def logs_folder(port: int) -> Path | None:
    """Return the folder for a service's logs, by the XDG Base Directory Specification.

    None where it cannot be created, as on a read-only disk.
    """
    state = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        home = state if state.is_absolute() else Path.home() / ".local" / "state"
        folder = home / "headlight" / "logs" / str(port)
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no disk to write on, or a user without a home
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextmanager
def make_directory(logs: Path | None) -> Iterator[Path]:
    """Yield a new private directory, swept with all processes of the service however we end.

    Args:
        logs: where its logs are kept afterwards.
    """
    # Unix sockets have paths of at most 107 bytes, and TMPDIR may be long.
    path = tempfile.mkdtemp(prefix="headlight-", dir="/tmp")
    command = [sys.executable, "-I", "-S", __file__, path, *([str(logs)] if logs else [])]
    sweeper = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,  # out of reach of what ends our group
    )
    try:
        yield Path(path)
    finally:
        with suppress(subprocess.TimeoutExpired):
            sweeper.communicate(timeout=STOP_SECONDS)  # closes its input


@contextmanager
def redirect_output(log: Path) -> Iterator[None]:
    """Redirect stdout and stderr of this process, to which Ray's libraries print, to a file."""
    sys.stdout.flush()
    sys.stderr.flush()
    copies = os.dup(1), os.dup(2)
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(file, 1)
    os.dup2(file, 2)
    os.close(file)
    try:
        yield
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        for descriptor, copy in zip((1, 2), copies, strict=True):
            os.dup2(copy, descriptor)
            os.close(copy)


def belongs_to_service(process: Path, directory: str) -> bool:
    """Tell whether a process, given by its folder in /proc, is the service's."""
    try:
        environment = (process / "environ").read_bytes()
        return directory.encode() in environment or (
            b"=" not in environment
            and any(
                os.readlink(link).startswith(directory + "/") for link in (process / "fd").iterdir()
            )
        )
    except OSError:
        return False  # gone meanwhile, or another user's


def list_processes(directory: str) -> list[int]:
    """List the ids of the service's processes but this one and its parent; none without /proc."""
    excluded = {str(os.getpid()), str(os.getppid())}
    return [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if process.name not in excluded and belongs_to_service(process, directory)
    ]


def keep_logs(directory: Path, kept: Path) -> None:
    """Copy this run's logs to the folder `kept`, if possible, and delete all but the last there."""
    if not (directory / DRIVER).is_file():
        return  # Ray was never started
    ours = kept / directory.name
    try:
        if (directory / LOGS).is_dir():  # a Ray that failed early has none
            shutil.copytree(directory / LOGS, ours)
        ours.mkdir(exist_ok=True)
        os.utime(ours)  # in the order of the stops
        shutil.copy(directory / DRIVER, ours)
    except OSError:
        shutil.rmtree(ours, ignore_errors=True)
        return
    others = [other for other in kept.iterdir() if other != ours]
    for old in sorted(others, key=lambda path: path.stat().st_mtime_ns)[: 1 - KEPT_RUNS]:
        shutil.rmtree(old, ignore_errors=True)


def sweep(directory: str, kept: str | None = None) -> None:
    """End every process of the service, keep its logs, then remove its directory."""
    deadline, rounds = time.monotonic() + PATIENCE_SECONDS, SWEEP_ROUNDS
    while (left := list_processes(directory)) and rounds:
        if time.monotonic() >= deadline:
            rounds -= 1
            for pid in left:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)
    if kept:
        keep_logs(Path(directory), Path(kept))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    sweep(*sys.argv[1:])
