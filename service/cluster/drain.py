"""Drain HAProxy through its admin socket before Ray ends it.

    refuse    HAProxy itself answers new requests with 503; those with a replica finish
    shut      no connection is accepted any more; the accepted ones get their answer

In between, the application goes. At the end Ray kills HAProxy with all connections it still has.
"""

import ctypes
import socket
import struct
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from service.cluster.haproxy import STOPPING_FILE

REFUSING_BACKEND = "default_backend"  # HAProxy's, in which it answers 503 by itself
# What HAProxy sends of its sockets: their number, and then up to 252 at once with their names
COUNT_BYTES, NAME_BYTES, MOST_SOCKETS = 4, 65536, 252
TCPI_UNACKED = 24  # where struct tcp_info (linux/tcp.h) has, for a socket that listens, its backlog
LAST_SECONDS = 1.0  # to answer the connections that were accepted last
POLL_SECONDS = 0.02  # between two checks of what is waited for

# A filter of the kernel's (linux/filter.h) for a socket that listens: a SYN is dropped, all else
# passes. A client that has shaken hands is still accepted; one that has not retries and is refused.
SYN, FLAGS = 0x02, 13  # the flag, and the byte of a TCP header that holds it
DROP_SYN = (
    (0x30, 0, 0, FLAGS),  # load the byte
    (0x45, 0, 1, SYN),  # the next instruction if the flag is set, else the one after
    (0x06, 0, 0, 0),  # drop
    (0x06, 0, 0, 0xFFFFFFFF),  # pass
)
SO_ATTACH_FILTER = 26  # <asm-generic/socket.h>


@dataclass(frozen=True)
class Frontend:
    """The HAProxy of a service with a Ray of its own.

    Args:
        directory: where Ray keeps HAProxy's files, in a folder for the node.
        port: of the service.
    """

    directory: Path
    port: int

    def refuse(self, seconds: float) -> None:
        """Answer new requests with 503, and give those with a replica some seconds to finish."""
        with suppress(OSError):  # no HAProxy: it died, or the start failed before
            flag = self._node_folder() / STOPPING_FILE
            flag.write_text(STOPPING_FILE)
            self._send_command(f"add acl {flag} {STOPPING_FILE}")
            wait_until(lambda: not self._busy_backends() - {REFUSING_BACKEND}, seconds)

    def close_listener(self) -> None:
        """Accept no more connections, and wait until the accepted ones have their answer."""
        with suppress(OSError), self._listening_socket() as listener:
            with suppress(PermissionError):  # some kernels, of 6.18 one, let root alone do that
                drop_syn(listener)
            wait_until(lambda: not (count_backlog(listener) or self._busy_backends()), LAST_SECONDS)

    def replace_certificate(self, path: Path, pem: bytes) -> None:
        """Make HAProxy use another certificate for new connections.

        Args:
            path: the file of the certificate that HAProxy read at its start.
            pem: the new certificate and key.

        Raises:
            OSError: HAProxy is not there, or does not take it.
        """
        for command in (f"set ssl cert {path} <<\n{pem.decode()}", f"commit ssl cert {path}"):
            answer = self._send_command(command)
        if "Success" not in answer:
            raise OSError(f"HAProxy did not take the certificate: {' '.join(answer.split())}")

    def count_requests(self) -> int:
        """Return how many requests are with a replica; 0 where no HAProxy runs."""
        with suppress(OSError):
            counts = self._count_by_backend()
            return sum(count for name, count in counts.items() if name != REFUSING_BACKEND)
        return 0

    def _busy_backends(self) -> set[str]:
        """Return the names of HAProxy's backends that hold requests."""
        return {name for name, count in self._count_by_backend().items() if count}

    def _count_by_backend(self) -> dict[str, int]:
        """Return how many requests each backend of HAProxy's holds, by its name."""
        rows = (line.split(",") for line in self._send_command("show stat").splitlines())
        return {row[0]: int(row[4]) for row in rows if row[1:2] == ["BACKEND"]}

    def _send_command(self, command: str) -> str:
        """Send a command to HAProxy's admin socket and return the answer."""
        with self._connect_admin() as admin:
            admin.sendall(f"{command}\n".encode())
            with admin.makefile("r") as answer:
                return answer.read()

    def _listening_socket(self) -> socket.socket:
        """Return the socket on which HAProxy accepts connections; its successors inherit it."""
        with self._connect_admin() as admin:
            admin.sendall(b"_getsocks\n")
            admin.recv(COUNT_BYTES)
            _, descriptors, _, _ = socket.recv_fds(admin, NAME_BYTES, MOST_SOCKETS)
        sockets = [socket.socket(fileno=descriptor) for descriptor in descriptors]
        ours = [sock for sock in sockets if sock.getsockname()[1:2] == (self.port,)]
        for sock in sockets:
            if sock not in ours:
                sock.close()
        if not ours:
            raise OSError(f"HAProxy does not listen on port {self.port}")
        return ours[0]

    @contextmanager
    def _connect_admin(self) -> Iterator[socket.socket]:
        """Yield a connection to the admin socket of the HAProxy that runs now.

        Raises:
            OSError: there is none.
        """
        with socket.socket(socket.AF_UNIX) as admin:
            admin.settimeout(LAST_SECONDS)
            admin.connect(str(self._node_folder() / "admin"))
            yield admin

    def _node_folder(self) -> Path:
        """Return the folder of HAProxy's files, the only one: this Ray has one node.

        Raises:
            FileNotFoundError: HAProxy was never started.
        """
        for admin in self.directory.glob("*/admin"):
            return admin.parent
        raise FileNotFoundError(f"no HAProxy in {self.directory}")


def drop_syn(listener: socket.socket) -> None:
    """Make the kernel drop the first packet (SYN) of further connections."""
    code = ctypes.create_string_buffer(b"".join(struct.pack("HBBI", *row) for row in DROP_SYN))
    program = struct.pack("HP", len(DROP_SYN), ctypes.addressof(code))
    listener.setsockopt(socket.SOL_SOCKET, SO_ATTACH_FILTER, program)


def count_backlog(listener: socket.socket) -> int:
    """Return the number of connections that have shaken hands and are not accepted yet."""
    info = listener.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 32)
    (waiting,) = struct.unpack_from("I", info, TCPI_UNACKED)
    return int(waiting)


def wait_until(done: Callable[[], bool], seconds: float) -> None:
    """Wait until `done` returns True twice in a row, or the time is up."""
    deadline, times = time.monotonic() + seconds, 0
    while times < 2 and time.monotonic() < deadline:
        times = times + 1 if done() else 0
        time.sleep(POLL_SECONDS)
