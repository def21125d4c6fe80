"""Counts and traces every batch on its way into a lane, and notes when none can be trusted."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from service.engine.batcher import Launch
from service.engine.lanes import ProcessBroken, breaks_process
from service.observe.metrics import Metrics
from service.shapes.record import Record
from service.shapes.work import Result, Work

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.observe.tracing import Tracing


logger = logging.getLogger(__name__)


class RecordedBatches:
    """Runs batches as Lanes.run_in_lane does, and counts and traces each.

    Args:
        tracing: None where it is off.

    Attributes:
        lane_seconds: seconds that all lanes have computed since the start.
        fault: why results cannot be trusted any more; None: they can.
        on_fault: called once when `fault` is set.
    """

    def __init__(
        self, launch: Launch[Work, Result], metrics: Metrics, tracing: "Tracing | None"
    ) -> None:
        self._launch, self._metrics, self._tracing = launch, metrics, tracing
        self.lane_seconds = 0.0
        self.fault: str | None = None
        self.on_fault: Callable[[], object] = lambda: None
        self._accelerator_broken = False  # set in a lane's thread

    async def __call__(
        self, lane: int, works: Sequence[Work], threads: int
    ) -> Sequence[Result | Exception]:
        """Run one batch in a lane; return a result or exception for each work.

        Raises:
            ProcessBroken: results of this process cannot be trusted any more.
        """
        if self.fault:
            raise ProcessBroken(self.fault)
        start = time.monotonic()
        records: dict[Record, None] = {}
        tokens = 0
        for work in works:
            tokens += len(work)
            if (record := work.record) is not None:
                records[record] = None
                record.batch_start = record.batch_start or start
        try:
            results = await self._launch(lane, works, threads)
            if self._accelerator_broken:
                self.distrust("the accelerator failed")
            if self.fault:
                raise ProcessBroken(self.fault)
            return results
        finally:
            seconds = (time.monotonic() - start) * threads
            self.lane_seconds += seconds
            self._metrics.count_batch(tokens, seconds)
            if self._tracing:
                self._tracing.export_batch(list(records), len(works), tokens, start)

    def distrust(self, reason: str) -> None:
        """Set `fault`: from now on each batch, also one that runs, ends in ProcessBroken."""
        if self.fault is None:
            self.fault = reason
            logger.error(reason)
            self.on_fault()

    def note_failure(self, error: Exception) -> None:
        """Count an error of the accelerator, and note if it breaks the process; for on_failure."""
        if breaks_process(error):
            self._accelerator_broken = True
        if isinstance(error, torch.OutOfMemoryError):
            self._metrics.device_errors.add("oom")
        elif isinstance(error, torch.AcceleratorError):
            self._metrics.device_errors.add("other")
