"""The requests under way: those whose time is up are cancelled, and how late the loop is.

Garbage is collected once none is under way. Nearly all of what a request takes goes without it, and
a collection among what a few large ones hold stops the loop for 20 to 160 ms. Meanwhile only the
youngest is, at each look: gradients leave cycles behind, a hundred thousand objects in ten seconds.
"""

import asyncio
import gc
import time

from service.door.request import Request

OVERDUE_SECONDS = 0.25  # between two checks for requests whose time is up
GARBAGE_SECONDS = 10.0  # between two collections
YOUNG_OBJECTS = 60_000  # that a look goes through at most: some 20 ms, most often 1 ms
MOST_GARBAGE_SECONDS = 600.0  # of a replica that never rests


class UnderWay:
    """Holds the requests under way, and looks at them from time to time while there are any.

    Attributes:
        late: seconds that the event loop was late at the last look.
    """

    def __init__(self) -> None:
        self._requests, self.late = set[Request](), 0.0
        self._timer: asyncio.TimerHandle | None = None
        self._due = 0.0  # when the next look is
        self._collected = time.monotonic()

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
            if time.monotonic() - self._collected > GARBAGE_SECONDS:
                self._collect()

    def _look(self) -> None:
        """Cancel the requests whose time is up, note how late the loop is; look again later."""
        now = time.monotonic()
        self.late = now - self._due
        for request in self._requests:
            if request.until < now and not request.overdue:
                request.overdue = True
                request.task.cancel()
        if gc.get_count()[0] < YOUNG_OBJECTS:
            gc.collect(0)
        if now - self._collected > MOST_GARBAGE_SECONDS:
            self._collect()
        self._due = now + OVERDUE_SECONDS
        self._timer = asyncio.get_running_loop().call_later(OVERDUE_SECONDS, self._look)

    def _collect(self) -> None:
        gc.collect()
        self._collected = time.monotonic()
