"""What a policy that scales replicas costs, and what clients feel: a simulation.

    python benchmarks/autoscale.py [--minutes 120] [--cold 5 60]

Requests arrive at random moments along a trace; each takes its seconds of one replica, in turn, on
the replica with the fewest under way. A replica that is wanted serves after the cold start, one
that leaves finishes what it has. What would wait longer than admission allows is refused.

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

MEAN_SECONDS = 0.1  # of one replica, for a request
MOST = 12  # replicas
SURE_SECONDS = (
    24.0  # the deadline's 30, times the batcher's SURE: what would wait longer is refused
)
TICK_SECONDS = 1.0  # Ray decides ten times as often, on reports no younger than two seconds
TRACES: dict[str, Callable[[float, float], float]] = {}  # replicas' worth of work, by time and end


def trace(make: Callable[[float, float], float]) -> Callable[[float, float], float]:
    """Name a trace."""
    TRACES[make.__name__] = make
    return make


@trace
def diurnal(now: float, end: float) -> float:
    """Two days' swing between 0.6 and 6."""
    return 3.3 - 2.7 * math.cos(4 * math.pi * now / end)


@trace
def bursty(now: float, end: float) -> float:
    """One, and 4 for 90 s in every ten minutes."""
    return 4.0 if now % 600 < 90 else 1.0


@trace
def crowd(now: float, end: float) -> float:
    """A half, and from a third of the time on 7 for five minutes, at once."""
    return 7.0 if 0 <= now - end / 3 < 300 else 0.5


@dataclass(eq=False)
class Server:
    """One replica: requests one after the other."""

    ready: float
    free: float = 0.0  # when it has done all it has
    assigned: float = 0.0  # seconds of work that it was ever given
    ends: deque[float] = field(default_factory=deque)  # of the requests under way
    left: float = math.inf  # when it was told to leave
    reported: float = 0.0  # seconds it had computed then
    series: dict[str, deque[SimpleNamespace]] = field(default_factory=dict)

    def backlog(self, now: float) -> float:
        """Seconds of work that wait or run."""
        return max(0.0, self.free - now)

    def ongoing(self, now: float) -> int:
        """Requests under way."""
        while self.ends and self.ends[0] <= now:
            self.ends.popleft()
        return len(self.ends)

    def take(self, now: float, seconds: float) -> float:
        """Run a request after the others; when it ends."""
        self.free = max(self.free, now) + seconds
        self.assigned += seconds
        self.ends.append(self.free)
        return self.free

    def report(self, now: float, every: float, keep: float) -> None:
        """What Ray's controller gets: our two numbers, and Ray's own."""
        computed = self.assigned - self.backlog(now)
        share, self.reported = (computed - self.reported) / every, computed
        told = {
            policy.BUSY: share,
            policy.WAITING: self.backlog(now),
            "ongoing": self.ongoing(now),
        }
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
    refused: float  # share of the requests
    peak: int
    changes: int  # of the number that there should be


@dataclass(frozen=True)
class Way:
    """A policy with the bounds and delays that Ray keeps around it."""

    decide: Callable[[AutoscalingContext], tuple[Any, dict[str, Any]]]
    config: AutoscalingConfig


def ways() -> dict[str, Way]:
    """Ours; Ray's default as it comes, and with our delays; as many as may ever be needed."""
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


def arrivals(demand: Callable[[float, float], float], end: float) -> Iterator[tuple[float, float]]:
    """Moments and seconds of work of each request, the same for every policy."""
    chance, now, most = random.Random(0), 0.0, 8.0
    while now < end:
        now += chance.expovariate(most / MEAN_SECONDS)
        if chance.random() < demand(now, end) / most:
            yield now, chance.expovariate(1 / MEAN_SECONDS)


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

    def run(self, demand: Callable[[float, float], float], end: float) -> Outcome:
        """Every request of the trace."""
        times, refused, tick = list[float](), 0, 0.0
        with mock.patch.object(rays, "time", SimpleNamespace(time=lambda: self._now)):
            for moment, seconds in arrivals(demand, end):
                while tick <= moment:
                    self._tick(tick)
                    tick += TICK_SECONDS
                self._now = moment
                server = min(self._serving(), key=lambda one: (one.ongoing(moment), one.free))
                if server.backlog(moment) >= SURE_SECONDS:
                    refused += 1
                else:
                    times.append(server.take(moment, seconds) - moment)
        cuts = statistics.quantiles(times, n=100)
        share = refused / (refused + len(times))
        return Outcome(self._cost, cuts[49], cuts[98], share, self._peak, self._changes)

    def _serving(self) -> list[Server]:
        return [one for one in self._servers if one.ready <= self._now < one.left]

    def _tick(self, now: float) -> None:
        """Let Ray decide, and pay for what there is."""
        self._now = now
        self._servers = [one for one in self._servers if one.left > now or one.backlog(now)]
        self._cost += TICK_SECONDS * len(self._servers)
        running = self._serving()
        if now % self._every == 0:
            for one in running:
                one.report(now, self._every, self._keep)
        target, self._state = self._scale(self._context(running))
        target = max(1, min(MOST, math.ceil(target)))
        self._changes += target != self._target
        self._target = target
        self._follow()

    def _follow(self) -> None:
        """Start and stop replicas until there are as many as there should be."""
        staying = [one for one in self._servers if one.left == math.inf]
        for _ in range(self._target - len(staying)):
            self._servers.append(Server(ready=self._now + self._cold))
        newest = sorted(staying, key=lambda one: one.ready)
        for one in newest[self._target :]:
            one.left = self._now  # those that still start go first, as Ray has it
        self._peak = max(self._peak, self._target)

    def _context(self, running: list[Server]) -> AutoscalingContext:
        """What Ray's controller would say."""
        names = range(len(running))
        raw: Any = {
            name: {number: running[number].series.get(name, ()) for number in names}
            for name in (policy.BUSY, policy.WAITING)
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
    print("| trace | cold start | policy | replica-hours | p50 | p99 | refused | most | changes |")
    print("|---|---|---|---|---|---|---|---|---|")
    for name, demand in TRACES.items():
        for cold in arguments.cold:
            for title, way in ways().items():
                one = Simulation(way, cold).run(demand, 60 * arguments.minutes)
                print(
                    f"| {name} | {cold:g} s | {title} | {one.replica_seconds / 3600:.2f}"
                    f" | {one.p50:.2f} s | {one.p99:.2f} s | {one.refused:.2%}"
                    f" | {one.peak} | {one.changes} |"
                )


if __name__ == "__main__":
    main()
