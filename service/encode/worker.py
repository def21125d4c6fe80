"""Work that no lane does, in a thread of its own: the cores belong to the model."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple, TypeVar

from service.engine.fair.rotation import OWNER_KEY, FairThread, fits_fairly
from service.observe.record import Record
from service.refusals import Refused

Result = TypeVar("Result")
Steps = Generator[None, None, Result]  # pauses after each bounded piece of work

# Fewer characters than this are tokenized on the spot; a thread costs more than they do.
THREAD_CHARACTERS = 4096
MOST_WAITING = 16  # requests at once, where they are counted; what they ask for waits in memory


class Worker:
    """One queue for work of one kind; who waits takes turns, a step each, and so do keys.

    Where there are several, none takes all the room.

    Not in a lane: it says nothing of the model's speed, which admission goes by.

    Args:
        most: what may wait, in units of the caller's; one request may be larger alone.
    """

    def __init__(self, most: float = MOST_WAITING) -> None:
        self._most, self.waiting = most, 0
        self._own = Counter[str]()  # by key
        self._thread = FairThread("worker")

    async def run(
        self, steps: Steps[Result], deadline: float, size: int = 1, record: Record | None = None
    ) -> Result:
        """Wait for all steps.

        Who gives up, or is late, leaves after the step that runs: until then its place is taken.

        Args:
            deadline: when the result must be there, on time.monotonic's clock.
            size: of this work, as `most` counts.
            record: of its request, which is let in once: from then on it waits and is not refused.

        Raises:
            Refused: too much waits, or it is not done in time.
        """
        owner = OWNER_KEY.get()
        if not (record and record.admitted) and not self._has_room(owner, size):
            raise Refused("overloaded", retry_after=1)
        if record:
            record.admitted = True
        self._count_waiting(owner, size)
        over = asyncio.Event()
        task = asyncio.create_task(self._take_steps(steps, over))
        task.add_done_callback(lambda _: self._count_waiting(owner, -size))
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                result: Result = (await asyncio.shield(task))[0]
                return result
        except TimeoutError:
            raise Refused("deadline_exceeded") from None
        finally:
            over.set()

    async def _take_steps(self, steps: Steps[Result], over: asyncio.Event) -> list[Result]:
        """Take one step after the other until it is over; the result, or nothing."""
        done: list[Result] = []
        while not done and not over.is_set():
            done = await self._thread.run(partial(_take_step, steps))
        return done

    def _has_room(self, owner: str, size: int) -> bool:
        """Tell whether so much more of a key's may wait; where nothing waits, it always may."""
        own = self._own[owner] if owner else None
        return not self.waiting or fits_fairly(size, self._most - self.waiting, own)

    def _count_waiting(self, owner: str, size: int) -> None:
        """Count so much more as waiting."""
        self.waiting += size
        self._own[owner] += size


class Workers(NamedTuple):
    """Those of questions: for texts, and for sums."""

    texts: Worker
    sums: Worker


def one_step(work: Callable[[], Result]) -> Steps[Result]:
    """Make one step of a piece of work."""
    return work()
    yield


def _take_step(steps: Steps[Result]) -> list[Result]:
    """Take one step; the result behind the last."""
    try:
        next(steps)
    except StopIteration as end:
        return [end.value]
    return []
