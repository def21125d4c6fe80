"""uvicorn's connections, on which an answer's head and body leave in one write.

uvicorn writes them apart. A replica that is killed between the two leaves its client half an
answer, which HAProxy cannot ask another replica for; before the head's first byte it can.
"""

import asyncio
from typing import Any

from uvicorn import config
from uvicorn.protocols.http.auto import AutoHTTPProtocol


class JoinedWrites:
    """A transport that holds a write back until the next, or for the rest of the loop's turn."""

    def __init__(self, transport: asyncio.Transport) -> None:
        self._transport, self._first = transport, b""
        self._loop = asyncio.get_running_loop()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)

    def write(self, data: bytes) -> None:
        """Send with what is held, or hold: what comes next comes at once, or nothing does."""
        if self._first:
            self._flush(data)
        elif data:
            self._first = data
            self._loop.call_soon(self._flush)

    def close(self) -> None:
        """Send what is held, then close."""
        self._flush()
        self._transport.close()

    def _flush(self, data: bytes = b"") -> None:
        first, self._first = self._first, b""
        if first and not self._transport.is_closing():
            self._transport.writelines((first, data))


class Protocol(AutoHTTPProtocol):  # type: ignore[misc,valid-type]  # which one, uvicorn decides
    """uvicorn's own HTTP on a transport that joins."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Start to serve a connection."""
        super().connection_made(JoinedWrites(transport))  # type: ignore[arg-type]  # a transport but in name


def install() -> None:
    """Have each server that uvicorn starts from now on in this process answer so."""
    config.HTTP_PROTOCOLS["auto"] = f"{__name__}:{Protocol.__name__}"
