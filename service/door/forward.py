"""Requests whose `model` lies beyond HAProxy's buffer, sent on to the model that they name.

HAProxy leads such a request to another model, mostly the one at the root, and tells its replica,
which has read it anyway, the names of all. The replica sends it back through HAProxy, once, with
the name in a header, and passes on the answer as it comes. It is counted where it is answered.
"""

import asyncio
import importlib
import io
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

from pydantic_core import from_json

from service.cluster.choose_model import FORWARDED_HEADER, MODEL_HEADER, NAMES_HEADER, read_names
from service.door.request import DEADLINE, Request
from service.pipeline.find.names import find_name, unknown_model
from service.shapes.call import Reply
from service.shapes.record import REQUEST_ID
from service.tables.refusals import Refused

if TYPE_CHECKING:  # a service of one model, which forwards nothing, never imports it
    import aiohttp

# What belongs to one connection
NOT_PASSED = frozenset(("connection", "keep-alive", "te", "transfer-encoding", "upgrade"))
OF_BODY = frozenset(("content-encoding", "content-length"))  # as it came: it may have been decoded
# What aiohttp would say for a client that does not
ADDED = ("accept", "accept-encoding", "content-type", "user-agent")


class Forwarder:
    """Sends a request through HAProxy to another model of this address, and returns its answer.

    Args:
        front: the address of this node's HAProxy.
        own: what requests may call this replica's model.
    """

    def __init__(self, front: str, own: Sequence[str]) -> None:
        self._front, self._own = front, own
        self._session: aiohttp.ClientSession | None = None

    def find_elsewhere(self, request: Request, named: str | None) -> str | None:
        """Return the other model of this address that a request names; None if it names none.

        HAProxy leads by `model` also on routes that ignore it, so there it counts here, too.

        Args:
            named: the `model` of its body.

        Raises:
            Refused: no model has the name, or HAProxy reads another one in the request.
        """
        told = request.headers.get(NAMES_HEADER)
        if told is None:
            return None
        if named is None:
            named = request.headers.get(MODEL_HEADER)
        if named is None:
            return None
        name = find_name(named, names := read_names(told))
        if name in self._own:
            return None
        if FORWARDED_HEADER in request.headers:
            raise unknown_model(names)
        return name

    async def forward(self, request: Request, body: bytes, model: str) -> Reply:
        """Return the answer of another model.

        Raises:
            Refused: HAProxy cannot be reached.
        """
        if self._session is None:  # once, while the loop goes on to serve
            await asyncio.to_thread(importlib.import_module, "aiohttp")
        import aiohttp

        if self._session is None:  # in the loop that serves
            # HAProxy is on this machine, and its certificate made for the name that clients use
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(limit=0, ssl=False),
                auto_decompress=False,
                skip_auto_headers=ADDED,
                timeout=aiohttp.ClientTimeout(total=None),  # the door ends what is overdue
            )
        query = f"?{request.query.decode('latin-1')}" if request.query else ""
        left = request.record.start + request.timeout - time.monotonic()
        headers = {
            name: value
            for name, value in request.headers.items()
            if _is_passed(name) and name not in OF_BODY
        }
        headers |= {
            MODEL_HEADER: model,
            FORWARDED_HEADER: "1",
            DEADLINE: str(max(int(left * 1000), 0)),
            REQUEST_ID: request.id,
        }
        request.sent_on = True
        try:
            answer = await self._session.post(
                f"{self._front}{request.path}{query}", data=io.BytesIO(body), headers=headers
            )
        except aiohttp.ClientError:
            request.sent_on = False
            raise Refused("not_ready", retry_after=1) from None
        stream = _read_pieces(answer)
        await anext(stream)
        told = {name: value for name, value in answer.headers.items() if _is_passed(name)}
        return Reply(status=answer.status, headers=told, stream=stream)

    async def close(self) -> None:
        """Close the connections."""
        if self._session:
            await self._session.close()


async def _read_pieces(answer: "aiohttp.ClientResponse") -> AsyncGenerator[bytes]:
    """Yield nothing, so that from here on its end closes the answer, then its pieces as they come.

    Raises:
        ClientError: it breaks off.
    """
    async with answer:
        yield b""
        async for piece in answer.content.iter_any():
            yield piece


def read_model(body: bytes) -> str | None:
    """Return `model` of a JSON body, as text if it is none; None where there is none."""
    try:
        document = from_json(body)
    except ValueError:  # which the route refuses in its own words
        return None
    named = document.get("model") if isinstance(document, dict) else None
    return named if named is None else str(named)


def _is_passed(header: str) -> bool:
    """Tell whether a header is of the request or answer, and not of one connection."""
    return header.lower() not in NOT_PASSED
