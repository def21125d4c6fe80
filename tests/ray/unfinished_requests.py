"""Connections that begin requests and end none.

`python tests/ray/unfinished_requests.py PORT EACH` holds so many of each kind until its standard
input ends, then prints how they ended, and the seconds that it had of the cores. It is a process of
its own behind all others, and cheap, so that it takes nothing from what is measured beside it.
"""

import json
import os
import resource
import select
import socket
import subprocess
import sys
import time
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

BODY = json.dumps({"inputs": ["All is well"], "encoding": "base64"}).encode()
HEAD = (
    b"POST /v1/encode HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    b"Content-Length: %d\r\n\r\n"
)
REQUEST = HEAD % len(BODY) + BODY
# What clients that never end a request send first: nothing, half a head, half a body
BEGINNINGS = (b"", REQUEST[:40], HEAD % 1009 + BODY)
EVERY_SECONDS = 1.0  # a slow one sends a byte, and one that was closed comes again
NICE = 10


class Place(NamedTuple):
    """One of them: what it sends first, and its connection once it has one."""

    beginning: bytes
    connection: socket.socket | None = None


class UnfinishedRequests:
    """Connections that are opened again when they are closed."""

    def __init__(self, port: int, each: int) -> None:
        self._address, self._poll = ("127.0.0.1", port), select.epoll()
        self._open: dict[int, Place] = {}
        now, count = time.monotonic(), len(BEGINNINGS) * each
        self._due = deque(
            (now + EVERY_SECONDS * number / count, Place(BEGINNINGS[number % len(BEGINNINGS)]))
            for number in range(count)
        )
        self.told = Counter[str]()

    def hold(self) -> None:
        """Be there until the standard input ends."""
        self._poll.register(sys.stdin, select.EPOLLIN)
        while True:
            for descriptor, event in self._poll.poll(0.01):
                if descriptor == sys.stdin.fileno():
                    return
                self._notice(self._open[descriptor], event)
            while self._due and self._due[0][0] <= time.monotonic():
                self._act(self._due.popleft()[1])

    def _act(self, place: Place) -> None:
        """Connect, or send a byte more."""
        connection = place.connection
        if connection is None:
            connection = socket.socket()
            connection.setblocking(False)
            connection.connect_ex(self._address)
            self._poll.register(connection, select.EPOLLOUT)
            self._open[connection.fileno()] = Place(place.beginning, connection)
        elif connection.fileno() >= 0:
            self._send(place, b"x")

    def _notice(self, place: Place, event: int) -> None:
        """It is connected, was told something, or is closed."""
        assert place.connection is not None
        if event == select.EPOLLOUT:
            self._poll.modify(place.connection, select.EPOLLIN)
            if place.beginning:
                self._send(place, place.beginning)
            return
        try:
            self._leave(place, place.connection.recv(12).decode() or "closed")
        except OSError:
            self._leave(place, "reset")

    def _send(self, place: Place, sent: bytes) -> None:
        assert place.connection is not None
        try:
            place.connection.send(sent)
        except OSError:
            return self._leave(place, "reset")
        self._due.append((time.monotonic() + EVERY_SECONDS, place))

    def _leave(self, place: Place, why: str) -> None:
        assert place.connection is not None
        self.told[why] += 1
        del self._open[place.connection.fileno()]
        place.connection.close()
        self._due.append((time.monotonic() + EVERY_SECONDS, Place(place.beginning)))


@contextmanager
def unfinished_requests(port: int, each: int) -> Iterator[dict[str, float]]:
    """Hold such connections meanwhile; how they ended is known at the end."""
    told: dict[str, float] = {}
    command = [sys.executable, __file__, str(port), str(each)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        try:
            yield told
        finally:
            told.update(json.loads(process.communicate()[0]))


if __name__ == "__main__":
    os.nice(NICE)
    most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    held = UnfinishedRequests(int(sys.argv[1]), int(sys.argv[2]))
    held.hold()
    print(json.dumps({**held.told, "seconds of a core": sum(os.times()[:2])}))
