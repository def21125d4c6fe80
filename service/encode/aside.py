"""Work that no lane does, in a thread of its own: the cores belong to the model."""

import asyncio
import time
from collections.abc import Callable, Generator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from service.refusals import Refused

Result = TypeVar("Result")
Steps = Generator[None, None, Result]  # pauses after each bounded piece of work

MOST_WAITING = 16  # requests at once, where they are counted; what they ask for waits in memory


class Aside:
    """One queue for work of one kind; who waits takes turns, a step each.

    Not in a lane: it says nothing of the model's speed, which admission goes by.

    Args:
        most: what may wait, in units of the caller's; one request may be larger alone.
    """

    def __init__(self, most: int = MOST_WAITING) -> None:
        self._most, self.waiting = most, 0
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="aside")

    async def run(self, steps: Steps[Result], deadline: float, size: int = 1) -> Result:
        """Wait for all steps.

        Who gives up, or is late, leaves after the step that runs: until then its place is taken.

        Args:
            deadline: when the result must be there, on time.monotonic's clock.
            size: of this work, as `most` counts.

        Raises:
            Refused: too much waits, or it is not done in time.
        """
        if self.waiting and self.waiting + size > self._most:
            raise Refused("overloaded", retry_after=1)
        self.waiting += size
        over = asyncio.Event()
        task = asyncio.create_task(self._take(steps, over))
        task.add_done_callback(lambda _: self._leave(size))
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                result: Result = (await asyncio.shield(task))[0]
                return result
        except TimeoutError:
            raise Refused("deadline_exceeded") from None
        finally:
            over.set()

    async def _take(self, steps: Steps[Result], over: asyncio.Event) -> list[Result]:
        """Take one step after the other until it is over; the result, or nothing."""
        loop = asyncio.get_running_loop()
        done: list[Result] = []
        while not done and not over.is_set():
            done = await loop.run_in_executor(self._thread, _step, steps)
        return done

    def _leave(self, size: int) -> None:
        self.waiting -= size


def once(work: Callable[[], Result]) -> Steps[Result]:
    """Work of one step."""
    return work()
    yield


def _step(steps: Steps[Result]) -> list[Result]:
    """Take one step; the result behind the last."""
    try:
        next(steps)
    except StopIteration as end:
        return [end.value]
    return []
