"""Threads for work other than the model's, one for each kind: the cores belong to the lanes."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Generator
from functools import partial
from typing import NamedTuple, TypeVar

from service.engine.fair.rotation import OWNER_KEY, FairThread, fits_fairly
from service.shapes.record import Record
from service.tables.refusals import Refused, overloaded

Result = TypeVar("Result")
Steps = Generator[None, None, Result]  # pauses after each bounded piece of work

# Fewer characters than this are tokenized in the event loop, for which a thread would cost more;
# each text takes as long as so many more
THREAD_CHARACTERS, TEXT_CHARACTERS = 4096, 16
MOST_WAITING = 16  # requests that may wait for a worker that counts requests


class Worker:
    """A thread for work of one kind, which requests and API keys take turns at, step by step.

    Where there are several keys, none can fill the whole queue.

    Args:
        most: how much may wait, in units of the caller's; a lone request may be larger.

    Attributes:
        waiting: how much waits or runs, in the same units.
    """

    def __init__(self, most: float = MOST_WAITING) -> None:
        self._most, self.waiting = most, 0
        self._waiting_by_key = Counter[str]()
        self._thread = FairThread("worker")

    async def run(
        self, steps: Steps[Result], deadline: float, size: int = 1, record: Record | None = None
    ) -> Result:
        """Run all steps in the thread and return their result.

        If the caller is cancelled or late, the work ends after the step that runs; until then it
        counts as waiting.

        Args:
            steps: the work, a generator that yields after each step.
            deadline: when the result must be ready, on time.monotonic's clock.
            size: of this work, in the units of `most`.
            record: of its request; once one work of it was admitted, no other is refused.

        Raises:
            Refused: too much waits, or it is not done in time.
        """
        key = OWNER_KEY.get()
        if not (record and record.admitted) and not self._has_room(key, size):
            raise overloaded("queue_full")
        if record:
            record.admitted = True
        self._count_waiting(key, size)
        stopped = asyncio.Event()
        task = asyncio.create_task(self._run_steps(steps, stopped))
        task.add_done_callback(lambda _: self._count_waiting(key, -size))
        try:
            async with asyncio.timeout(deadline - time.monotonic()):
                result: Result = (await asyncio.shield(task))[0]
                return result
        except TimeoutError:
            raise Refused("deadline_exceeded") from None
        finally:
            stopped.set()

    async def _run_steps(self, steps: Steps[Result], stopped: asyncio.Event) -> list[Result]:
        """Run steps until they end or `stopped` is set; return a list of the result, or []."""
        result: list[Result] = []
        while not result and not stopped.is_set():
            result = await self._thread.run(partial(_run_step, steps))
        return result

    def _has_room(self, key: str, size: int) -> bool:
        """Tell whether work of this size may wait too; where nothing waits, any may."""
        own = self._waiting_by_key[key] if key else None
        return not self.waiting or fits_fairly(size, self._most - self.waiting, own)

    def _count_waiting(self, key: str, size: int) -> None:
        """Add a size, or subtract a negative one, to what waits."""
        self.waiting += size
        self._waiting_by_key[key] += size


class Workers(NamedTuple):
    """The workers that questions use."""

    texts: Worker  # tokenizes texts
    sums: Worker  # computes similarities


def is_long(characters: int, texts: int) -> bool:
    """Tell whether so many characters of so many texts are tokenized in a thread."""
    return characters + TEXT_CHARACTERS * texts >= THREAD_CHARACTERS


def one_step(work: Callable[[], Result]) -> Steps[Result]:
    """Return a generator that calls `work` in a single step and returns its result."""
    return work()
    yield  # makes this function a generator


def _run_step(steps: Steps[Result]) -> list[Result]:
    """Run the next step; return a list of the result after the last one, else []."""
    try:
        next(steps)
    except StopIteration as end:
        return [end.value]
    return []
