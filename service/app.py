"""Settings -> the Ray Serve application: one deployment, whose replicas are whole services.

A replica holds the gateway, with model and batcher, and answers HTTP by itself. What is
Ray's here: the replica's life, its health, and the broadcast that gathers all replicas'
metrics. On a cluster, a Serve configuration names `service.app:build` (docs/deploy.md).

What imports torch is imported by a replica alone: the command, which deploys, has no use for it.
"""

import asyncio
import gc
import logging
import math
import os
import tempfile
import time
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import ray
from ray import serve
from starlette.types import ASGIApp

from service.cluster import haproxy, ingress, network, terminal_relay
from service.cluster.model_settings import APPLICATION
from service.cluster.start_report import StartFailed
from service.door import entrance
from service.files import weights
from service.fleet import bounds
from service.fleet.bounds import ReplicaLoad
from service.fleet.pages import Pages
from service.observe import logs
from service.preflight import cluster, variables
from service.preflight.finding import require, run
from service.tables.refusals import REFUSALS
from service.tables.settings import Settings
from service.tables.sources import settle

if TYPE_CHECKING:
    from service.door.door import Door
    from service.pipeline.replica import Replica

logger = logging.getLogger(__name__)


# Settings that `args` must not hold, and where a Serve configuration has them instead
SET_ELSEWHERE = {
    "host": "http_options.host",
    "port": "http_options.port",
    "replicas": "num_replicas of the deployment, or max_replicas here",
    "address": "the cluster that reads this file",
    "log_to_stderr": "logs/worker-*.out of each node",
    "tls_cert": "what ends TLS in front of the cluster",
    "tls_key": "what ends TLS in front of the cluster",
    "api_keys": "a file on the nodes that api_keys_file names",
}

# Replicas that an update starts next to the old ones, rounded up: one for up to five. Ray replaces
# as many at a time; without any it would stop an old one before the new one has shown that it is
# right.
SURGE_PERCENT = 20
# How long a replica that finds itself wrong refuses all before it exits: its metrics are scraped
LEAVE_SECONDS = 6.0
# Of Ray's checks, of which three failures end a replica: after HAProxy's three of 4 s, which give
# its requests to others; in a configuration without it they would be waited for
HEALTH_PERIOD_SECONDS, HEALTH_TIMEOUT_SECONDS = 2.0, 5.0

# Starts that may fail before the deployment does: a model that cannot be loaded never will
# be. On a cluster, a node may be at fault.
TRIES_ALONE, TRIES_ON_A_CLUSTER = 1, 3


def build(args: dict[str, Any]) -> serve.Application:
    """Return the application that a Serve configuration's `args` describe; called by Ray.

    What they leave out comes from the cluster's HEADLIGHT_* variables, as for `headlight serve`.
    What is wrong is one line, the last that `serve status` shows; what serves goes on.

    Args:
        args: settings by name. Ray would check an annotated model itself, in many lines that
            repeat the values.

    Raises:
        StartFailed: a setting is wrong, this cluster's nodes cannot carry requests as promised, or
            could not run a replica; names them.
        ModelNotFound: the hub does not know the model.
    """
    if misplaced := sorted(args.keys() & SET_ELSEWHERE.keys()):
        faults = (f"args.{name}: not here but in {SET_ELSEWHERE[name]}" for name in misplaced)
        raise StartFailed("; ".join(faults))
    try:
        config = settle({}, os.environ, {}, args, "args.")
    except ValueError as error:
        raise StartFailed(str(error)) from None
    options = cluster.http_options()
    if options.ssl_keyfile:
        raise StartFailed("http_options: HAProxy does not read ssl_*; end TLS in front of it")
    require(run("build", cluster.CHECKS, config, cluster.read_cluster(str(options.host))))
    config = config.model_copy(update={"model": weights.pin_revision(config.model)})
    defaults = {"ray_actor_options": actor_options(config), "max_surge_percent": SURGE_PERCENT}
    cluster.probe_nodes(config, Settings.model_validate(args), ingress.DEPLOYMENT, defaults)
    return make_application(config, TRIES_ON_A_CLUSTER)


