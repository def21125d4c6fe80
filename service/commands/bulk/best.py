"""The texts of the largest values so far; or of the smallest."""

import heapq
import math
from collections.abc import Iterable


class Best:
    """At most `size` texts by number, of equal values those that came first.

    Args:
        lowest: whether the smallest values are kept instead of the largest.
        ranked: numbers and values to begin with.

    Example:
        >>> best = Best(2, lowest=False, ranked=[(1, 0.5), (2, 0.25), (3, 0.5), (4, 0.125)])
        >>> best.ranked
        [(1, 0.5), (3, 0.5)]
    """

    def __init__(self, size: int, *, lowest: bool, ranked: Iterable[tuple[int, float]]) -> None:
        self._size, self._sign = size, -1.0 if lowest else 1.0
        self._heap: list[tuple[float, int]] = []  # its least is the first to go
        for number, value in ranked:
            self.add(number, value)

    @property
    def ranked(self) -> list[tuple[int, float]]:
        """Number and value of each text, the best first."""
        return [(-place, self._sign * strength) for strength, place in sorted(self._heap)[::-1]]

    def add(self, number: int, value: float) -> None:
        """Consider one text more.

        Raises:
            ValueError: NaN, which has no place in an order.
        """
        if math.isnan(value):
            raise ValueError("NaN cannot be ranked")
        entry = (self._sign * value, -number)
        if len(self._heap) < self._size:
            heapq.heappush(self._heap, entry)
        else:
            heapq.heappushpop(self._heap, entry)
