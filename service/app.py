"""Settings -> the Ray Serve application: one deployment, whose replicas are whole services.

A replica holds the gateway, with model and batcher, and answers HTTP by itself. What is
Ray's here: the replica's life, its health, and the broadcast that gathers all replicas'
metrics. On a cluster, a Serve configuration names `service.app:build` (docs/deploy.md).
"""

import asyncio
import contextvars
import gc
import math
import os
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client
from ray.serve.exceptions import RayServeException
from starlette.types import ASGIApp

from service import needs, settings
from service.cluster import descriptors, ingress, nodes, relay
from service.edge import direct
from service.edge import routes as edge
from service.engine import weights
from service.observe import logs, scrape
from service.refusals import REFUSALS
from service.replica import Replica
from service.settings import Settings

APPLICATION, DEPLOYMENT = "headlight", "Encoder"

SCRAPE_SECONDS = 1.0  # a replica that takes longer is left out of the page
# A replica that knows itself wrong has refused all until then, and its metrics were scraped once
LEAVE_SECONDS = 6.0
HEALTH_PERIOD_SECONDS, HEALTH_TIMEOUT_SECONDS = 2.0, 3.0  # three failures replace a replica

# Starts that may fail before the deployment does: a model that cannot be loaded never will
# be. On a cluster, a node may be at fault.
TRIES_ALONE, TRIES_ON_A_CLUSTER = 1, 3

# What a Serve configuration says elsewhere, where Ray reads it
ELSEWHERE = {
    "host": "http_options.host",
    "port": "http_options.port",
    "replicas": "num_replicas of the deployment",
    "address": "the cluster that reads this file",
    "log_to_stderr": "logs/worker-*.out of each node",
}


def build(args: Settings) -> serve.Application:
    """Describe the service as a Serve configuration's `args` have it.

    What they leave out comes from the cluster's HEADLIGHT_* variables, as for `headlight serve`.

    Raises:
        ValueError: a setting that the configuration says elsewhere.
        Unsuited: this cluster's nodes cannot carry requests as promised; names them.
        ModelNotFound: the hub does not know the model.
    """
    if misplaced := sorted(args.model_fields_set & ELSEWHERE.keys()):
        raise ValueError("; ".join(f"not {name} but {ELSEWHERE[name]}" for name in misplaced))
    config = settings.load(args.model_dump(include=args.model_fields_set))
    ingress.check(config, os.environ, here())
    if unsuited := list(nodes.unsuited(known(), host())):
        raise ingress.Unsuited("; ".join(unsuited))
    config = config.model_copy(update={"model": weights.pin(config.model)})
    return describe(config, TRIES_ON_A_CLUSTER)


def describe(settings: Settings, tries: int, lines: Path | None = None) -> serve.Application:
    """Describe the service to Ray Serve; nothing is loaded before a replica starts.

    Args:
        tries: starts of a replica that may fail.
        lines: where a relay takes the replicas' log lines (cluster/relay.py).
    """
    return Encoder.options(  # type: ignore[attr-defined,no-any-return]  # made by a decorator
        num_replicas=settings.replicas,
        ray_actor_options={"num_cpus": 0, "num_gpus": gpus(settings), **nodes.DEMAND},
        max_ongoing_requests=ingress.ongoing(settings),
        # Ray counts here what came in one turn of the loop, before it looks whether there is room
        max_queued_requests=ingress.ongoing(settings),
        backpressure_config={
            "status_code": REFUSALS["overloaded"].status,
            "retry_after_s": 1,
        },
        health_check_period_s=HEALTH_PERIOD_SECONDS,
        health_check_timeout_s=HEALTH_TIMEOUT_SECONDS,
        graceful_shutdown_wait_loop_s=0.1,
        graceful_shutdown_timeout_s=ingress.shutdown_seconds(settings),
        max_constructor_retry_count=tries,
    ).bind(settings, lines)


def gpus(settings: Settings) -> float:
    """Return the part of a GPU that a replica takes, of those that Ray has."""
    whole = settings.device == "cuda" and settings.replicas == 1  # whatever Ray has
    return needs.gpus(settings, {} if whole or settings.device == "cpu" else resources())


def status() -> tuple[dict[str, int], str]:
    """Return how many replicas are in which state, and what Ray says of the deployment."""
    application = serve.status().applications.get(APPLICATION)
    deployment = application.deployments.get(DEPLOYMENT) if application else None
    if deployment is None:
        return {}, ""
    return {state.value: n for state, n in deployment.replica_states.items()}, deployment.message


def resources() -> dict[str, float]:
    """Return what the nodes that may get a replica have together."""
    return nodes.resources(known())


def known() -> nodes.Nodes:
    """Return the nodes of the Ray we are on, dead ones too."""
    return list(ray.nodes())  # type: ignore[no-untyped-call]  # Ray's gap


def here() -> str:
    """Return the address of this node."""
    return str(ray.util.get_node_ip_address())  # type: ignore[no-untyped-call]  # Ray's gap


def host() -> str:
    """Return what every node listens on for clients."""
    return str(_get_global_client().http_config.host)  # type: ignore[union-attr]  # raises instead


