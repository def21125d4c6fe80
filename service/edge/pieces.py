"""An answer that leaves piece by piece, each freed when its reader has taken it."""

from collections import deque
from collections.abc import Mapping, Sequence

from starlette.responses import Response
from starlette.types import Receive, Scope, Send

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
