"""What a policy that scales replicas costs, and what clients feel: a simulation.

    python benchmarks/autoscale.py [--minutes 120] [--cold 5 60]

Requests arrive at random moments along a trace, each at the replica with the fewest under way. It
takes its seconds of the event loop there, and then its seconds of the lanes, in turn. A replica
that is wanted and finds a place serves after the cold start, one that leaves finishes what it has,
and what runs on a node that is lost is lost. What would wait longer than admission allows is
refused.

Both policies run inside Ray's own code, imported and called, on a clock of ours: its delays, its
bounds, its default policy. Each row is one trace under one policy.
"""

import argparse
import math
import random
import statistics
import warnings
from collections import deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any
from unittest import mock

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # importing Ray warns of Ray's own age
    from ray.serve import autoscaling_policy as rays
    from ray.serve.config import AutoscalingConfig, AutoscalingContext

    from service.fleet import bounds, policy
from service.settings import Settings

FULL_SECONDS, OTHER_SECONDS = 0.1, 0.02  # of a replica, for a request: what it fills first
MOST = 12  # replicas
SURE_SECONDS = (
    24.0  # the deadline's 30, times the batcher's SURE: what would wait longer is refused
)
TICK_SECONDS = 1.0  # Ray decides ten times as often, on reports no younger than two seconds
By = Callable[[float, float], float]  # by the time, and when the trace ends


def diurnal(now: float, end: float) -> float:
    """Return two days' swing between 0.6 and 6."""
    return 3.3 - 2.7 * math.cos(4 * math.pi * now / end)


def bursty(now: float, end: float) -> float:
    """Return one, and 4 for 90 s in every ten minutes."""
    return 4.0 if now % 600 < 90 else 1.0


def crowd(now: float, end: float) -> float:
    """Return a half, and from a third of the time on 7 for five minutes, at once."""
    return 7.0 if 0 <= now - end / 3 < 300 else 0.5


def few(now: float, end: float) -> float:
    """Return fewer than a crowd wants."""
    return 5.0


def lost(now: float, end: float) -> float:
    """Return two for five minutes, from half-way on."""
    return 2.0 if 0 <= now - end / 2 < 300 else float(MOST)


@dataclass(frozen=True)
class Trace:
    """What arrives, and where it may be served.

    Args:
        demand: replicas' worth of work.
        loop, lanes: seconds of a replica's event loop and of its lanes, for a request on average.
        places: replicas that the nodes have room for.
    """

    demand: By
    loop: float = OTHER_SECONDS
    lanes: float = FULL_SECONDS
    places: By = lambda now, end: MOST


TRACES = {
    "diurnal": Trace(diurnal),
    "bursty": Trace(bursty),
    "crowd": Trace(crowd),
    "diurnal, short texts": Trace(diurnal, loop=FULL_SECONDS, lanes=OTHER_SECONDS),
    "crowd, short texts": Trace(crowd, loop=FULL_SECONDS, lanes=OTHER_SECONDS),
    "crowd, 5 places": Trace(crowd, places=few),
    "diurnal, nodes lost": Trace(diurnal, places=lost),
}


