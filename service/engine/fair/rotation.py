"""Keys take turns at what serves one request at a time: a thread, or a lock.

The first in line would keep all others waiting for as long as its line is.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Generic, Literal, TypeVar

Waiter = TypeVar("Waiter")
Result = TypeVar("Result")

OWNER = ContextVar("owner", default="")  # name of the key whose request a task is; of one key, none


class Rotation(Generic[Waiter]):
    """Who waits: a line for each key, each line first come, first served."""

    def __init__(self) -> None:
        self._lines = dict[str, deque[Waiter]]()  # in order of their turn
        self._last = ""  # whose turn was the last

    def __len__(self) -> int:
        return len(self._lines)

    def add(self, waiter: Waiter) -> None:
        """Join the line of the request's key."""
        self._lines.setdefault(OWNER.get(), deque()).append(waiter)

    def next(self) -> Waiter:
        """Tell whose turn it is, of those who wait; not the last one's, if there is another."""
        if self._last in self._lines:
            self._lines[self._last] = self._lines.pop(self._last)
        self._last, line = next(iter(self._lines.items()))
        waiter = line.popleft()
        if not line:
            del self._lines[self._last]
        return waiter


class Lock:
    """Held by one request at a time, in its own event loop."""

    def __init__(self) -> None:
        self._held, self._waiting = False, Rotation[asyncio.Future[None]]()

    async def acquire(self) -> Literal[True]:
        """Wait for a turn."""
        if self._held:
            await self._wait()
        self._held = True
        return True

    def release(self) -> None:
        """End it, and let the next have its own."""
        self._held = False
        while self._waiting and not self._held:
            place = self._waiting.next()
            if not place.done():  # else it has given up
                place.set_result(None)
                self._held = True

    async def _wait(self) -> None:
        place = asyncio.get_running_loop().create_future()
        self._waiting.add(place)
        try:
            await place
        except asyncio.CancelledError:
            if not place.cancelled():
                self.release()  # its turn came as it gave up
            raise


class Thread:
    """One thread for work that waits for it.

    Between two works the event loop goes round. Work that holds the interpreter stops it whenever
    it reads from a socket: with hundreds of clients, and work after work, for seconds.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread, self._turn = ThreadPoolExecutor(1, name), Lock()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run work in turn."""
        await self._turn.acquire()
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(done)  # who gives up cannot stop what runs
