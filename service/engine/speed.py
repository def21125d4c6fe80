"""How fast the lanes are, as their batches show; in tokens of short sequences per second."""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass

# One batch may seem this many times slower than expected at most: a machine that slept must not
# come back believing that it can do nothing.
STALL_FACTOR = 4.0
MEMORY_SECONDS = 10.0  # how much working time the measured speed looks back on
PROBE_EVERY = 64  # every so many lone sequences run on the other number of cores, to compare
DOUBTFUL_PROBES = (
    8  # the same while one core is believed faster, which most often passes, or is not known
)
SMOOTHING = 0.2  # share of a new measurement in what is believed of a lone sequence


class LaneSpeed:
    """Of all lanes together.

    Args:
        initial: what to believe in until measured.
    """

    def __init__(self, initial: float) -> None:
        self._tokens, self._seconds = initial, 1.0  # decayed sums; their ratio is the speed
        self.best = initial  # that was ever believed in

    @property
    def current(self) -> float:
        return self._tokens / self._seconds

    def record(self, tokens: float, seconds: float) -> None:
        """Fold a batch in."""
        seconds = min(seconds, STALL_FACTOR * tokens / self.current)
        keep = math.exp(-seconds / MEMORY_SECONDS)
        self._tokens = keep * self._tokens + tokens
        self._seconds = keep * self._seconds + seconds
        self.best = max(self.best, self.current)


@dataclass(frozen=True, slots=True)
class RunningBatch:
    """A batch that runs: since when, how long it should take, and its share of the lanes."""

    since: float
    expected: float
    share: float

    def seconds_left(self, now: float) -> float:
        """Return the seconds until it should be done, were it spread over all lanes."""
        return self.share * max(0.0, self.since + self.expected - now)

    def is_hanging(self, now: float, least: float, times: float) -> bool:
        """Tell whether it has run for more than `least` seconds and `times` what it should take."""
        return now - self.since > max(least, times * self.expected)


class LoneCores:
    """How many cores a lone sequence gets: all, unless one has lately been faster for its like.

    Threads of one forward pass wait for each other at every operator. With a neighbour on one of
    the cores that costs more than the second core gives (benchmarks/results.md), and only time
    tells. Those of one octave of lengths are alike: a short one has fewer tokens a second whatever
    its cores. The bits do not depend on it.
    """

    def __init__(self, lanes: int) -> None:
        first = {1: 0.0, lanes: math.inf}  # tokens a second, by cores
        self._lanes = lanes
        self._speeds = defaultdict[int, dict[int, float]](first.copy)  # by octave
        self._runs = Counter[int]()  # by octave
        self._begun = set[tuple[int, int]]()  # octaves and cores that ran

    def choose_cores(self, tokens: int) -> int:
        """Return the better choice, but now and then the other, since neighbours come and go."""
        octave = tokens.bit_length()
        speeds = self._speeds[octave]
        self._runs[octave] += 1
        best = max(speeds, key=speeds.__getitem__)
        sure = best == self._lanes and speeds[1] > 0
        if self._runs[octave] % (PROBE_EVERY if sure else DOUBTFUL_PROBES):
            return best
        return min(speeds, key=speeds.__getitem__)

    def record(self, cores: int, tokens: int, seconds: float) -> None:
        """Fold in one run of a lone sequence, during which nothing else ran.

        The first on so many cores also makes matrix kernels, so it says nothing. Other lengths of
        the octave make theirs later, which a few runs even out.
        """
        octave = tokens.bit_length()
        speeds = self._speeds[octave]
        if (octave, cores) not in self._begun:
            self._begun.add((octave, cores))
        elif cores in speeds and seconds > 0:
            before, speed = speeds[cores], tokens / seconds
            measured = 0 < before < math.inf
            speeds[cores] = before + (speed - before) * SMOOTHING if measured else speed
