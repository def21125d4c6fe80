"""The requests under way: those whose time is up are cancelled, and how late the loop is."""

import asyncio
import time

from service.edge.request import Request

OVERDUE_SECONDS = 0.25  # between two checks for requests whose time is up


class UnderWay:
    """Holds the requests under way, and looks at them from time to time while there are any.

    Attributes:
        late: seconds that the event loop was late at the last look.
    """

    def __init__(self) -> None:
        self._requests, self.late = set[Request](), 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the next look is

    def __len__(self) -> int:
        """Return how many there are."""
        return len(self._requests)

    def add(self, request: Request) -> None:
        """Count a request as under way."""
        self._requests.add(request)
        if self._timer is None:
            self._due = time.monotonic()
            self._look()

    def forget(self, request: Request) -> None:
        """Count a request as no longer under way; after the last one nothing is looked at."""
        self._requests.discard(request)
        if not self._requests and self._timer:
            self._timer.cancel()
            self._timer = None

    def _look(self) -> None:
        """Cancel the requests whose time is up, note how late the loop is, and look again later."""
        now = time.monotonic()
        self.late = now - self._due
        for request in self._requests:
            if request.until < now and not request.overdue:
                request.overdue = True
                request.task.cancel()
        self._due = now + OVERDUE_SECONDS
        self._timer = asyncio.get_running_loop().call_later(OVERDUE_SECONDS, self._look)
