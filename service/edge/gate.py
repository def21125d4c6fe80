"""The gate at the door: whose requests may come in, how many, and when.

Where several keys share a replica, each has room and takes turns; with one key or none, all pass.

    room    One key's requests never take all the room that a replica has. A key may have twice as
            many under way as there is room left: alone two thirds of all, several keys less each,
            and however many flood, one more finds room.
    turns   While another key asks for little, one's requests pass a few at a time. Each that passes
            costs the event loop milliseconds, and in each of its rounds the loop does all that is
            ready: of a hundred requests under way, each waits for all others several times. The
            engine's fair queue comes too late for that. So a key may have as many inside as the
            other key has, or just had, that asks for least, and MOST at any rate.

A key that asks once in a while leaves the others all they can take, and finds room all the same
when it comes: as long as it is known, their requests pass one in each round of the loop, which is
no fewer, but in short rounds. What may not pass yet is parked, a future in its key's line, its body
not read, and costs the loop nothing.

Source of the room: Choudhury and Hahne 1998, "Dynamic Queue Length Thresholds for Shared-Memory
Packet Switches".
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection

SHARE = 2  # of the room that is left
MOST = 64  # requests inside of one key, where there are several
# What takes longer waits for the model and not for the loop: others of its key need not wait for it
LONG_SECONDS = 1.0
REFUSALS_A_SECOND, LONGEST_PAUSE_SECONDS = 50, 5.0  # of a key that asks too much at once
JUST_SECONDS = 0.1  # and up to twice as long; a key that asks ten times a second is always there
LATELY_SECONDS = 10.0  # then a key that asks no more counts no more


class Just:
    """A count, and the most it just was."""

    def __init__(self) -> None:
        self.count, self._window, self._most, self._before = 0, 0, 0, 0

    def most(self, now: float) -> int:
        """Return the most since the window of time before this one began."""
        window = int(now // JUST_SECONDS)
        if window > self._window:
            self._before = self._most if window == self._window + 1 else self.count
            self._most, self._window = self.count, window
        return max(self._most, self._before)

    def change(self, by: int, now: float) -> None:
        """Count from now on so many more."""
        self.most(now)
        self.count += by
        self._most = max(self._most, self.count)


class Line:
    """One key's requests: those under way, those that passed, and those that wait for a turn."""

    def __init__(self) -> None:
        self.under_way = self.inside = 0
        self.just = Just()
        self.came = -math.inf  # the last of them
        self.passed = False  # whether one has, in this round of the loop
        self.refused = 0.0  # when the last of its refusals leaves
        self.parked = deque[asyncio.Future[None]]()


class Place:
    """What one request takes at the gate, and gives back."""

    __slots__ = ("counted", "inside", "line", "timer")

    def __init__(self, line: Line) -> None:
        self.line = line
        self.counted = self.inside = False
        self.timer: asyncio.TimerHandle | None = None


class Full(Exception):
    """A key has as many requests under way as it may.

    Args:
        seconds: that its refusal is to wait, since those who are refused come again.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Gate:
    """Gives each key's requests their room, and lets them pass first come, first served.

    Args:
        names: of the keys; a single one has all the room and no others to wait for.
        most: requests that there is room for.
        clock: seconds.
    """

    def __init__(
        self, names: Collection[str], most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most, clock
        self.lines, self.total, self.several = dict[str, Line](), 0, False
        self.follow(names)

    def follow(self, names: Collection[str]) -> None:
        """Share among other keys from now on; one that stays keeps its line."""
        before, self.several = self.lines, len(names) > 1
        self.lines = {name: before.get(name) or Line() for name in names}
        for line in before.values():
            self._pass(line)  # there may be fewer to wait for

    def take(self, name: str) -> Place | None:
        """Give a request of a key its room; None where there are no others to leave some to.

        Raises:
            Full: there is none for it.
        """
        if not self.several or (line := self.lines.get(name)) is None:
            return None
        if line.under_way >= SHARE * (self._most - self.total):
            raise Full(self._pause(line))
        line.under_way += 1
        self.total += 1
        return Place(line)

    async def wait(self, place: Place, seconds: float) -> float:
        """Wait until a request may pass; return for how long, 0 where it need not.

        Raises:
            TimeoutError: it may not pass in time.
        """
        line = place.line
        line.came = came = self._clock()
        line.just.change(1, came)
        place.counted = True
        free = not line.parked and self._may_pass(line)
        if free:
            self._enter(line)
        else:
            await self._park(line, seconds)
        place.inside = True
        place.timer = asyncio.get_running_loop().call_later(LONG_SECONDS, self._leave, place)
        return 0.0 if free else self._clock() - came

    def begin(self, place: Place) -> None:
        """End a request's turn, since its answer begins: its reader may be slow."""
        if place.timer:
            place.timer.cancel()
        self._leave(place)
        if place.counted:
            place.counted = False
            place.line.just.change(-1, self._clock())

    def give_back(self, place: Place) -> None:
        """End a request: its turn, and the room that it took."""
        self.begin(place)
        place.line.under_way -= 1
        self.total -= 1

    def _pause(self, line: Line) -> float:
        """Seconds that a refusal of a key's flood is to wait."""
        now = self._clock()
        next_ = max(line.refused + 1 / REFUSALS_A_SECOND, now)
        line.refused = min(next_, now + LONGEST_PAUSE_SECONDS)
        return line.refused - now

    async def _park(self, line: Line, seconds: float) -> None:
        """Wait in line."""
        future = asyncio.get_running_loop().create_future()
        line.parked.append(future)
        self._pass(line)
        try:
            async with asyncio.timeout(seconds):
                await future
        except BaseException:
            if not future.cancelled():
                self._step_out(line)  # its turn came as it gave up
            elif future in line.parked:
                line.parked.remove(future)
            raise

    def _leave(self, place: Place) -> None:
        """End a turn, if it has not ended."""
        if place.inside:
            place.inside = False
            self._step_out(place.line)

    def _step_out(self, line: Line) -> None:
        line.inside -= 1
        self._pass(line)

    def _pass(self, line: Line) -> None:
        """Let as many pass as may."""
        while line.parked and self._may_pass(line):
            future = line.parked.popleft()
            if not future.done():  # else it has just given up
                future.set_result(None)
                self._enter(line)

    def _enter(self, line: Line) -> None:
        """Count one that passes; where another key is known, the next passes in the next round."""
        line.inside += 1
        since = self._clock() - LATELY_SECONDS
        if any(other.came > since for other in self.lines.values() if other is not line):
            line.passed = True
            asyncio.get_running_loop().call_soon(self._next_round, line)

    def _next_round(self, line: Line) -> None:
        line.passed = False
        self._pass(line)

    def _may_pass(self, line: Line) -> bool:
        """Whether one more of a key may be inside now."""
        return not line.passed and (not line.inside or line.inside < self._inside(line))

    def _inside(self, line: Line) -> int:
        """How many of a key may be inside now."""
        now = self._clock()
        others = (other.just.most(now) for other in self.lines.values() if other is not line)
        return min([MOST, *(most for most in others if most)])
