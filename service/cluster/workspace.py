"""Where what Ray writes goes: a private directory, and a file instead of the terminal."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from service.cluster import sweep

STOP_SECONDS = 10  # for the sweeper, beyond which we leave it alone


def kept() -> Path | None:
    """The folder where the last run's logs stay, by the XDG Base Directory Specification.

    None where it cannot be made, as on a read-only disk.
    """
    named = Path(os.environ.get("XDG_STATE_HOME", ""))
    try:
        home = named if named.is_absolute() else Path.home() / ".local" / "state"
        folder = home / "headlight" / "logs"
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no disk to write on, or a user without a home
        return None
    return folder if os.access(folder, os.W_OK) else None


@contextmanager
def directory(logs: Path | None) -> Iterator[Path]:
    """Make a private directory, swept with all processes of the service whatever ends us.

    Args:
        logs: where its logs are kept then.
    """
    # Unix sockets have paths of at most 107 bytes, and TMPDIR may be long.
    path = tempfile.mkdtemp(prefix="headlight-", dir="/tmp")
    command = [sys.executable, "-I", "-S", sweep.__file__, path, *([str(logs)] if logs else [])]
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
def quiet(log: Path) -> Iterator[None]:
    """Send what Ray's libraries print to a file; whoever speaks to the user kept a copy."""
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
