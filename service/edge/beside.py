"""Large bodies are read beside the event loop, one at a time: the cores belong to the model."""

from collections.abc import Callable
from typing import TypeVar

from service.engine.fair.rotation import Thread
from service.settings import KIB

Result = TypeVar("Result")

LARGE_BYTES = 16 * KIB  # what fewer hold, however small, takes a few ms


class Beside:
    """One thread for what one layer does with large bodies.

    What parses a body keeps other threads waiting until it is done: several at once would keep
    the event loop waiting for all of them. Keys take turns.
    """

    def __init__(self) -> None:
        self._thread = Thread("beside")

    async def run(self, size: int, work: Callable[[], Result]) -> Result:
        """The result of work on a body of so many bytes."""
        if size <= LARGE_BYTES:
            return work()
        return await self._thread.run(work)
