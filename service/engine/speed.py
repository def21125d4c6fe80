"""Measures how fast the lanes are from their batches, in tokens of short sequences per second."""

import math
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from service.shapes.job import Batch

# One batch counts as at most this many times slower than expected, so that a machine which was
# suspended meanwhile is not taken for a slow one
STALL_FACTOR = 4.0
MEMORY_SECONDS = 10.0  # of computing: time constant with which old batches lose their weight
PROBE_EVERY = 64  # every 64th lone sequence runs on the other number of cores, to compare
# The same while the speed on one core is not known, or higher, which most often passes
DOUBTFUL_PROBES = 8
# Of a core, what a thread gets while other processes keep it from one. Even among a thousand a core
# it gets more than the lower; one that waits for something else gets nothing, and one that computes
# without end gets more than the upper.
STARVED_SHARES = 0.001, 0.5
SMOOTHING = 0.2  # weight of the newest measurement in the average speed of lone sequences


def time_fastest(
    runs: Sequence[Callable[[], object]],
    seconds: float,
    turns: int = 1,
    clock: Callable[[], float] | None = None,
) -> list[float]:
    """Return the shortest time of each run, in seconds, free of other processes' load.

    Args:
        seconds: for which they run in turns, so that a busy moment is none of one alone.
        turns: at least so many.
        clock: by which a run is timed, the wall's by default; time.thread_time where it computes in
            this thread alone.
    """
    clock = clock or time.perf_counter
    fastest, end = [math.inf] * len(runs), time.perf_counter() + seconds
    while turns > 0 or time.perf_counter() < end:
        turns -= 1
        for index, run in enumerate(runs):
            start = clock()
            run()
            fastest[index] = min(fastest[index], clock() - start)
    return fastest


class LaneSpeed:
    """Measures the recent speed of all lanes together, in tokens per second.

    Args:
        initial: the speed assumed until one is measured.

    Attributes:
        best: the highest speed so far.
    """

    def __init__(self, initial: float) -> None:
        self._tokens, self._seconds = initial, 1.0  # decayed sums; their ratio is the speed
        self.best = initial

    @property
    def current(self) -> float:
        """Return the recent speed."""
        return self._tokens / self._seconds

    def record(self, tokens: float, seconds: float) -> None:
        """Add a batch of this many tokens to the average."""
        seconds = min(seconds, STALL_FACTOR * tokens / self.current)
        decay = math.exp(-seconds / MEMORY_SECONDS)
        self._tokens = decay * self._tokens + tokens
        self._seconds = decay * self._seconds + seconds
        self.best = max(self.best, self.current)


@dataclass(slots=True)
class RunningBatch:
    """A batch that runs."""

    batch: Batch[Any, Any]
    since: float  # when it was started, on the batcher's clock
    expected: float  # seconds that it should take
    share: float  # of the lanes that it occupies, 0 to 1
    # Since when it is watched, on that clock, and the processor time that its thread had had then
    watched: tuple[float, float] | None = None

    def seconds_left(self, now: float) -> float:
        """Return the seconds that its remaining work would take on all lanes."""
        return self.share * max(0.0, self.since + self.expected - now)

    def is_hanging(self, now: float, processor: float, least: float, times: float) -> bool:
        """Tell whether it has run for over `least` seconds and `times` its expected time.

        It is watched from the first call on. If its thread got some processor time meanwhile, but
        little, other processes have the cores, and it is given the same time again.

        Args:
            processor: seconds of processor time that its thread has had.
        """
        self.watched = since, before = self.watched or (now, processor)
        seconds = now - since
        if seconds <= max(least, times * self.expected):
            return False
        lowest, highest = STARVED_SHARES
        is_starved = lowest < (processor - before) / seconds < highest
        if is_starved:
            self.watched = now, processor
        return not is_starved


class LoneCores:
    """Chooses how many cores a lone sequence gets: all, or one where that was faster lately.

    Threads of one forward pass wait for each other at every operator. If another process uses one
    of the cores, that costs more than the second core gains (benchmarks/results.md), so both are
    measured; separately for each octave, lengths from one power of two to the next, since short
    sequences have fewer tokens per second anyway. The bits do not depend on the choice.
    """

    def __init__(self, lanes: int) -> None:
        initial = {1: 0.0, lanes: math.inf}  # tokens per second, by number of cores
        self._lanes = lanes
        self._speeds = defaultdict[int, dict[int, float]](initial.copy)  # by octave
        self._runs = Counter[int]()  # by octave
        self._begun = set[tuple[int, int]]()  # octaves and numbers of cores that ran

    def choose_cores(self, tokens: int) -> int:
        """Return the faster number of cores for a sequence, now and then the other, to compare."""
        octave = tokens.bit_length()
        speeds = self._speeds[octave]
        self._runs[octave] += 1
        best = max(speeds, key=speeds.__getitem__)
        is_certain = best == self._lanes and speeds[1] > 0
        if self._runs[octave] % (PROBE_EVERY if is_certain else DOUBTFUL_PROBES):
            return best
        return min(speeds, key=speeds.__getitem__)

    def record(self, cores: int, tokens: int, seconds: float) -> None:
        """Add one run of a lone sequence, during which nothing else ran, to the averages.

        The first run of an octave on a number of cores is left out: it also makes matrix kernels.
        Other lengths of the octave make theirs later, which a few runs even out.
        """
        octave = tokens.bit_length()
        speeds = self._speeds[octave]
        if (octave, cores) not in self._begun:
            self._begun.add((octave, cores))
        elif cores in speeds and seconds > 0:
            before, speed = speeds[cores], tokens / seconds
            measured = 0 < before < math.inf
            speeds[cores] = before + (speed - before) * SMOOTHING if measured else speed
