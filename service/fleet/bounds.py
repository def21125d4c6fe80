"""The bounds that Ray gets for the number of replicas, and the load that each replica reports."""

import time
import warnings
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from ray.serve.config import AutoscalingConfig, AutoscalingPolicy

from service.cluster import ingress
from service.cluster.start_report import StartFailed
from service.fleet import policy
from service.fleet.policy import BUSY, LOOP, WAITING
from service.tables.settings import Settings

if TYPE_CHECKING:
    from service.pipeline.replica import Replica

REPORT_SECONDS = 2.0  # between two reports of a replica: Ray's own 10 s are most of a crowd's rise
UPSCALE_DELAY_SECONDS = 4.0  # for two reports to agree
# An option that a Serve configuration may not set: Ray would use it without our policy
AUTOSCALING_OPTION = "autoscaling_config"


def replica_options(settings: Settings) -> dict[str, Any]:
    """Return the options of the deployment that decide its number of replicas."""
    if settings.max_replicas is None:
        return {"num_replicas": settings.replicas}
    return {AUTOSCALING_OPTION: autoscaling_config(settings)}


def autoscaling_config(settings: Settings) -> AutoscalingConfig:
    """Return Ray's autoscaling options: our policy, and bounds and delays around it."""
    with warnings.catch_warnings():
        # this interval's successors are variables, which Ray 2.60 does not read
        warnings.simplefilter("ignore", DeprecationWarning)
        return AutoscalingConfig(
            min_replicas=settings.fewest_replicas,
            max_replicas=settings.most_replicas,
            metrics_interval_s=REPORT_SECONDS,
            look_back_period_s=policy.STALE_SECONDS,
            upscale_delay_s=UPSCALE_DELAY_SECONDS,
            downscale_delay_s=settings.downscale_delay_seconds,
            policy=AutoscalingPolicy(  # type: ignore[no-untyped-call]  # Ray's gap
                policy_function=f"{policy.__name__}:{policy.scale.__name__}"
            ),
        )


def with_replicas(settings: Settings, replicas: int | None) -> Settings:
    """Return the settings with the number of replicas from a Serve configuration.

    Args:
        replicas: as Ray says; ignored with max_replicas, where it is the number at the start.
    """
    if settings.max_replicas is not None or replicas is None:
        return settings
    return settings.model_copy(update={"replicas": replicas})


def refuse_overrides(settings: Settings, options: Mapping[str, Any]) -> None:
    """Check that a Serve configuration does not set what `args` decide.

    Args:
        options: of the deployment, that the configuration has.

    Raises:
        StartFailed: it says something that would override `args`, or be ignored.
    """
    most, least = ingress.max_ongoing_requests(settings), ingress.shutdown_seconds(settings)
    for name in ("max_ongoing_requests", "max_queued_requests"):
        if options.get(name, most) != most:
            raise StartFailed(f"{name}: leave it out; max_waiting_requests in args decides it")
    if options.get("graceful_shutdown_timeout_s", least) < least:
        raise StartFailed(f"graceful_shutdown_timeout_s: write at least {least:g}, or leave it out")
    scales = options.get(AUTOSCALING_OPTION) or options.get("num_replicas") == "auto"
    if settings.max_replicas is None and scales:
        raise StartFailed(f"not {AUTOSCALING_OPTION} but min_replicas and max_replicas in args")
    for name in (AUTOSCALING_OPTION, "num_replicas"):
        if settings.max_replicas is not None and name in options:
            raise StartFailed(f"max_replicas: leave {name} out of the deployment")


class ReplicaLoad:
    """Measures the work of one replica between two reports."""

    def __init__(self, replica: "Replica", clock: Callable[[], float] = time.monotonic) -> None:
        self._replica, self._clock = replica, clock
        # of the last report: its time, and the seconds computed until then
        self._last_report, self._last_lanes = clock(), self._lane_seconds
        self._last_loop = replica.loop_seconds()

    def report(self) -> dict[str, float]:
        """Return the busy shares of its lanes and event loop, and the seconds of work left.

        A batch counts when it ends: one that took longer than a report does makes a share above 1.
        """
        now, lanes, loop = self._clock(), self._lane_seconds, self._replica.loop_seconds()
        passed = now - self._last_report
        lane_count = len(self._replica.lanes)
        busy = (lanes - self._last_lanes) / (passed * lane_count) if passed else 0.0
        loop_share = (loop - self._last_loop) / passed if passed else 0.0
        self._last_report, self._last_lanes, self._last_loop = now, lanes, loop
        return {BUSY: busy, LOOP: loop_share, WAITING: self._replica.batcher.waiting_seconds}

    @property
    def _lane_seconds(self) -> float:
        """Return the seconds that all lanes have computed since the start."""
        return self._replica.health.batches.lane_seconds
