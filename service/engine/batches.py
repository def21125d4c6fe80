"""Every batch on its way into a lane, counted and traced."""

import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from service.engine.batcher import Launch
from service.engine.lanes import Result, Work
from service.observe.metrics import Metrics

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.observe.tracing import Tracing


class Batches:
    """Runs batches as Lanes.launch does, and tells what they are.

    Args:
        tracing: None where it is off.
    """

    def __init__(
        self, launch: Launch[Work, Result], metrics: Metrics, tracing: "Tracing | None"
    ) -> None:
        self._launch, self._metrics, self._tracing = launch, metrics, tracing

    async def __call__(
        self, lane: int, works: Sequence[Work], threads: int
    ) -> Sequence[Result | Exception]:
        """Run one batch in a lane; one result or exception for each work."""
        start = time.monotonic()
        records = list(dict.fromkeys(work.record for work in works if work.record))
        for record in records:
            record.began = record.began or start
        tokens = sum(map(len, works))
        try:
            return await self._launch(lane, works, threads)
        finally:
            self._metrics.batch(len(works), tokens)
            if self._tracing:
                self._tracing.batch(records, len(works), tokens, start)

    def failed(self, error: Exception) -> None:
        """Count what the accelerator did not do; called in a lane's thread."""
        if isinstance(error, torch.OutOfMemoryError):
            self._metrics.accelerator_error("oom")
        elif isinstance(error, torch.AcceleratorError):
            self._metrics.accelerator_error("other")