@dataclass(eq=False)
class Server:
    """One replica: requests one after the other, in its event loop and then in its lanes.

    Args:
        ready: when it serves; infinity until it has a place.
    """

    ready: float
    left: float = math.inf  # when it was told to leave
    loop_free: float = 0.0  # when its loop has done all it has
    free: float = 0.0  # when its lanes have
    looped: float = 0.0  # seconds of its loop that were ever asked for
    coming: deque[tuple[float, float, float]] = field(default_factory=deque)
    known: float = 0.0  # when its lanes have done what is through the loop
    computed: float = 0.0  # seconds of lanes of all that ever came through
    ends: deque[tuple[float, float]] = field(default_factory=deque)  # and begins, of the under way
    reported: tuple[float, float] = (0.0, 0.0)  # what lanes and loop had done then
    series: dict[str, deque[SimpleNamespace]] = field(default_factory=dict)

    def take(self, now: float, loop: float, lanes: float) -> None:
        """Have a request follow the others."""
        self.loop_free = max(self.loop_free, now) + loop
        self.free = max(self.free, self.loop_free) + lanes
        self.looped += loop
        self.coming.append((self.loop_free, self.free, lanes))
        self.ends.append((self.free, now))

    def wait(self, now: float) -> float:
        """Return seconds that one more request would wait."""
        return max(0.0, self.free - now)

    def done(self, now: float) -> Iterator[float]:
        """Forget the requests that have ended; the seconds that each took."""
        while self.ends and self.ends[0][0] <= now:
            end, began = self.ends.popleft()
            yield end - began

    def waiting(self, now: float) -> float:
        """Return seconds of work that its lanes know of; what waits for the loop is not."""
        while self.coming and self.coming[0][0] <= now:
            _, self.known, seconds = self.coming.popleft()
            self.computed += seconds
        return max(0.0, self.known - now)

    def report(self, now: float, every: float, keep: float) -> None:
        """Return what Ray's controller gets: our three numbers, and Ray's own."""
        waiting = self.waiting(now)
        busy = self.computed - waiting
        loop = self.looped - max(0.0, self.loop_free - now)
        told = {
            policy.BUSY: (busy - self.reported[0]) / every,
            policy.LOOP: (loop - self.reported[1]) / every,
            policy.WAITING: waiting,
            "ongoing": len(self.ends),
        }
        self.reported = busy, loop
        for name, value in told.items():
            points = self.series.setdefault(name, deque())
            points.append(SimpleNamespace(timestamp=now, value=value))
            while points[0].timestamp < now - keep:
                points.popleft()


@dataclass(frozen=True)
class Outcome:
    """What a policy made of a trace."""

    replica_seconds: float
    p50: float
    p99: float
    refused: float  # share of the requests, with what was lost with a node
    peak: int  # of the number that there should be
    last: int  # replicas that serve at the end
    changes: int  # of the number that there should be


@dataclass(frozen=True)
class Way:
    """A policy with the bounds and delays that Ray keeps around it."""

    decide: Callable[[AutoscalingContext], tuple[Any, dict[str, Any]]]
    config: AutoscalingConfig


def ways() -> dict[str, Way]:
    """Return ours; Ray's default, also with our delays; as many as may ever be needed."""
    own = bounds.automatic(Settings(max_replicas=MOST))
    plain = AutoscalingConfig(min_replicas=1, max_replicas=MOST)
    quick = own.model_copy(update={"policy": plain.policy})
    return {
        "Headlight": Way(policy.scale, own),
        "Ray's default": Way(rays.replica_queue_length_autoscaling_policy, plain),
        "Ray's default, our delays": Way(rays.replica_queue_length_autoscaling_policy, quick),
        "fixed": Way(
            lambda context: (MOST, {}), quick.model_copy(update={"initial_replicas": MOST})
        ),
    }


def arrivals(trace: Trace, end: float) -> Iterator[tuple[float, float, float]]:
    """Yield moments, and seconds of loop and lanes of each request, the same for every policy."""
    chance, now, most = random.Random(0), 0.0, 8.0
    while now < end:
        now += chance.expovariate(most / FULL_SECONDS)
        if chance.random() < trace.demand(now, end) / most:
            yield now, chance.expovariate(1 / trace.loop), chance.expovariate(1 / trace.lanes)


