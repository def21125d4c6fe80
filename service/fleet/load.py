"""What a replica reports of its work, from which the number of replicas is decided."""

import time
from collections.abc import Callable

from service.fleet.policy import BUSY, LOOP, WAITING
from service.replica import Replica


class Load:
    """Of one replica, since it last reported."""

    def __init__(self, replica: Replica, clock: Callable[[], float] = time.monotonic) -> None:
        self._replica, self._clock = replica, clock
        self._at, self._computed, self._looped = clock(), self._lane_seconds, replica.loop_seconds()

    def report(self) -> dict[str, float]:
        """The shares of its lanes' and of its event loop's time, and the seconds of work left.

        A batch counts when it ends: one that took longer than a report does makes a share above 1.
        """
        now, computed, looped = self._clock(), self._lane_seconds, self._replica.loop_seconds()
        passed = now - self._at
        busy = (computed - self._computed) / (passed * len(self._replica.lanes)) if passed else 0.0
        loop = (looped - self._looped) / passed if passed else 0.0
        self._at, self._computed, self._looped = now, computed, looped
        return {BUSY: busy, LOOP: loop, WAITING: self._replica.batcher.waiting_seconds}

    @property
    def _lane_seconds(self) -> float:
        return self._replica.health.batches.lane_seconds
