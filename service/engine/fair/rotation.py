"""Keys take turns at what serves one request at a time: a thread, or a lock.

The first in line would keep all others waiting for as long as its line is.
"""

import asyncio
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import ContextVar
from typing import Literal, TypeVar

Result = TypeVar("Result")

OWNER_KEY = ContextVar(
    "owner", default=""
)  # name of the key whose request a task is; of one key, none
KEY_PART = 2  # a key may have this many times the room that is left, so that another finds some


def fits_fairly(size: int, left: float, own: int | None) -> bool:
    """Tell whether so much more fits into the room that is left, and leaves some to other keys.

    One key alone gets two thirds of a room, two that always ask two fifths each. Source: Choudhury
    and Hahne 1998, "Dynamic Queue Length Thresholds for Shared-Memory Packet Switches".

    Args:
        own: what the key has of the room; None where there are no other keys.
    """
    return size <= left and (own is None or own + size <= KEY_PART * left)


class FairLock:
    """Held by one request at a time, in its own event loop; each key's line first come."""

    def __init__(self) -> None:
        self._held = False
        self._lines = dict[str, deque[asyncio.Future[None]]]()  # in order of their turn

    async def acquire(self) -> Literal[True]:
        """Wait for a turn."""
        if self._held:
            await self._wait_for_turn()
        self._held = True
        return True

    def release(self) -> None:
        """Release the lock, and hand it to the first that waits of the next key."""
        self._held = False
        while self._lines and not self._held:
            name = next(iter(self._lines))
            line = self._lines.pop(name)
            turn = line.popleft()
            if line:
                self._lines[name] = line
            if not turn.done():  # else it has given up
                turn.set_result(None)
                self._held = True

    async def _wait_for_turn(self) -> None:
        turn = asyncio.get_running_loop().create_future()
        self._lines.setdefault(OWNER_KEY.get(), deque()).append(turn)
        try:
            await turn
        except asyncio.CancelledError:
            if not turn.cancelled():
                self.release()  # its turn came as it gave up
            raise


class FairThread:
    """One thread for work that waits for it.

    Between two works the event loop goes round. Work that holds the interpreter stops it whenever
    it reads from a socket: with hundreds of clients, and work after work, for seconds.

    Args:
        name: of the thread.
    """

    def __init__(self, name: str) -> None:
        self._thread, self._turn = ThreadPoolExecutor(1, name), FairLock()

    async def run(self, work: Callable[[], Result]) -> Result:
        """Run work in turn."""
        await self._turn.acquire()
        done = asyncio.get_running_loop().run_in_executor(self._thread, work)
        done.add_done_callback(lambda _: self._turn.release())
        return await asyncio.shield(done)  # who gives up cannot stop what runs