def make_application(
    settings: Settings, tries: int, lines: Path | None = None
) -> serve.Application:
    """Return the service as a Ray Serve application; nothing is loaded before a replica starts.

    Args:
        tries: how many starts of a replica may fail.
        lines: where a relay takes the replicas' log lines (cluster/terminal_relay.py).
    """
    return EncoderDeployment.options(  # type: ignore[attr-defined,no-any-return]  # made by a decorator
        **bounds.replica_options(settings),
        ray_actor_options=actor_options(settings),
        max_ongoing_requests=ingress.max_ongoing_requests(settings),
        # Ray counts here what came in one turn of the loop, before it looks whether there is room
        max_queued_requests=ingress.max_ongoing_requests(settings),
        backpressure_config={"status_code": REFUSALS["overloaded"].status, "retry_after_s": 1},
        health_check_period_s=HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=HEALTH_TIMEOUT_SECONDS,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=ingress.shutdown_seconds(settings),
        max_constructor_retry_count=tries,
        max_surge_percent=SURGE_PERCENT,
    ).bind(settings, lines)


def actor_options(settings: Settings) -> dict[str, Any]:
    """Return the default ray_actor_options: what a replica takes of its node."""
    return {"num_cpus": 0, "num_gpus": gpu_share(settings), **ingress.LABEL_DEMAND}


def gpu_share(settings: Settings) -> float:
    """Return the fraction of a GPU that a replica takes; at 0 Ray hides all GPUs from it."""
    if settings.device == "cpu":
        return 0
    if settings.device == "cuda" and settings.machine_replicas == 1:  # Ray is not asked
        return 1
    gpus = int(cluster.read_cluster(settings.host).resources.get("GPU", 0))
    if not gpus:
        return int(settings.device == "cuda")
    from service.proof import machine  # which imports torch

    return machine.gpu_share(settings.machine_replicas, gpus)


def deployment_status(name: str = APPLICATION) -> tuple[dict[str, int], str]:
    """Return an application's number of replicas by state, and Ray's message on its deployment."""
    application = serve.status().applications.get(name)
    deployment = application.deployments.get(ingress.DEPLOYMENT) if application else None
    if deployment is None:
        return {}, ""
    states = deployment.replica_states.items()  # by Ray's enumeration, or by its names
    return {getattr(state, "value", state): count for state, count in states}, deployment.message


def keys_folder(lines: Path | None) -> Path:
    """Return the folder on this node for the last good keys, as long as this Ray runs.

    Args:
        lines: in the directory of a service with a Ray of its own, which goes with it.
    """
    folder = lines.parent if lines else Path(tempfile.gettempdir())
    return folder / f"headlight-keys-{ray.get_runtime_context().get_session_name()}"


