"""All replicas' metrics as one page, from whichever of them is asked.

At the root of an address the page has the replicas of every model there; below a prefix those of
its own. Applications of ours are those that have our deployment.
"""

import asyncio
import contextvars
from collections.abc import Awaitable, Callable, Iterable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from itertools import chain
from typing import Any, TypeVar

import ray
from ray import serve
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle
from ray.serve.schema import ApplicationStatusOverview

from service.observe import scrape
from service.preflight import cluster
from service.tables.refusals import Refused

SCRAPE_SECONDS = 1.0  # a replica that takes longer is left out of the page

# What Ray's controller raises when it does not answer; KeyError: the application is being deleted
RAY_ERRORS = RayError, RayServeException, TimeoutError, KeyError
T = TypeVar("T")

# Returns a replica's name and its metrics: True: as OpenMetrics; False: as Prometheus text
RenderOwn = Callable[[bool], Awaitable[tuple[str, bytes]]]


class Pages:
    """Gathers the metrics and addresses of all replicas, in any one of them.

    Args:
        deployment, application: names of those whose replica this is; all models have such a
            deployment.
        own: returns this replica's metrics.
    """

    def __init__(self, deployment: str, application: str, own: RenderOwn) -> None:
        self._deployment, self._application, self._own = deployment, application, own
        # by application, of those that were found so far
        self._handles = {application: serve.get_deployment_handle(deployment, application)}
        self._controller = ThreadPoolExecutor(1, "status")  # Ray's controller may not answer
        # by form and extent, see scrape
        self._scrapes: dict[tuple[bool, bool], asyncio.Task[bytes]] = {}
        self._router: asyncio.Task[list[tuple[str, bytes]]] | None = None

    def warm(self) -> None:
        """Create the handle's router now, which at its first use takes a tenth of a second."""
        self._router = asyncio.create_task(self._ask_others([self._application], openmetrics=False))

    def close(self) -> None:
        """Cancel what still waits for Ray."""
        if self._router:
            self._router.cancel()
        self._controller.shutdown(wait=False, cancel_futures=True)

    async def scrape(self, openmetrics: bool, every_model: bool) -> bytes:
        """Return all replicas' metrics; scrapes that come together share one broadcast.

        The task has a context of its own: in a request's, Ray would cancel the broadcast
        with that request, and the others would wait for nothing.
        """
        kind = openmetrics, every_model
        if kind not in self._scrapes or self._scrapes[kind].done():
            page = self._gather(*kind)
            self._scrapes[kind] = asyncio.create_task(page, context=contextvars.Context())
        return await asyncio.shield(self._scrapes[kind])

    async def targets(self, every_model: bool) -> Mapping[str, list[str]]:
        """Return host:port of each replica that runs, past HAProxy; sorted, by prefix.

        Raises:
            Refused: Ray's controller does not answer.
        """
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                names = await self._find_ours() if every_model else [self._application]
                groups = [await self._ask_ray(partial(self._addresses, name)) for name in names]
                return dict(group for group in groups if group)
        except (RayError, RayServeException, TimeoutError):
            raise Refused("not_ready", retry_after=1) from None

    def _addresses(self, application: str) -> tuple[str, list[str]] | None:
        """Return an application's prefix, and host:port of its replicas; sorted.

        As Ray's controller tells HAProxy; None if it does not yet.
        """
        controller = cluster.serve_client()._controller  # there is no public way
        reply = controller.get_target_groups.remote(application, from_proxy_manager=True)
        groups = ray.get(reply, timeout=SCRAPE_SECONDS)
        for group in groups:
            if group.protocol == "HTTP":
                addresses = sorted(f"{target.ip}:{target.port}" for target in group.targets)
                return group.route_prefix.rstrip("/"), addresses
        return None

    async def _gather(self, openmetrics: bool, every_model: bool) -> bytes:
        """Return the metrics of all replicas that answer in time, and of this one in any case."""
        counts = await self._count_replicas(every_model)
        known = list(self._handles) if every_model else [self._application]
        found = await self._ask_others(known if counts is None else counts, openmetrics)
        texts = dict([*found, await self._own(openmetrics)])
        joined = [texts[replica] for replica in sorted(texts)]
        expected = None if counts is None else sum(counts.values())
        incomplete = expected is None or len(texts) < expected
        return await asyncio.to_thread(scrape.join_pages, joined, incomplete, openmetrics, expected)

    async def replaces_failed(self) -> bool:
        """Tell whether this replica starts in place of one that died or failed its check.

        Ray calls a deployment unhealthy from then on until it has all its replicas again.
        """
        with suppress(*RAY_ERRORS):
            async with asyncio.timeout(SCRAPE_SECONDS):
                status = (await self._find_ours())[self._application]
                return status.deployments[self._deployment].status == "UNHEALTHY"
        return False

    async def _count_replicas(self, every_model: bool) -> dict[str, int] | None:
        """Return how many replicas run or start, by application; None if Ray is silent.

        Scaling changes it.
        """
        with suppress(*RAY_ERRORS):
            async with asyncio.timeout(SCRAPE_SECONDS):
                ours = await self._find_ours()
                names = ours if every_model else [self._application]
                return {name: await self._count(name, ours[name]) for name in names}
        return None

    async def _count(self, name: str, status: ApplicationStatusOverview) -> int:
        """Return how many replicas of an application run or start."""
        if self._deployment in status.deployments:
            states = status.deployments[self._deployment].replica_states
            return sum(count for state, count in states.items() if state != "STOPPING")
        # of an application whose update failed Ray lists none, though the old ones serve
        found = await self._ask_ray(partial(self._addresses, name))
        return len(found[1]) if found else 0

    async def _find_ours(self) -> dict[str, ApplicationStatusOverview]:
        """Return Ray's status of the models' applications, by name."""
        status = await self._ask_ray(serve.status)
        return {
            name: application
            for name, application in status.applications.items()
            if name in self._handles or self._deployment in application.deployments
        }

    async def _ask_ray(self, question: Callable[[], T]) -> T:
        """Return what a call returns that waits for Ray's controller, made in a thread."""
        return await asyncio.get_running_loop().run_in_executor(self._controller, question)

    async def _ask_others(
        self, applications: Iterable[str], openmetrics: bool
    ) -> list[tuple[str, bytes]]:
        """Return name and metrics of the replicas of some applications that answer in time."""
        pages = await asyncio.gather(
            *(self._ask_application(name, openmetrics) for name in applications)
        )
        return list(chain.from_iterable(pages))

    async def _ask_application(self, name: str, openmetrics: bool) -> list[tuple[str, bytes]]:
        """Return name and metrics of an application's replicas; of none if one hangs."""
        try:
            async with asyncio.timeout(SCRAPE_SECONDS):
                handle = await self._find_handle(name)
                asked = handle.broadcast("metrics", openmetrics)
                answers = await asked.results_async(return_exceptions=True)
        except (RayError, RayServeException, TimeoutError):
            return []  # no replica is known yet, or Ray or a replica does not answer
        return [answer for answer in answers if not isinstance(answer, BaseException)]

    async def _find_handle(self, name: str) -> DeploymentHandle[Any]:
        """Return the handle of an application's deployment, made if it is new."""
        if name not in self._handles:
            make = partial(serve.get_deployment_handle, self._deployment, name)
            self._handles[name] = await self._ask_ray(make)
        return self._handles[name]
