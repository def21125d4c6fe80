"""Requests under way, by key: one key's never take all the room that Ray gives a replica.

A key may have twice as many under way as there is room left: alone two thirds of all, several
keys less each, and however many flood, one more finds room.

Source: Choudhury and Hahne 1998, "Dynamic Queue Length Thresholds for Shared-Memory Packet
Switches".
"""

from collections import Counter
from collections.abc import Collection, Iterator
from contextlib import contextmanager

from service.engine.fair.rotation import OWNER
from service.keys import Key

SHARE = 2  # of the room that is left


class UnderWay:
    """Counts the requests of each key while they last.

    Args:
        keys: their names; a single one has all the room.
        most: requests that there is room for.
    """

    def __init__(self, keys: Collection[str], most: int) -> None:
        self._several, self._most = len(keys) > 1, most
        self._counts = Counter[str]()
        self._total = 0

    def follow(self, keys: Collection[str]) -> None:
        """Share the room among other keys from now on."""
        self._several = len(keys) > 1

    @contextmanager
    def hold(self, key: Key | None) -> Iterator[bool]:
        """Count a request while it lasts; yields whether there is room for it.

        One that has no room is not counted, nor one that needs no key or has none. What waits for
        it further in knows whose it is.
        """
        name = key.name if key and self._several else ""
        OWNER.set(name)
        if not name or not self.room(name):
            yield not name
            return
        self._counts[name] += 1
        self._total += 1
        try:
            yield True
        finally:
            self._counts[name] -= 1
            self._total -= 1

    def room(self, name: str) -> bool:
        """Whether a key may have one more under way."""
        return self._counts[name] < SHARE * (self._most - self._total)
