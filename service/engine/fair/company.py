"""Who is likely to ask again at once: those whose answers have just left."""

import asyncio
from collections.abc import Callable

# Most clients that ask again have by then: beside a pass, the event loop takes 1 to 4 ms for each
PATIENCE_SECONDS = 0.01


class Company:
    """Counts those who are expected back, for so long.

    Args:
        gone: called when no more are expected.
    """

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone, self.expected = gone, 0
        self._patience: asyncio.TimerHandle | None = None

    def answered(self, count: int) -> None:
        """Expect so many more."""
        if count:
            self.expected += count
            self._wait()

    def arrived(self, *, first: bool) -> None:
        """Take whoever has come for one of them.

        Args:
            first: whether nobody waits yet. So nobody waits for longer than PATIENCE_SECONDS.
        """
        if self.expected:
            self.expected -= 1
            if first:
                self._wait()

    def _wait(self) -> None:
        if self._patience:
            self._patience.cancel()
        loop = asyncio.get_running_loop()
        self._patience = loop.call_later(PATIENCE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self.expected, self._patience = 0, None
        self._gone()
