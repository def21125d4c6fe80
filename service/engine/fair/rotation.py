"""A lock and a thread that serve one request at a time, for which API keys take turns.

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


class FairLock:
    """A lock of one event loop for which API keys take turns; within a key, first come."""

    def __init__(self) -> None:
        self._held = False
        self._lines = dict[str, deque[asyncio.Future[None]]]()  # by key, in order of their turn

    async def acquire(self) -> Literal[True]:
        """Wait until this task holds the lock."""
        if self._held:
            await self._wait_for_turn()
        self._held = True
        return True

    def release(self) -> None:
        """Release the lock, and hand it to the first waiting task of the next key."""
        self._held = False
        while self._lines and not self._held:
            key = next(iter(self._lines))
            line = self._lines.pop(key)
            turn = line.popleft()
            if line:
                self._lines[key] = line
            if not turn.done():  # else the task was cancelled
                turn.set_result(None)
                self._held = True

    async def _wait_for_turn(self) -> None:
        """Wait in the line of this task's key until `release` hands over the lock."""
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(OWNER_KEY.get(), deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release()  # the lock was handed over just as this task was cancelled
            raise


class FairThread:
    """One thread that runs one call at a time, for which API keys take turns.

    Between two calls the event loop runs once. A call that holds the interpreter's lock blocks the
    loop at each read from a socket: with hundreds of clients and call after call, for seconds.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread, self._turn = ThreadPoolExecutor(1, name), FairLock()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run a call in the thread when its turn comes, and return its result."""
        await self._turn.acquire()
        future = asyncio.get_running_loop().run_in_executor(self._thread, work)
        future.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(future)  # a cancelled caller does not stop a running call
