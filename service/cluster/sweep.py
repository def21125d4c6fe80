"""End what a service started and remove its directory, when the service is gone.

    python sweep.py DIRECTORY [KEPT]      waits for the end of its input, then sweeps

What was logged moves to the folder KEPT, in place of what an earlier run left there.

It runs beside the service, in a session of its own. The service holds the other end of its
input and never writes: the input ends when the service does, by whatever means, SIGKILL
included. Ray's own watchers leave HAProxy with its port, and two agents for a minute.

A process belongs to the service when the directory's name is in its environment; or, since
Ray's agents overwrite their environment with their title, when it is titled so and has a file
open there.

Only the standard library, so that it starts at once.
"""

import os
import shutil
import signal
import sys
import time
from pathlib import Path

LOGS, DRIVER = Path("ray/session_latest/logs"), Path("driver.log")  # below the directory
PATIENCE_SECONDS = 1.0  # for what ends by itself, before it is killed
ROUNDS = 50  # of 50 ms; processes that start processes need more than one


def belongs(process: Path, directory: str) -> bool:
    """Say whether a process, by its folder in /proc, is the service's."""
    try:
        if directory.encode() in (process / "environ").read_bytes():
            return True
        if not (process / "cmdline").read_bytes().startswith(b"ray::"):
            return False
        return any(
            os.readlink(link).startswith(directory + "/") for link in (process / "fd").iterdir()
        )
    except OSError:
        return False  # gone meanwhile, or another user's


def processes(directory: str) -> list[int]:
    """List the service's processes but the one that started this; without /proc, none."""
    ours = {str(os.getpid()), str(os.getppid())}
    return [
        int(process.name)
        for process in Path("/proc").glob("[0-9]*")
        if process.name not in ours and belongs(process, directory)
    ]


def keep(directory: Path, kept: Path) -> None:
    """Leave the logs of this run alone in a folder; where that fails, those of an earlier one."""
    if not (directory / LOGS).is_dir():
        return  # Ray was never started
    ours = kept / directory.name
    try:
        shutil.copytree(directory / LOGS, ours)
        shutil.copy(directory / DRIVER, ours)
    except OSError:
        shutil.rmtree(ours, ignore_errors=True)
        return
    for other in kept.iterdir():
        if other != ours:
            shutil.rmtree(other, ignore_errors=True)


def sweep(directory: str, kept: str | None = None) -> None:
    """End every process of the service, then remove its directory."""
    deadline = time.monotonic() + PATIENCE_SECONDS
    while processes(directory) and time.monotonic() < deadline:
        time.sleep(0.05)
    for _ in range(ROUNDS):
        left = processes(directory)
        if not left:
            break
        for pid in left:
            try:
                os.kill(pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
        time.sleep(0.05)
    if kept:
        keep(Path(directory), Path(kept))
    shutil.rmtree(directory, ignore_errors=True)


if __name__ == "__main__":
    sys.stdin.read()
    sweep(*sys.argv[1:])
