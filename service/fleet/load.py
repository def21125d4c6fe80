"""What a replica reports of its work, from which the number of replicas is decided."""

import time
from collections.abc import Callable

from service.fleet.policy import BUSY, WAITING
from service.replica import Replica


class Load:
    """Of one replica, since it last reported."""

    def __init__(self, replica: Replica, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica, self._clock = replica, clock
        self._at, self._computed = clock(), self._lane_seconds

    def report(self) -> dict[str, float]:
        """The share of its lanes' time that was spent on batches, and the seconds of work left.

        A batch counts when it ends: one that took longer than a report does makes a share above 1.
        """
        now, computed = self._clock(), self._lane_seconds
        time_of_lanes = (now - self._at) * len(self._replica.lanes)
        share = (computed - self._computed) / time_of_lanes if time_of_lanes > 0 else 0.0
        self._at, self._computed = now, computed
        return {BUSY: share, WAITING: self._replica.batcher.waiting_seconds}

    @property
    def _lane_seconds(self) -> float:
        return self._replica.health.batches.lane_seconds
