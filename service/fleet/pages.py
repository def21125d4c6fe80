"""All replicas' metrics as one page, from whichever of them is asked."""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TypeVar

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.context import _get_global_client as get_global_client
from ray.serve.exceptions import RayServeException
from ray.serve.schema import DeploymentStatusOverview

from service.observe import scrape
from service.refusals import Refused

SCRAPE_SECONDS = 1.0  # a replica that takes longer is left out of the page

# What Ray's controller raises when it does not answer; KeyError: the application is being deleted
RAY_ERRORS = RayError, RayServeException, TimeoutError, KeyError
T = TypeVar("T")

# Returns a replica's name and its metrics: True: as OpenMetrics; False: as Prometheus text
RenderOwn = Callable[[bool], Awaitable[tuple[str, bytes]]]


class Pages:
    """Gathers the metrics and addresses of all replicas, in any one of them.

    Args:
        deployment, application: names of those whose replicas they are.
        own: returns this replica's metrics.
    """

    def __init__(self, deployment: str, application: str, own: RenderOwn) -> None:
        self._deployment, self._application, self._own = deployment, application, own
        self._handle = serve.get_deployment_handle(deployment, application)
        self._controller = ThreadPoolExecutor(1, "status")  # Ray's controller may not answer
        self._scrapes: dict[bool, asyncio.Task[bytes]] = {}  # by form, see scrape
        self._router: asyncio.Task[list[tuple[str, bytes]]] | None = None

    def warm(self) -> None:
        """Create the handle's router now, which at its first use takes a tenth of a second."""
        self._router = asyncio.create_task(self._ask_others(openmetrics=False))

    def close(self) -> None:
        """Cancel what still waits for Ray."""
        if self._router:
            self._router.cancel()
        self._controller.shutdown(wait=False, cancel_futures=True)

    async def scrape(self, openmetrics: bool) -> bytes:
        """Return all replicas' metrics; scrapes that come together share one broadcast.

        The task has a context of its own: in a request's, Ray would cancel the broadcast
        with that request, and the others would wait for nothing.
        """
        if openmetrics not in self._scrapes or self._scrapes[openmetrics].done():
            page = self._gather(openmetrics)
            task = asyncio.create_task(page, context=contextvars.Context())
            self._scrapes[openmetrics] = task
        return await asyncio.shield(self._scrapes[openmetrics])

    async def targets(self) -> list[str]:
        """Return host:port of each replica that runs, past HAProxy; sorted.

        Raises:
            Refused: Ray's controller does not answer.
        """
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                return await self._ask_ray(self._addresses)
        except (RayError, RayServeException, TimeoutError):
            raise Refused("not_ready", retry_after=1) from None

    def _addresses(self) -> list[str]:
        """Return host:port of each replica, as Ray's controller tells HAProxy; sorted."""
        client = get_global_client()  # there is no public way
        if client is None:
            raise RayServeException("Serve is not running")
        reply = client._controller.get_target_groups.remote(
            self._application, from_proxy_manager=True
        )
        groups = ray.get(reply, timeout=SCRAPE_SECONDS)
        http = (group for group in groups if group.protocol == "HTTP")
        return sorted(f"{target.ip}:{target.port}" for group in http for target in group.targets)

    async def _gather(self, openmetrics: bool) -> bytes:
        """Return the metrics of all replicas that answer in time, and of this one in any case."""
        others, count = await asyncio.gather(self._ask_others(openmetrics), self._count_replicas())
        texts = dict([*others, await self._own(openmetrics)])
        joined = [texts[replica] for replica in sorted(texts)]
        incomplete = count is None or len(texts) < count
        return scrape.join_pages(joined, incomplete, openmetrics, expected=count)

    async def replaces_failed(self) -> bool:
        """Tell whether this replica starts in place of one that died or failed its check.

        Ray calls a deployment unhealthy from then on until it has all its replicas again.
        """
        with suppress(*RAY_ERRORS):
            async with asyncio.timeout(SCRAPE_SECONDS):
                return (await self._deployments())[self._deployment].status == "UNHEALTHY"
        return False

    async def _count_replicas(self) -> int | None:
        """Return how many replicas run or start, which scaling changes; None if Ray is silent."""
        with suppress(*RAY_ERRORS):
            async with asyncio.timeout(SCRAPE_SECONDS):
                deployments = await self._deployments()
                if self._deployment in deployments:
                    states = deployments[self._deployment].replica_states
                    return sum(count for state, count in states.items() if state != "STOPPING")
                # of an application whose update failed Ray lists none, though the old ones serve
                return len(await self._ask_ray(self._addresses))
        return None

    async def _deployments(self) -> dict[str, DeploymentStatusOverview]:
        """Return Ray's status of the application's deployments, by name."""
        status = await self._ask_ray(serve.status)
        return status.applications[self._application].deployments

    async def _ask_ray(self, question: Callable[[], T]) -> T:
        """Return what a call returns that waits for Ray's controller, made in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._controller, question)

    async def _ask_others(self, openmetrics: bool) -> list[tuple[str, bytes]]:
        """Return name and metrics of each replica that answers in time, even if others fail."""
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                broadcast = self._handle.broadcast("metrics", openmetrics)
                requests = await broadcast._fetch_replica_results_async()
        except (RayError, RayServeException, TimeoutError):
            return []  # no replica is known yet, or Ray does not answer
        answers = [
            asyncio.ensure_future(answer.get_async())  # type: ignore[no-untyped-call]  # Ray's gap
            for answer in requests
        ]
        done, late = await asyncio.wait(answers, timeout=SCRAPE_SECONDS)
        for answer in late:
            answer.cancel()
        return [answer.result() for answer in done if answer.exception() is None]
