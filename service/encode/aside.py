"""Work that no lane does, in a thread, one request at a time: the cores belong to the model."""

import asyncio
import time
from collections.abc import Callable
from typing import TypeVar

from service.refusals import Refused

Result = TypeVar("Result")

MOST_WAITING = 16  # requests at once; what they ask for waits in memory


class Aside:
    """One queue for work of one kind.

    Not in a lane: it says nothing of the model's speed, which admission goes by.
    """

    def __init__(self) -> None:
        self._waiting, self._turn = 0, asyncio.Lock()

    async def run(self, work: Callable[[], Result], deadline: float) -> Result:
        """Wait for a turn, then for the work.

        Args:
            deadline: when the result must be there, on time.monotonic's clock.

        Raises:
            Refused: too many wait, or it is not done in time.
        """
        if self._waiting >= MOST_WAITING:
            raise Refused("overloaded", retry_after=1)
        self._waiting += 1
        try:
            async with asyncio.timeout(deadline - time.monotonic()), self._turn:
                return await asyncio.to_thread(work)
        except TimeoutError:
            raise Refused("deadline_exceeded") from None
        finally:
            self._waiting -= 1
