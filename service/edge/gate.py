"""The gate at the door: whose requests may enter, how many, and when.

Where several keys share a replica, each has room and takes turns; with one key or none, all pass.

    room    One key's requests never take all of a replica's room. A key may have twice as many
            under way as there is room left: two thirds of the whole for one key alone, less for
            each of several; and however many keys flood, one more finds room.
    turns   While another key asks for little, a key's requests pass a few at a time. Each that
            passes costs the event loop milliseconds, and each round of the loop does all that is
            ready: of a hundred requests under way, each waits for all others several times. The
            engine's fair queue comes too late for that. So a key may have as many inside as the
            least demanding other key has, or just had, and at most MOST.

A key that asks once in a while leaves the others all they can take, and still finds room when it
asks: while it is known, their requests pass one per round of the loop, which is no fewer, but in
short rounds. A request that may not pass yet is parked as a future in its key's line, its body
unread, and costs the loop nothing.

Source of the room: Choudhury and Hahne 1998, "Dynamic Queue Length Thresholds for Shared-Memory
Packet Switches".
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection

SHARE = 2  # times the room that is left
MOST = 64  # requests of one key inside, where there are several keys
# A request that takes longer waits for the model, not the loop: others of its key need not wait
LONG_SECONDS = 1.0
REFUSALS_A_SECOND, LONGEST_PAUSE_SECONDS = 50, 5.0  # of a key that asks too much at once
JUST_SECONDS = 0.1  # and up to twice as long; a key that asks ten times a second is always there
LATELY_SECONDS = 10.0  # after which a silent key no longer counts


class Just:
    """A count, and its recent maximum."""

    def __init__(self) -> None:
        self.count, self._window, self._most, self._before = 0, 0, 0, 0

    def most(self, now: float) -> int:
        """Return the maximum since the start of the previous time window."""
        window = int(now // JUST_SECONDS)
        if window > self._window:
            self._before = self._most if window == self._window + 1 else self.count
            self._most, self._window = self.count, window
        return max(self._most, self._before)

    def change(self, by: int, now: float) -> None:
        """Add to the count from now on."""
        self.most(now)
        self.count += by
        self._most = max(self._most, self.count)


class Line:
    """One key's requests: those under way, those that passed, and those that wait for a turn."""

    def __init__(self) -> None:
        self.under_way = self.inside = 0
        self.just = Just()
        self.came = -math.inf  # when the last of them came
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
        seconds: how long to delay its refusal, since refused clients come again.
    """

    def __init__(self, seconds: float) -> None:
        super().__init__(seconds)
        self.seconds = seconds


class Gate:
    """Gives each key's requests room, and lets them pass first come, first served.

    Args:
        names: of the keys; a single one has all the room and waits for no others.
        most: requests there is room for.
        clock: in seconds.
    """

    def __init__(
        self, names: Collection[str], most: int, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._most, self._clock = most, clock
        self.lines, self.total, self.several = dict[str, Line](), 0, False
        self.set_keys(names)

    def set_keys(self, names: Collection[str]) -> None:
        """Share among these keys from now on; a key that stays keeps its line."""
        before, self.several = self.lines, len(names) > 1
        self.lines = {name: before.get(name) or Line() for name in names}
        for line in before.values():
            self._pass(line)  # there may be fewer to wait for

    def take(self, name: str) -> Place | None:
        """Give a key's request its room; None where there are no others to leave room for.

        Raises:
            Full: there is no room for it.
        """
        if not self.several or (line := self.lines.get(name)) is None:
            return None
        if line.under_way >= SHARE * (self._most - self.total):
            raise Full(self._pause(line))
        line.under_way += 1
        self.total += 1
        return Place(line)

    async def wait(self, place: Place, seconds: float) -> float:
        """Wait until a request may pass; return the seconds waited, 0 where it need not wait.

        Raises:
            TimeoutError: its turn does not come in time.
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
        """End a request's turn as its answer begins: its reader may be slow."""
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
        """Return the seconds to delay a refusal while a key floods."""
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
                self._step_out(line)  # its turn came just as it gave up
            elif future in line.parked:
                line.parked.remove(future)
            raise

    def _leave(self, place: Place) -> None:
        """End a turn unless it has ended."""
        if place.inside:
            place.inside = False
            self._step_out(place.line)

    def _step_out(self, line: Line) -> None:
        line.inside -= 1
        self._pass(line)

    def _pass(self, line: Line) -> None:
        """Let in all that may pass."""
        while line.parked and self._may_pass(line):
            future = line.parked.popleft()
            if not future.done():  # else it has just given up
                future.set_result(None)
                self._enter(line)

    def _enter(self, line: Line) -> None:
        """Count a passing request; where another key is known, the next waits for another round."""
        line.inside += 1
        since = self._clock() - LATELY_SECONDS
        if any(other.came > since for other in self.lines.values() if other is not line):
            line.passed = True
            asyncio.get_running_loop().call_soon(self._next_round, line)

    def _next_round(self, line: Line) -> None:
        line.passed = False
        self._pass(line)

    def _may_pass(self, line: Line) -> bool:
        """Tell whether one more request of a key may be inside now."""
        return not line.passed and (not line.inside or line.inside < self._inside(line))

    def _inside(self, line: Line) -> int:
        """Return how many requests of a key may be inside now."""
        now = self._clock()
        others = (other.just.most(now) for other in self.lines.values() if other is not line)
        return min([MOST, *(most for most in others if most)])