@serve.deployment(name=DEPLOYMENT)
@serve.ingress()
class Encoder:
    """One replica."""

    def __init__(self, settings: Settings, lines: Path | None = None) -> None:
        """Make the replica's parts; nothing is loaded yet.

        Raises:
            Unsuited: this node was started without the variables that carry requests as promised.
        """
        context = serve.get_replica_context()
        replicas = context.world_size or settings.replicas  # unknown where Ray scales by itself
        ingress.check(settings.model_copy(update={"replicas": replicas}), os.environ, here())
        for reason in nodes.apart(known(), host(), here()):
            raise ingress.Unsuited(f"{here()} cannot serve: {reason}")
        descriptors.raise_limit()
        # Ray makes the outermost layer after this, from the environment: two models of one
        # cluster have a process each, and with it limits of their own.
        os.environ.update(ingress.guard_variables(settings))
        self.label, self.application = context.replica_id.unique_id, context.app_name
        self.handle = serve.get_deployment_handle(DEPLOYMENT, context.app_name)
        self.controller = ThreadPoolExecutor(1, "status")  # Ray's controller may not answer
        also = None
        if lines:
            with suppress(OSError):  # its lines stand in its file all the same
                also = relay.pipe(lines, self.label)
        logs.start(settings.log_format, self.label, also, whole=settings.log_to_stderr)
        self.scrapes: dict[bool, asyncio.Task[bytes]] = {}  # by form, see scrape
        self.settings = settings
        self.replica: Replica | None = None  # until started

    async def __serve_build_asgi_app__(self) -> ASGIApp:
        """Start the replica and give Ray the ASGI application, which it runs as it is.

        An exception here fails the replica's start.
        """
        self.replica = await Replica.start(self.settings, self.label)
        loop = asyncio.get_running_loop()
        leave = partial(loop.call_later, LEAVE_SECONDS, os._exit, 1)
        self.replica.health.batches.on_fault = leave
        gc.collect()
        gc.freeze()  # else to look through all that was loaded, each time, stops the event loop
        # Ray makes a handle's router at its first use, which takes a tenth of a second
        self.router = asyncio.create_task(self.others(openmetrics=False))
        return direct.PROCESS.known(edge.application(self.replica, self.scrape))

    async def __del__(self) -> None:
        """Let admitted work finish; Ray awaits this when the replica leaves."""
        if self.replica:
            self.router.cancel()
            await self.replica.close()
        self.controller.shutdown(wait=False, cancel_futures=True)

    def check_health(self) -> None:
        """Raise when Ray must replace this replica."""
        self._started().health.check()

    async def metrics(self, openmetrics: bool) -> tuple[str, bytes]:
        """Return this replica's name and metrics; called by broadcast."""
        return self.label, self._started().page(openmetrics)

    def _started(self) -> Replica:
        if self.replica is None:
            raise RuntimeError("starting")
        return self.replica

    async def scrape(self, openmetrics: bool) -> bytes:
        """Return all replicas' metrics; scrapes that come together share one broadcast.

        The task has a context of its own: in a request's, Ray would cancel the broadcast
        with that request, and the others would wait for nothing.
        """
        if openmetrics not in self.scrapes or self.scrapes[openmetrics].done():
            page = self.gather(openmetrics)
            task = asyncio.create_task(page, context=contextvars.Context())
            self.scrapes[openmetrics] = task
        return await asyncio.shield(self.scrapes[openmetrics])

    async def gather(self, openmetrics: bool) -> bytes:
        """Broadcast once and join what came in time, this replica's metrics in any case."""
        others, count = await asyncio.gather(self.others(openmetrics), self.count())
        texts = dict([*others, await self.metrics(openmetrics)])
        joined = [texts[replica] for replica in sorted(texts)]
        return scrape.join(joined, len(texts) < count, openmetrics)

    async def count(self) -> float:
        """Ask how many replicas run or start, which scaling changes; infinity if Ray is silent."""
        loop = asyncio.get_running_loop()
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                status = await loop.run_in_executor(self.controller, serve.status)
            states = status.applications[self.application].deployments[DEPLOYMENT].replica_states
        except (RayError, RayServeException, TimeoutError, KeyError):  # KeyError: being deleted
            return math.inf
        return sum(count for state, count in states.items() if state != "STOPPING")

    async def others(self, openmetrics: bool) -> list[tuple[str, bytes]]:
        """Ask every replica for its metrics, each by itself: Ray's own way is all or none."""
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                broadcast = self.handle.broadcast("metrics", openmetrics)
                requests = await broadcast._fetch_replica_results_async()
        except (RayError, RayServeException, TimeoutError):
            return []  # no replica known yet, or nobody who knows
        answers = [
            asyncio.ensure_future(answer.get_async())  # type: ignore[no-untyped-call]  # Ray's gap
            for answer in requests
        ]
        done, late = await asyncio.wait(answers, timeout=SCRAPE_SECONDS)
        for answer in late:
            answer.cancel()
        return [answer.result() for answer in done if answer.exception() is None]
