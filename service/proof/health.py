"""Checks regularly that a replica's answers are right, so that a health probe need not wait.

A canary, a fixed text, goes through the replica's own queue every few seconds, full or not, and its
vectors must be those of the start, bit for bit where bits are promised. `raise_if_faulty` only
reads what the last checks left, so a probe never waits behind work.

A replica whose canary was wrong never answers again; see RecordedBatches.distrust.
"""

import asyncio
import logging
import time

from service.engine.batcher import Batcher
from service.engine.recorded import RecordedBatches
from service.observe.metrics import Metrics
from service.proof.proof import Proof
from service.shapes.work import Result, Work
from service.tables.refusals import Refused
from service.tables.settings import Settings

logger = logging.getLogger(__name__)

CANARY_SECONDS = 5.0  # between two self-checks, each of which costs as much as one short text
# A batch counts as hanging if, since a check first saw it, it has run for more than STUCK_SECONDS
# and STUCK_TIMES its expected time, though other processes left it a core; so much, since attention
# maps are not expected
STUCK_SECONDS, STUCK_TIMES = 5.0, 10.0


class Health:
    """Runs the self-checks of one replica and says whether it may serve.

    Args:
        proof: the canary, and what it must come out as.
        batches: the batches of the replica, which keep why it can be trusted no more.
    """

    def __init__(
        self,
        settings: Settings,
        proof: Proof,
        batcher: Batcher[Work, Result],
        batches: RecordedBatches,
        metrics: Metrics,
    ) -> None:
        self._settings, self._proof, self._batcher = settings, proof, batcher
        self.batches, self._metrics = batches, metrics
        self._last_check = time.monotonic()  # when a self-check last ended
        self._watching = asyncio.create_task(self._run_canary_regularly())
        metrics.add_gauge("ready", "Whether the replica may serve.", lambda: float(self._is_fine()))

    def close(self) -> None:
        """Stop the self-checks."""
        self._watching.cancel()

    @property
    def fault(self) -> str | None:
        """Return why the replica's answers cannot be trusted any more; None: they can."""
        return self.batches.fault

    def raise_if_faulty(self) -> None:
        """Raise RuntimeError with the reason when the replica must not serve."""
        if self.fault:
            raise RuntimeError(self.fault)
        if self._batcher.is_hanging(STUCK_SECONDS, STUCK_TIMES):
            raise RuntimeError("a batch hangs")
        silent_seconds = time.monotonic() - self._last_check
        allowed_seconds = 3 * CANARY_SECONDS + self._settings.deadline_seconds
        if not self._batcher.busy and silent_seconds > allowed_seconds:
            raise RuntimeError("the self-check is silent")

    async def _run_canary_regularly(self) -> None:
        """Run the canary every few seconds until the replica is found faulty."""
        while not self.fault:
            await asyncio.sleep(CANARY_SECONDS)
            await self.run_canary()
            self._last_check = time.monotonic()

    async def run_canary(self) -> None:
        """Run the canary once; a wrong answer takes the replica out of service."""
        try:
            deadline = time.monotonic() + self._settings.deadline_seconds
            canary = [self._proof.canary]
            (result,), _ = await self._batcher.submit(canary, deadline)
            right = self._proof.is_right(result)
        except Refused:
            return  # another batch took all the time; raise_if_faulty checks whether that one hangs
        except Exception:
            logger.exception("canary failed")
            right = False
        self._metrics.count_canary(right)
        if not right:
            self.batches.distrust("the canary's answer changed")

    def _is_fine(self) -> bool:
        """Tell whether the replica may serve."""
        try:
            self.raise_if_faulty()
        except RuntimeError:
            return False
        return True
