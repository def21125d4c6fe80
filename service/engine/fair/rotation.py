"""Room, and a thread, for which API keys take turns.

First come, first served would let a key with many requests keep all others waiting.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Literal, TypeVar

Result = TypeVar("Result")

# Name of the API key whose request the current task serves; "" where there are not several keys
OWNER_KEY = ContextVar("owner", default="")
# A key may hold this many times the space that is left free, so that other keys find some
KEY_PART = 2


def fits_fairly(size: int, left: float, own: int | None) -> bool:
    """Tell whether a request fits into a shared space and leaves some of it to other keys.

    One key alone gets two thirds of the space, two busy keys two fifths each. Source: Choudhury
    and Hahne 1998, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches".

    Args:
        size: of the request.
        left: how much of the space is free.
        own: how much of it the request's key holds; None where there are no other keys.
    """
    return size <= left and (own is None or own + size <= KEY_PART * left)


class FairRoom:
    """Room that tasks of one event loop take and give back; those of which it is full wait.

    API keys that wait take turns; within a key, first come. By default it is a lock.

    Args:
        most: how much may be taken at once; a task that wants more is let in alone.

    Attributes:
        taken: how much is.
    """

    def __init__(self, most: float = 1) -> None:
        self.most, self.taken = most, 0
        # by key, in order of their turn: what each task wants, and a future that is done when it
        # has it
        self._lines = dict[str, deque[tuple[int, asyncio.Future[None]]]]()

    @property
    def waiting(self) -> int:
        """Return how many tasks wait."""
        return sum(not turn.done() for line in self._lines.values() for _, turn in line)

    def take_at_once(self, size: int = 1) -> bool:
        """Take room if there is as much and nobody waits for it; False: `wait` for it."""
        if self._lines or not self._fits(size):
            return False
        self._take(size)
        return True

    async def acquire(self) -> Literal[True]:
        """Wait until this task holds the lock."""
        if not self.take_at_once():
            await self.wait(OWNER_KEY.get())
        return True

    def release(self, size: int = 1) -> None:
        """Give back room, and hand it to the first waiting tasks of the next keys."""
        self.taken -= size
        self.hand_on()

    def hand_on(self) -> None:
        """Let the tasks in whose turn it is, as far as there is room."""
        while self._lines:
            key = next(iter(self._lines))
            size, turn = self._lines[key][0]
            if not turn.done():  # else the task was cancelled
                if not self._fits(size):
                    return
                turn.set_result(None)
                self._take(size)
            line = self._lines.pop(key)
            line.popleft()
            if line:
                self._lines[key] = line

    async def wait(self, key: str, size: int = 1) -> None:
        """Wait in the line of a key until `release` hands over room."""
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(key, deque()).append((size, turn))
        try:
            await turn
        except asyncio.CancelledError:
            if turn.cancelled():
                self.hand_on()  # a smaller one behind it may fit
            else:
                self.release(size)  # it was handed over just as this task was cancelled
            raise

    def _fits(self, size: int) -> bool:
        """Tell whether as much is left; of an empty room always."""
        return not self.taken or self.taken + size <= self.most

    def _take(self, size: int) -> None:
        """Count room as taken."""
        self.taken += size


class FairThread:
    """One thread that runs one call at a time, for which API keys take turns.

    Between two calls the event loop runs once. A call that holds the interpreter's lock blocks the
    loop at each read from a socket: with hundreds of clients and call after call, for seconds.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread, self._turn = ThreadPoolExecutor(1, name), FairRoom()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a call in the thread when its turn comes, and return its result."""
        await self._turn.acquire()
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(future)  # a cancelled caller does not stop a running call
