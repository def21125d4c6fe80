"""Drain HAProxy through its admin socket before Ray ends it.

    refuse    new requests are answered 503 by HAProxy itself; those with a replica finish
    shut      no connection is accepted any more; those that were get their answer

In between the application goes. Ray kills HAProxy at the end, with whatever it then holds.
"""

import socket
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

from service.cluster.haproxy import FLAG

REFUSING = "default_backend"  # which answers 503 by itself
SECONDS = 1.0  # for the connections that were accepted last
PAUSE_SECONDS = 0.02  # between two looks


class Frontend:
    """The HAProxy of a service with a Ray of its own."""

    def __init__(self, directory: Path) -> None:
        """Name the directory where Ray keeps its files, in a folder for the node."""
        self._directory = directory

    def refuse(self, seconds: float) -> None:
        """Have new requests answered 503, and give those with a replica so long to finish."""
        with suppress(OSError):  # no HAProxy: it died, or the start failed before
            flag = self._node() / FLAG
            flag.write_text(FLAG)
            self._tell(f"add acl {flag} {FLAG}")
            wait(lambda: not self._busy() - {REFUSING}, seconds)

    def shut(self) -> None:
        """Accept nobody, and let those who were accepted have their answer."""
        with suppress(OSError):
            self._tell("disable frontend http_frontend")
            wait(lambda: not self._busy(), SECONDS)

    def _busy(self) -> set[str]:
        """Which backends hold requests."""
        rows = (line.split(",") for line in self._tell("show stat").splitlines())
        return {row[0] for row in rows if row[1:2] == ["BACKEND"] and row[4] != "0"}

    def _tell(self, command: str) -> str:
        """Tell the HAProxy that runs now, and return what it says.

        Raises:
            OSError: there is none.
        """
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(SECONDS)
            admin.connect(str(self._node() / "admin"))
            admin.sendall(f"{command}\n".encode())
            with admin.makefile("r") as answer:
                return answer.read()

    def _node(self) -> Path:
        """The folder of HAProxy's files, the only one: this Ray has one node.

        Raises:
            FileNotFoundError: HAProxy was never started.
        """
        for admin in self._directory.glob("*/admin"):
            return admin.parent
        raise FileNotFoundError(f"no HAProxy in {self._directory}")


def wait(done: Callable[[], bool], seconds: float) -> None:
    """Wait until it is done, twice in a row, or the time is over."""
    deadline, times = time.monotonic() + seconds, 0
    while times < 2 and time.monotonic() < deadline:
        times = times + 1 if done() else 0
        time.sleep(PAUSE_SECONDS)
