"""Every batch on its way into a lane, counted and traced."""

import logging
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import torch

from service.engine.batcher import Launch
from service.engine.lanes import Broken, breaks
from service.engine.work import Result, Work
from service.observe.metrics import Metrics
from service.observe.record import Record

if TYPE_CHECKING:  # tracing that is off imports nothing
    from service.observe.tracing import Tracing

logger = logging.getLogger(__name__)


class Batches:
    """Runs batches as Lanes.launch does, and tells what they are.

    Args:
        tracing: None where it is off.
    """

    def __init__(
        self, launch: Launch[Work, Result], metrics: Metrics, tracing: "Tracing | None"
    ) -> None:
        self._launch, self._metrics, self._tracing = launch, metrics, tracing
        self.lane_seconds = 0.0  # that lanes have computed, since the start
        self.fault: str | None = None  # why nothing that is computed here can be trusted
        self.on_fault: Callable[[], object] = lambda: None
        self._broken = False  # as a lane's thread has it

    async def __call__(
        self, lane: int, works: Sequence[Work], threads: int
    ) -> Sequence[Result | Exception]:
        """Run one batch in a lane; one result or exception for each work.

        Raises:
            Broken: what came out cannot be trusted, or was not tried.
        """
        if self.fault:
            raise Broken(self.fault)
        start = time.monotonic()
        records: dict[Record, None] = {}
        by_key: dict[str, int] = {}  # tokens; of the service's own works, by no key
        tokens = 0
        for work in works:
            length, key = len(work), ""
            if (record := work.record) is not None:
                records[record], key = None, record.key
                record.began = record.began or start
            tokens, by_key[key] = tokens + length, by_key.get(key, 0) + length
        try:
            results = await self._launch(lane, works, threads)
            if self._broken:
                self.distrust("the accelerator failed")
            if self.fault:
                raise Broken(self.fault)
            return results
        finally:
            seconds = (time.monotonic() - start) * threads
            self.lane_seconds += seconds
            self._metrics.batch(len(works), tokens, seconds)
            for key, part in by_key.items():
                self._metrics.computed(seconds * part / tokens, key)
            if self._tracing:
                self._tracing.batch(list(records), len(works), tokens, start)

    def distrust(self, reason: str) -> None:
        """Let nothing out any more, for good: what runs or waits ends as Broken."""
        if self.fault is None:
            self.fault = reason
            logger.error(reason)
            self.on_fault()

    def failed(self, error: Exception) -> None:
        """Note what the accelerator did not do; called in a lane's thread."""
        if breaks(error):
            self._broken = True
        if isinstance(error, torch.OutOfMemoryError):
            self._metrics.accelerator_error("oom")
        elif isinstance(error, torch.AcceleratorError):
            self._metrics.accelerator_error("other")
