"""Who is likely to ask again at once: those whose answers have just left."""

import asyncio
from collections.abc import Callable

# A client that asks again is back before: beside a pass, the event loop takes 1 to 4 ms for each
PATIENCE_SECONDS = 0.008


class Company:
    """Counts those who are expected back, until the next of them takes too long.

    Args:
        gone: called once no more are expected.
    """

    def __init__(self, gone: Callable[[], None]) -> None:
        self._gone, self.expected = gone, 0
        self._patience: asyncio.TimerHandle | None = None

    def answered(self, count: int) -> None:
        """Expect so many more."""
        self._expect(self.expected + count)

    def arrived(self) -> None:
        """Take whoever has come for one of them."""
        if self.expected:
            self._expect(self.expected - 1)

    def _expect(self, count: int) -> None:
        if self._patience:
            self._patience.cancel()
        self.expected, self._patience = count, None
        if count:
            loop = asyncio.get_running_loop()
            self._patience = loop.call_later(PATIENCE_SECONDS, self._give_up)

    def _give_up(self) -> None:
        self.expected, self._patience = 0, None
        self._gone()
