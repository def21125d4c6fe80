"""How many replicas there should be: a pure function of what each of them reports.

    report    of one replica: the share of its time that its lanes computed, and that its event
              loop did, and the seconds of work that wait or run in it, by its own measured speed
              (bounds.py)
    load      of one replica: how many replicas its work would keep busy
    desired   of all of them: how many there should be, if not as many as now

Ray calls `scale` ten times a second in its controller, and applies bounds and delays of its own
to the answer. It pickles this file by value, so nothing here is imported that an image may lack.
What each number is worth: docs/decisions/0021-autoscaling.md.
"""

import math
import time
from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from ray.serve.config import AutoscalingContext

# Names of the values in a report
BUSY, LOOP, WAITING = "headlight_busy", "headlight_loop", "headlight_waiting_seconds"

# Above HIGH each, there should be more; below, as few as would be no busier than LOW each. In
# between nothing changes: a constant load calls for one change at most.
HIGH, LOW = 0.75, 0.5
DRAIN_SECONDS = 10.0  # in which what waits should be done
WINDOW_SECONDS = 10.0  # over which a share is averaged: a report covers two
STALE_SECONDS = 20.0  # since a replica's last report, which comes every two
LONGEST_WAIT_SECONDS = 600.0  # the longest deadline; a longer reported wait counts as this


class Report(Protocol):
    """One value of a replica's report, with its time."""

    timestamp: float  # Unix time, in seconds, by the replica's clock
    value: float


def scale(context: "AutoscalingContext") -> tuple[int, dict[str, Any]]:
    """Return how many replicas there should be, and the state for the next call; called by Ray."""
    least = context.capacity_adjusted_min_replicas
    most = context.capacity_adjusted_max_replicas
    now = context.current_time or time.time()
    loads = replica_loads(context.raw_metrics or {}, context.running_replicas, now)
    target = context.target_num_replicas
    number = desired_replicas(target, loads, least, most)
    return highest_desired(number, target, context.policy_state)


def replica_loads(
    metrics: Mapping[str, Mapping[Any, Sequence[Report]]], replicas: Iterable[Any], now: float
) -> list[float | None]:
    """Return the load of each replica (see replica_load); None where it has not reported lately.

    Args:
        metrics: reports by name of the value, then by replica.
        now: Unix time, in seconds.
    """
    busy, loop, waiting = (metrics.get(value, {}) for value in (BUSY, LOOP, WAITING))
    return [
        replica_load((busy.get(name, ()), loop.get(name, ())), waiting.get(name, ()), now)
        for name in replicas
    ]


def replica_load(
    shares: Iterable[Sequence[Report]], waiting: Sequence[Report], now: float
) -> float | None:
    """Return how many replicas a replica's work would keep busy, from 0 up; None if unknown.

    Above 1, more arrives than it can do: the excess waits, so what waits counts as well.

    Args:
        shares: of its time that its lanes were busy, and its event loop: the larger one counts.
        waiting: seconds of work that waited or ran.
    """
    known = [recent_values(share, now) for share in shares]
    seconds = recent_values(waiting, now)
    if not all(known) or not seconds:
        return None
    share = min(max(sum(values) / len(values) for values in known), 1.0)
    return share + min(seconds[-1], LONGEST_WAIT_SECONDS) / DRAIN_SECONDS


def recent_values(reports: Sequence[Report], now: float) -> list[float]:
    """Return the valid values of a replica's last WINDOW_SECONDS of reports.

    Empty if the last is STALE_SECONDS old. The window ends with the last, whose clock may differ.
    """
    times = (report.timestamp for report in reports)
    last = max(filter(math.isfinite, times), default=-math.inf)
    if last < now - STALE_SECONDS:
        return []
    values = (report.value for report in reports if report.timestamp > last - WINDOW_SECONDS)
    return [value for value in values if math.isfinite(value) and value >= 0]


def desired_replicas(target: int, loads: Sequence[float | None], least: int, most: int) -> int:
    """Return how many replicas there should be, at least one.

    Args:
        target: how many there should have been so far.
        loads: of each that runs; None where it is unknown. That counts as none for more replicas,
            as of one that has just started, and keeps all there are: it may be busy. One that does
            not run has no load: it may wait for a node forever, and the others need not.
        least, most: bounds of the number.
    """
    known = [load for load in loads if load is not None]
    up, down = math.ceil(sum(known) / HIGH), math.ceil(sum(known) / LOW)
    number = max(target, up)
    if known and len(known) == len(loads):
        number = max(min(target, down), up)
    return max(min(number, most), least, 1)


def highest_desired(
    number: int, target: int, state: Mapping[str, Any]
) -> tuple[int, dict[str, Any]]:
    """Return the highest number since it fell below `target`, and the state to remember.

    Ray scales down after a delay, to the number of its last moment, which may be an idle one.
    """
    if number >= target:
        return number, {}
    before = state.get("highest", 0) if state.get("target") == target else 0
    return max(number, before), {"target": target, "highest": max(number, before)}
