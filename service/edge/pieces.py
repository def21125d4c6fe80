"""An answer that leaves piece by piece, each freed when its reader has taken it."""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence

from starlette.responses import Response
from starlette.types import Message, Receive, Scope, Send

from service.encode.answer import PIECE_BYTES
from service.memory import Hold


class InPieces(Response):
    """A response whose body is never one string.

    Args:
        pieces: of the body, end to end.
        hold: of its request: from now on it holds the pieces, and no arrays.
    """

    def __init__(
        self, pieces: Sequence[bytes], hold: Hold, headers: Mapping[str, str], media_type: str
    ) -> None:
        length = sum(map(len, pieces))
        hold.keep("arrays", 0)
        hold.keep("answers", length)
        super().__init__(b"", 200, {**headers, "content-length": str(length)}, media_type)
        self._pieces = deque(pieces)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send it."""
        head = {"status": self.status_code, "headers": self.raw_headers}
        await send({"type": "http.response.start", **head})
        while self._pieces:
            body = self._pieces.popleft()
            await send(
                {"type": "http.response.body", "body": body, "more_body": bool(self._pieces)}
            )


def pieces(message: Message, hold: Hold) -> Iterator[Message]:
    """A message's body, cut into messages that each wait for the reader."""
    body, more = message.get("body", b""), message.get("more_body", False)
    if len(body) > PIECE_BYTES:
        hold.keep("answers", max(len(body), hold.bytes["answers"]))
    for first in range(0, len(body) or 1, PIECE_BYTES):
        end = first + PIECE_BYTES
        yield {**message, "body": body[first:end], "more_body": more or end < len(body)}