@serve.deployment(name=ingress.DEPLOYMENT)
@serve.ingress()
class EncoderDeployment:
    """The deployment: each instance is a replica, which holds a whole service."""

    def __init__(self, settings: Settings, lines: Path | None = None) -> None:
        """Check the node and open the logs; nothing is loaded yet.

        Args:
            lines: the pipe to which log lines go too (cluster/terminal_relay.py).

        Raises:
            StartFailed: this node was started without the variables that keep the promise.
            ValueError: its variables, or its file of keys, are wrong.
        """
        context = serve.get_replica_context()
        file = cluster.read_options(context.app_name, ingress.DEPLOYMENT)
        bounds.refuse_overrides(settings, file)
        counted = bounds.with_replicas(settings, context.world_size)
        variables.require_variables(counted, os.environ, cluster.here())
        joined = cluster.read_cluster(str(cluster.http_options().host))
        require(run("replica", cluster.CHECKS, settings, joined))
        network.raise_open_files_limit()
        self.label = context.replica_tag
        self.pages = Pages(ingress.DEPLOYMENT, context.app_name, self.metrics)
        line_pipe = None
        if lines:
            with suppress(OSError):  # its lines stand in its file all the same
                line_pipe = terminal_relay.open_pipe(lines, self.label)
        logs.start_logging(
            settings.log_format, self.label, line_pipe, mirror_all=settings.log_to_stderr
        )
        self.settings, self.lines = settings, lines
        self.replica: Replica | None = None  # until started
        self.door: Door | None = None
        self.leaving = math.inf  # monotonic time at which Ray was first seen to take it out

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Start the replica and give Ray the ASGI application, which it runs as it is.

        An exception here fails the replica's start.
        """
        from service.door.door import Door

        failed = await self.pages.replaces_failed()
        try:
            self.replica = await self._start_replica()
        except Exception as error:
            if failed:  # who started the service is told of a first start that fails
                logger.error("replica not started", extra={"reason": str(error)})
            raise
        self.replica.metrics.set_replaces_failed(failed=failed)
        loop = asyncio.get_running_loop()
        leave = partial(loop.call_later, LEAVE_SECONDS, os._exit, 1)
        self.replica.health.batches.on_fault = leave
        gc.collect()
        gc.freeze()  # else each collection stops the loop to look through all that was loaded
        gc.disable()  # it is collected while nothing is asked (door/under_way.py)
        self.pages.warm()
        self.load = ReplicaLoad(self.replica)
        self.door = Door(self.replica, self.pages.scrape, self.pages.targets, self._front())
        entrance.HERE.loop, entrance.HERE.stays = loop, self.stays
        entrance.HERE.names = self.door.names()
        entrance.HERE.door = self.door  # which Ray's server, made after this, finds there
        return self.door

    async def _start_replica(self) -> "Replica":
        """Load and prove the model; raises as `Replica.start`."""
        from service.pipeline.replica import Replica

        return await Replica.start(self.settings, self.label, keys_folder(self.lines))

    def _front(self) -> str:
        """Return the address of this node's HAProxy."""
        options = cluster.http_options()
        scheme = "https" if self.settings.tls_cert else "http"
        host = os.environ.get(haproxy.HOST_VARIABLE) or str(options.host)
        return f"{scheme}://{network.client_host(host)}:{options.port}"

    async def __del__(self) -> None:
        """Let admitted work finish; Ray awaits this when the replica leaves."""
        if self.replica:
            await self.replica.close()
        if self.door:
            await self.door.close()
        self.pages.close()

    def check_health(self) -> None:
        """Raise when Ray must replace this replica; else note that Ray keeps it.

        One that knows itself wrong leaves by itself. If Ray knew, its probe would fail: HAProxy
        would ask it for nothing more, not even for the metrics that say what is wrong.
        """
        replica = self._started_replica()
        if not replica.health.fault:
            replica.check_health()
        self.leaving = math.inf  # Ray asks only a replica that it keeps

    def stays(self) -> bool:
        """Tell whether a replica that Ray takes out should still be asked.

        Ray's probe fails at once, and may be all that HAProxy has for a moment: it is told of the
        successor later. So it passes for half the time that a stopping replica stays reachable.
        """
        self.leaving = min(self.leaving, time.monotonic())
        try:
            self._started_replica().health.raise_if_faulty()
        except RuntimeError:
            return False
        return time.monotonic() - self.leaving < self.settings.drain_seconds / 2

    def record_autoscaling_stats(self) -> dict[str, float]:
        """Return the load that Ray passes on to our policy (fleet/policy.py); called by Ray."""
        return self.load.report()

    async def metrics(self, openmetrics: bool) -> tuple[str, bytes]:
        """Return this replica's name and metrics; called by broadcast."""
        write = self._started_replica().freeze_metrics(openmetrics)
        return self.label, await asyncio.to_thread(write)

    def _started_replica(self) -> "Replica":
        """Return the replica; raises RuntimeError while it starts."""
        if self.replica is None:
            raise RuntimeError("starting")
        return self.replica
