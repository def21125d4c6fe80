"""Whether a replica's answers can be trusted, known without asking the model when asked.

A canary goes through the replica's own queue every few seconds, and must come out as at the start,
bit for bit where bits are promised; where it finds no room, the batches that end are a sign of
life, not of bits. `check` only reads what these left behind, so a probe never waits behind work.
"""

import asyncio
import logging
import time

from service.engine.batcher import Batcher
from service.engine.lanes import Result, Work
from service.engine.proof import Proof
from service.engine.queue import DeadlinePassed, Overloaded
from service.observe.metrics import Metrics
from service.settings import Settings

logger = logging.getLogger(__name__)

# A batch hangs that runs longer than this, than a third of the deadline, and than several times
# what its tokens should take: a long sequence may have most of a deadline to itself
STUCK_SECONDS, STUCK_TIMES = 10.0, 4.0


class Health:
    """Watches one replica from its start on."""

    def __init__(
        self, settings: Settings, proof: Proof, batcher: Batcher[Work, Result], metrics: Metrics
    ) -> None:
        self._settings, self._proof, self._batcher = settings, proof, batcher
        self._metrics = metrics
        self._fault: str | None = None  # why the replica must not serve; for good
        self._alive = time.monotonic()  # when the forward path last proved itself
        self._watching = asyncio.create_task(self._watch())
        metrics.watch("ready", "Whether the replica may serve.", lambda: float(self._fine()))

    def close(self) -> None:
        """Stop watching."""
        self._watching.cancel()

    def check(self) -> None:
        """Raise RuntimeError with the reason when the replica must not serve."""
        if self._fault:
            raise RuntimeError(self._fault)
        stuck = max(STUCK_SECONDS, self._settings.deadline_seconds / 3)
        if self._batcher.hangs(stuck, STUCK_TIMES):
            raise RuntimeError("a batch hangs")
        silent = time.monotonic() - self._alive
        if not self._batcher.busy and silent > 3 * self._settings.canary_seconds + stuck:
            raise RuntimeError("the self-check is silent")

    async def _watch(self) -> None:
        """Prove the forward path every few seconds."""
        while True:
            await asyncio.sleep(self._settings.canary_seconds)
            await self.prove()
            self._alive = time.monotonic()

    async def prove(self) -> None:
        """Run the canary once; a wrong answer takes the replica out of service."""
        try:
            deadline = time.monotonic() + self._settings.deadline_seconds
            (result,), _ = await self._batcher.submit([self._proof.canary], deadline)
            right = self._proof.right(result)
        except (Overloaded, DeadlinePassed):
            return  # there was no room or no time for it
        except Exception:
            logger.exception("canary failed")
            right = False
        self._metrics.canary(right)
        if not right:
            self._fault = "the canary's answer changed"

    def _fine(self) -> bool:
        try:
            self.check()
        except RuntimeError:
            return False
        return True
