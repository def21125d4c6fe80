"""Turns at the door: while another key asks for little, one's requests pass a few at a time.

Each that passes costs the event loop milliseconds, and in each of its rounds the loop does all
that is ready: of a hundred requests under way, each waits for all others several times. The
engine's fair queue comes too late for that. So a key may have as many inside as the other
key has, or just had, that asks for least, and MOST at any rate.

A key that asks once in a while leaves the others all they can take, and finds room all the same
when it comes: as long as it is known, their requests pass one in each round of the loop, which is
no fewer, but in short rounds. What may not pass yet is parked, a future in its key's line, its body
not read, and costs the loop nothing.
"""

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable, Collection
from contextlib import ExitStack

MOST = 64  # requests inside of one key, where there are several
# What takes longer waits for the model and not for the loop: others of its key need not wait for it
LONG_SECONDS = 1.0
REFUSALS_A_SECOND, LONGEST_PAUSE_SECONDS = 50, 5.0  # of a key that asks too much at once
JUST_SECONDS = 0.1  # and up to twice as long; whoever asks ten times a second is always there
LATELY_SECONDS = 10.0  # then a key that asks no more counts no more


class Just:
    """A count, and the most it just was."""

    def __init__(self) -> None:
        self._count, self._window, self._most, self._before = 0, 0, 0, 0

    def most(self, now: float) -> int:
        """The most since the window of time before this one began."""
        window = int(now // JUST_SECONDS)
        if window > self._window:
            self._before = self._most if window == self._window + 1 else self._count
            self._most, self._window = self._count, window
        return max(self._most, self._before)

    def change(self, by: int, now: float) -> None:
        """Count from now on so many more."""
        self.most(now)
        self._count += by
        self._most = max(self._most, self._count)


class Line:
    """One key's requests: those inside, and those that wait for their turn."""

    def __init__(self) -> None:
        self.inside, self.just = 0, Just()
        self.came = -math.inf  # the last of them
        self.passed = False  # whether one has, in this round of the loop
        self.refused = 0.0  # when the last of its refusals leaves
        self.parked = deque[asyncio.Future[None]]()


class Turns:
    """Lets each key's requests pass, first come, first served.

    Args:
        keys: their names; a single one has nobody to wait for.
        clock: seconds.
    """

    def __init__(self, keys: Collection[str], clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._lines = clock, dict[str, Line]()
        self.follow(keys)

    def follow(self, keys: Collection[str]) -> None:
        """Let other keys take turns from now on; one that stays keeps its line."""
        before = self._lines
        named = keys if len(keys) > 1 else ()
        self._lines = {name: before.get(name) or Line() for name in named}
        for line in before.values():
            self._pass(line)  # there may be fewer to wait for

    async def wait(self, name: str, seconds: float, turn: ExitStack) -> float:
        """Wait until a request may pass; seconds that it waited, 0 where it need not.

        Args:
            name: whose it is; of a name that is no key's it is always the turn.
            seconds: it may wait.
            turn: ends its turn when it is closed.

        Raises:
            TimeoutError: it may not pass in time.
        """
        if (line := self._lines.get(name)) is None:
            return 0.0
        line.came = came = self._clock()
        line.just.change(1, came)
        turn.callback(lambda: line.just.change(-1, self._clock()))
        free = not line.parked and self._may_pass(line)
        if free:
            self._enter(line)
        else:
            await self._park(line, seconds)
        self._stay(line, turn)
        return 0.0 if free else self._clock() - came

    def pause(self, name: str) -> float:
        """Seconds that a refusal of a key's flood is to wait: whoever is refused comes again."""
        if (line := self._lines.get(name)) is None:
            return 0.0
        now = self._clock()
        next_ = max(line.refused + 1 / REFUSALS_A_SECOND, now)
        line.refused = min(next_, now + LONGEST_PAUSE_SECONDS)
        return line.refused - now

    def _stay(self, line: Line, turn: ExitStack) -> None:
        """Hold a turn until it ends or has lasted long."""
        held = ExitStack()
        held.callback(self._leave, line)
        timer = asyncio.get_running_loop().call_later(LONG_SECONDS, held.close)
        turn.callback(timer.cancel)
        turn.callback(held.close)

    async def _park(self, line: Line, seconds: float) -> None:
        """Wait in line."""
        place = asyncio.get_running_loop().create_future()
        line.parked.append(place)
        self._pass(line)
        try:
            async with asyncio.timeout(seconds):
                await place
        except BaseException:
            if not place.cancelled():
                self._leave(line)  # its turn came as it gave up
            elif place in line.parked:
                line.parked.remove(place)
            raise

    def _leave(self, line: Line) -> None:
        line.inside -= 1
        self._pass(line)

    def _pass(self, line: Line) -> None:
        """Let as many pass as may."""
        while line.parked and self._may_pass(line):
            place = line.parked.popleft()
            if not place.done():  # else it has just given up
                place.set_result(None)
                self._enter(line)

    def _enter(self, line: Line) -> None:
        """Count one that passes; where another key is known, the next passes in the next round."""
        line.inside += 1
        since = self._clock() - LATELY_SECONDS
        if any(other.came > since for other in self._lines.values() if other is not line):
            line.passed = True
            asyncio.get_running_loop().call_soon(self._next_round, line)

    def _next_round(self, line: Line) -> None:
        line.passed = False
        self._pass(line)

    def _may_pass(self, line: Line) -> bool:
        """Whether one more of a key may be inside now."""
        return not line.passed and (not line.inside or line.inside < self._most(line))

    def _most(self, line: Line) -> int:
        """How many of a key may be inside now."""
        now = self._clock()
        others = (other.just.most(now) for other in self._lines.values() if other is not line)
        return min([MOST, *(most for most in others if most)])