class Simulation:
    """One trace under one policy."""

    def __init__(self, way: Way, cold: float) -> None:
        self._way, self._cold, self._now = way, cold, 0.0
        self._scale = rays._apply_autoscaling_config(way.decide)
        self._every, self._keep = way.config.metrics_interval_s, way.config.look_back_period_s
        self._state: dict[str, Any] = {}
        self._target = self._peak = way.config.initial_replicas or 1
        self._servers = [Server(ready=0.0) for _ in range(self._target)]
        self._changes, self._cost = 0, 0.0
        self._times, self._refused = list[float](), 0

    def run(self, trace: Trace, end: float) -> Outcome:
        """Return every request of the trace."""
        tick = 0.0
        with mock.patch.object(rays, "time", SimpleNamespace(time=lambda: self._now)):
            for moment, loop, lanes in arrivals(trace, end):
                while tick <= moment:
                    self._tick(tick, math.floor(trace.places(tick, end)))
                    tick += TICK_SECONDS
                self._now = moment
                self._collect(moment)
                serving = self._serving()
                server = min(serving, key=lambda one: (len(one.ends), one.free), default=None)
                if server is None or server.wait(moment) >= SURE_SECONDS:
                    self._refused += 1
                else:
                    server.take(moment, loop, lanes)
        self._collect(math.inf)
        cuts = statistics.quantiles(self._times, n=100)
        share = self._refused / (self._refused + len(self._times))
        last = len(self._serving())
        return Outcome(self._cost, cuts[49], cuts[98], share, self._peak, last, self._changes)

    def _collect(self, now: float) -> None:
        """Keep the times of what has ended."""
        for one in self._servers:
            self._times.extend(one.done(now))

    def _serving(self) -> list[Server]:
        return [one for one in self._servers if one.ready <= self._now < one.left]

    def _tick(self, now: float, places: int) -> None:
        """Let Ray decide, and pay for what there is."""
        self._now = now
        self._collect(now)
        self._servers = [one for one in self._servers if one.left > now or one.ends]
        running = self._serving()
        if now % self._every == 0:
            for one in running:
                one.report(now, self._every, self._keep)
        target, self._state = self._scale(self._context(running))
        target = max(1, min(MOST, math.ceil(target)))
        self._changes += target != self._target
        self._target = target
        self._follow()
        self._place(places)
        self._cost += TICK_SECONDS * sum(one.ready < math.inf for one in self._servers)

    def _follow(self) -> None:
        """Want and stop replicas until there are as many as there should be."""
        staying = [one for one in self._servers if one.left == math.inf]
        for _ in range(self._target - len(staying)):
            self._servers.append(Server(ready=math.inf))
        newest = sorted(staying, key=lambda one: one.ready)
        for one in newest[self._target :]:
            one.left = self._now  # those without a place go first, then those that still start
        self._peak = max(self._peak, self._target)

    def _place(self, places: int) -> None:
        """Start what finds a place, oldest first; lose what is beyond the places there are."""
        placed = [one for one in self._servers if one.ready < math.inf]
        for one in placed[places:]:
            self._servers.remove(one)
            self._refused += len(one.ends)
        homeless = [one for one in self._servers if one.ready == math.inf == one.left]
        for one in homeless[: max(0, places - len(placed))]:
            one.ready = self._now + self._cold

    def _context(self, running: list[Server]) -> AutoscalingContext:
        """Return what Ray's controller would say."""
        names = range(len(running))
        raw: Any = {
            name: {number: running[number].series.get(name, ()) for number in names}
            for name in (policy.BUSY, policy.LOOP, policy.WAITING)
        }
        means = (
            statistics.fmean(point.value for point in one.series["ongoing"])
            for one in running
            if one.series
        )
        total = sum(means)
        nothing: Any = None
        return AutoscalingContext(
            deployment_id=nothing,
            deployment_name="Encoder",
            app_name=None,
            current_num_replicas=len(running),
            target_num_replicas=self._target,
            running_replicas=list(names),  # type: ignore[arg-type]  # their names do not matter
            total_num_requests=total,
            total_queued_requests=0,
            aggregated_metrics=None,
            raw_metrics=raw,
            capacity_adjusted_min_replicas=1,
            capacity_adjusted_max_replicas=MOST,
            policy_state=self._state,
            last_scale_up_time=None,
            last_scale_down_time=None,
            current_time=self._now,
            config=self._way.config,
        )


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--minutes", type=float, default=120)
    parser.add_argument("--cold", type=float, nargs="+", default=[5.0, 60.0])
    arguments = parser.parse_args()
    print(
        "| trace | cold start | policy | replica-hours | p50 | p99 | refused | most wanted", end=""
    )
    print(" | at the end | changes |\n" + "|---" * 10 + "|")
    for name, trace in TRACES.items():
        for cold in arguments.cold:
            for title, way in ways().items():
                one = Simulation(way, cold).run(trace, 60 * arguments.minutes)
                print(
                    f"| {name} | {cold:g} s | {title} | {one.replica_seconds / 3600:.2f}"
                    f" | {one.p50:.2f} s | {one.p99:.2f} s | {one.refused:.2%}"
                    f" | {one.peak} | {one.last} | {one.changes} |"
                )


if __name__ == "__main__":
    main()
