"""The gate at the door: how many requests of one key may be inside while another key is active.

Each request inside costs the event loop milliseconds, and each round of the loop does all that is
ready: of a hundred inside, each waits for all others several times, and the engine's fair queue
comes too late for that. So where several keys share a replica:

    inside  While another key is active, MOST_INSIDE requests of a key pass; the others wait as
            futures, their bodies unread, and cost nothing. The number doubles with each
            DOUBLE_SECONDS for which no other key has asked.
    room    One key's requests, inside or not, never take all that a replica is sent; any more are
            refused, so that another key's request still arrives.
"""

import asyncio
import math
import time
from collections.abc import Callable, Collection

from service.engine.fair.rotation import FairRoom, fits_fairly
from service.observe.families import KEY_SHARE
from service.tables.refusals import overloaded

# Requests of a key; with 12, the p99 of others is over 4 times idle: tests/service/test_sharing.py
MOST_INSIDE = 6
# A key that asks ten times a second is always there; one that asks every few seconds takes less
# than a tenth from the others
DOUBLE_SECONDS = 0.1
DOUBLINGS = 16  # after which more are let in than may be under way


class KeyLine(FairRoom):
    """One key's requests under way; those let inside take its room, the others wait for it.

    Attributes:
        left_at: when the last one inside left, by the gate's clock; infinite while there are any.
    """

    def __init__(self) -> None:
        super().__init__(MOST_INSIDE)
        self.under_way, self.left_at = 0, -math.inf


class Place:
    """One request's place in its key's line, and whether it is inside: let through by the gate."""

    __slots__ = ("inside", "line")

    def __init__(self, line: KeyLine) -> None:
        self.line, self.inside = line, False


class KeyGate:
    """Limits each key's requests under way and inside, and lets them pass first in, first out.

    Args:
        names: of the keys; a single one has all the room and waits for no others.
        most: requests of all keys that may be under way.
        clock: in seconds.
    """

    def __init__(
        self, names: Collection[str], most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most, clock
        self.lines, self.total = dict[str, KeyLine](), 0  # by key's name; requests under way
        # lines that have had a request inside lately; of thousands of keys most have none
        self._lately = dict[KeyLine, None]()
        self._recheck_timer: asyncio.TimerHandle | None = None
        self.set_keys(names)

    def set_keys(self, names: Collection[str]) -> None:
        """Divide the room among these keys from now on; requests under way keep their places.

        A single key has all of it, without a line.
        """
        sharing = names if len(names) > 1 else ()
        self.lines = {name: self.lines.get(name) or KeyLine() for name in sharing}

    def take_place(self, name: str) -> Place | None:
        """Count a key's request as under way; None where no other key shares the replica.

        Raises:
            Refused: the key has as many under way as it may.
        """
        if (line := self.lines.get(name)) is None:
            return None
        if not fits_fairly(1, self._most - self.total, line.under_way):
            raise overloaded(KEY_SHARE)
        line.under_way += 1
        self.total += 1
        return Place(line)

    async def enter(self, place: Place, seconds: float) -> float:
        """Wait until a request may pass; return the seconds waited, 0 where it need not wait.

        Raises:
            TimeoutError: it may not pass within `seconds`.
        """
        line, start = place.line, self._clock()
        line.left_at = math.inf
        self._lately[line] = None
        self._widen(line)
        waits = not line.take_at_once()
        if waits:
            if self._recheck_timer is None:
                self._recheck_later()
            try:
                async with asyncio.timeout(seconds):
                    await line.wait("")
            except BaseException:
                self._note_emptied(line)  # its turn may have come just as it gave up
                raise
        place.inside = True
        return self._clock() - start if waits else 0.0

    def leave(self, place: Place) -> None:
        """Count a request as no longer inside: its answer begins, and its reader may be slow."""
        if place.inside:
            place.inside, line = False, place.line
            self._widen(line)
            line.release()
            self._note_emptied(line)

    def give_back(self, place: Place) -> None:
        """Count a request as ended: neither inside nor under way."""
        self.leave(place)
        place.line.under_way -= 1
        self.total -= 1

    def _note_emptied(self, line: KeyLine) -> None:
        """Note when the last request of a key that was inside has left."""
        if not line.taken:
            line.left_at = self._clock()

    def _widen(self, line: KeyLine) -> None:
        """Set how many requests of a key may be inside now, if it has as many as it always may."""
        if line.taken < MOST_INSIDE:
            return
        now = self._clock()
        lately = now - DOUBLINGS * DOUBLE_SECONDS
        self._lately = {other: None for other in self._lately if other.left_at > lately}
        others = (other.left_at for other in self._lately if other is not line)
        doublings = (now - max(others, default=lately)) / DOUBLE_SECONDS
        line.most = math.ceil(MOST_INSIDE * 2 ** max(0.0, doublings))

    def _recheck_later(self) -> None:
        """Start the timer of the next recheck."""
        self._recheck_timer = asyncio.get_running_loop().call_later(DOUBLE_SECONDS, self._recheck)

    def _recheck(self) -> None:
        """Let in the requests that may pass by now, and check again later while any wait."""
        self._recheck_timer = None
        waiting = [line for line in self._lately if line.waiting]
        for line in waiting:
            self._widen(line)
            line.hand_on()
        if waiting:
            self._recheck_later()
