"""Whether a replica's answers can be trusted, known without asking the model when asked.

A canary goes through the replica's own queue every few seconds, full or not, and must come out as
at the start, bit for bit where bits are promised. `raise_if_faulty` only reads what it left, so a
probe never waits behind work.

A replica that knows itself wrong never answers again; see RecordedBatches.distrust.
"""

import asyncio
import logging
import time

from service.engine.batcher import Batcher
from service.engine.fair.queue import DeadlinePassed
from service.engine.lanes import RecordedBatches
from service.engine.proof import Proof
from service.engine.work import Result, Work
from service.observe.metrics import Metrics
from service.settings import Settings

logger = logging.getLogger(__name__)

CANARY_SECONDS = 5.0  # between two self-checks, each as long as one short text
# A batch hangs that runs longer than this, and than so many times what its tokens should take at
# the measured speed: maps are not counted as tokens, and neighbours come and go
STUCK_SECONDS, STUCK_TIMES = 5.0, 10.0


class Health:
    """Watches one replica from its start on."""

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
        self._alive = time.monotonic()  # when the forward path last proved itself
        self._watching = asyncio.create_task(self._run_canary_regularly())
        metrics.add_gauge("ready", "Whether the replica may serve.", lambda: float(self._is_fine()))

    def close(self) -> None:
        """Stop watching."""
        self._watching.cancel()

    @property
    def fault(self) -> str | None:
        """Tell why the replica knows itself wrong; for good."""
        return self.batches.fault

    def raise_if_faulty(self) -> None:
        """Raise RuntimeError with the reason when the replica must not serve."""
        if self.fault:
            raise RuntimeError(self.fault)
        if self._batcher.is_hanging(STUCK_SECONDS, STUCK_TIMES):
            raise RuntimeError("a batch hangs")
        silent = time.monotonic() - self._alive
        patience = 3 * CANARY_SECONDS + self._settings.deadline_seconds
        if not self._batcher.busy and silent > patience:
            raise RuntimeError("the self-check is silent")

    async def _run_canary_regularly(self) -> None:
        """Prove the forward path every few seconds."""
        while not self.fault:
            await asyncio.sleep(CANARY_SECONDS)
            await self.run_canary()
            self._alive = time.monotonic()

    async def run_canary(self) -> None:
        """Run the canary once; a wrong answer takes the replica out of service."""
        try:
            deadline = time.monotonic() + self._settings.deadline_seconds
            canary = [self._proof.canary]
            (result,), _ = await self._batcher.submit(canary, deadline)
            right = self._proof.is_right(result)
        except DeadlinePassed:
            return  # one batch took all of it; whether that one hangs is asked elsewhere
        except Exception:
            logger.exception("canary failed")
            right = False
        self._metrics.count_canary(right)
        if not right:
            self.batches.distrust("the canary's answer changed")

    def _is_fine(self) -> bool:
        try:
            self.raise_if_faulty()
        except RuntimeError:
            return False
        return True
