"""Keep-alive clients over raw sockets, which know exactly what they sent and what came back."""

import asyncio
import json
import time
from collections import Counter
from dataclasses import dataclass, field

BODY = json.dumps({"inputs": ["All is well"], "encoding": "base64"}).encode()
PAUSE_SECONDS = 0.02  # between head and body, when they go apart


class Lost(Exception):
    """A request that got no whole answer."""


@dataclass
class Journal:
    """What the clients saw."""

    codes: Counter[int] = field(default_factory=Counter)
    replicas: Counter[str] = field(default_factory=Counter)
    lost: list[str] = field(default_factory=list)
    data: set[bytes] = field(default_factory=set)
    seconds: list[float] = field(default_factory=list)


class Connection:
    """One keep-alive connection."""

    def __init__(self, port: int) -> None:
        self._port = port
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def request(
        self, body: bytes, *, apart: bool = False
    ) -> tuple[int, dict[str, str], bytes]:
        """POST /v1/encode; status, headers and body of the answer."""
        if self._writer is None or self._writer.is_closing():
            self._reader, self._writer = await asyncio.open_connection("127.0.0.1", self._port)
        assert self._reader is not None
        head = (
            f"POST /v1/encode HTTP/1.1\r\nHost: h\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n"
        ).encode()
        try:
            if apart:
                self._writer.write(head)
                await asyncio.sleep(PAUSE_SECONDS)
                self._writer.write(body)
            else:
                self._writer.write(head + body)
            return await self._answer(self._reader)
        except (OSError, asyncio.IncompleteReadError) as error:
            self.close()
            raise Lost(repr(error)) from error

    async def _answer(self, reader: asyncio.StreamReader) -> tuple[int, dict[str, str], bytes]:
        lines = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        pairs = (line.split(":", 1) for line in lines[1:] if line)
        headers = {name.lower(): value.strip() for name, value in pairs}
        body = await reader.readexactly(int(headers["content-length"]))
        if headers.get("connection") == "close":
            self.close()
        return int(lines[0].split()[1]), headers, body

    def close(self) -> None:
        """Forget the connection; the next request opens another."""
        if self._writer is not None:
            self._writer.close()
            self._writer = None


async def client(port: int, number: int, until: float, journal: Journal) -> None:
    """Send the same request over and over, every third one in two parts."""
    connection, sent = Connection(port), number
    while time.monotonic() < until:
        sent += 1
        start = time.monotonic()
        try:
            status, headers, body = await connection.request(BODY, apart=sent % 3 == 0)
        except Lost as error:
            journal.lost.append(str(error))
            continue
        journal.seconds.append(time.monotonic() - start)
        journal.codes[status] += 1
        journal.replicas[headers.get("x-headlight-replica", "")] += 1
        if status == 200:
            journal.data.add(json.dumps(json.loads(body)["data"]).encode())
    connection.close()


async def clients(port: int, count: int, seconds: float) -> Journal:
    """Run keep-alive clients side by side; what they saw."""
    journal, until = Journal(), time.monotonic() + seconds
    await asyncio.gather(*(client(port, number, until, journal) for number in range(count)))
    return journal
