"""The ports of a service: its own, and a block for its Ray and HAProxy."""

import random
import socket
from collections.abc import Iterator
from contextlib import contextmanager

# Ports of one service: a block of its own, below the range from which the kernel takes the
# ports of outgoing connections. The first port of a block stands for the whole.
BLOCKS, BLOCK = range(20_000, 32_000, 1_000), 1_000
STATS, METRICS, FALLBACK, REPLICAS = 1, 2, 3, 10


@contextmanager
def block(without: int) -> Iterator[int]:
    """Hold a block of ports that no other service of this machine holds.

    A shared range would not do: while HAProxy still lists a replica that died, another
    service's replica could take its port, and its health check would pass.

    Args:
        without: a port the block may not contain, the service's own.

    Raises:
        OSError: every block is taken.
    """
    for first in random.sample(BLOCKS, len(BLOCKS)):
        if first <= without < first + BLOCK:
            continue
        with socket.socket() as listener:
            try:
                listener.bind(("127.0.0.1", first))
                for port in range(first + 1, first + REPLICAS):
                    free("127.0.0.1", port)
            except OSError:
                continue
            yield first
            return
    raise OSError(f"no free block of ports in {BLOCKS.start}..{BLOCKS.stop - 1}")


def free(host: str, port: int) -> None:
    """Check that nothing listens on a port, without SO_REUSEPORT, with which Ray would share it.

    Raises:
        OSError: something does, or the host is not this machine's.
    """
    family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
    with socket.socket(family, kind, protocol) as probe:
        # Connections that are closing (TIME_WAIT) do not count as a listener.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        probe.bind(address)
