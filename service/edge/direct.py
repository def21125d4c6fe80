"""The short way: past Ray, where the routes are in the outermost layer's own process.

Ray makes tasks, a queue and counts of its own for each request, which takes the event loop a sixth
of what a short one takes it in all. What else Ray does for a request is done here, or as if it had
done it: docs/decisions/0023-past-ray.md.
"""

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from starlette.types import ASGIApp, Receive, Scope, Send

from service.cluster import ingress
from service.edge.auth import PROBE, own_path
from service.edge.transport import CLIENT, NOBODY
from service.settings import Settings

logger = logging.getLogger(__name__)

RAYS = (PROBE, "/-/routes")  # paths that Ray answers itself


class Direct:
    """Leads to the routes once Ray has: a request that it brought shows where it has put them.

    Other limits are other routes, and the outermost layer is told of them too.
    """

    def __init__(self) -> None:
        self._routes: ASGIApp | None = None
        self._root_path = ""  # where Ray has put them
        self._loop: asyncio.AbstractEventLoop | None = None  # in which it brought them a request
        self._under_way = 0
        self._followers: list[Callable[[Settings], None]] = []

    def known(self, routes: ASGIApp) -> ASGIApp:
        """The routes as Ray is to have them."""
        current = self._routes = routes

        async def through_ray(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self._root_path = scope.get("root_path", "")
                self._loop = asyncio.get_running_loop()
            await (self._routes or current)(scope, receive, send)

        return through_ray

    def refusing(self, app: ASGIApp) -> ASGIApp:
        """What leads a refusal by the short way; as long as there is none, by the app."""

        async def refuse(scope: Scope, receive: Receive, send: Send) -> None:
            if not self._open():
                return await app(scope, receive, send)
            await self._straight(scope, receive, send)

        return refuse

    def around(self, app: ASGIApp, settings: Settings) -> ASGIApp:
        """What leads a request by the short way, and by the app, Ray's, what is Ray's to answer.

        As many are under way as Ray would run at a time. More go by Ray, which does not count them:
        it runs as many, has as many wait, and refuses the rest.
        """
        most, seconds = ingress.ongoing(settings), ingress.request_seconds(settings)

        async def past_ray(scope: Scope, receive: Receive, send: Send) -> None:
            if self._under_way >= most or not self._leads(scope):
                return await app(scope, receive, send)
            with self._counted(), CLIENT.get(NOBODY).waiting():
                await self._watched(scope, receive, send, seconds)

        return past_ray

    def inform(self, follow: Callable[[Settings], None]) -> None:
        """Have somebody take up other limits together with the routes."""
        self._followers.append(follow)

    def change(self, routes: ASGIApp, settings: Settings) -> None:
        """Lead whoever comes from now on to other routes, by other limits."""
        self._routes = routes
        for follow in self._followers:
            follow(settings)

    def _open(self) -> bool:
        """Whether Ray has brought the routes a request, and runs them in this loop."""
        return self._loop is asyncio.get_running_loop()

    def _leads(self, scope: Scope) -> bool:
        """Whether a request may go to the routes at once.

        Ray may put them elsewhere while they serve, and says so to nobody. HAProxy's probe comes
        every 2 s, and the request after it goes by Ray again.
        """
        if own_path(scope) in RAYS:
            self._loop = None
        return self._open() and scope["path"].startswith(self._root_path)

    async def _straight(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes: ASGIApp = self._routes  # type: ignore[assignment]  # a request has reached them
        await routes({**scope, "root_path": self._root_path}, receive, send)

    async def _watched(self, scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
        """Go straight, for so long, and log a bug of ours: Ray has uvicorn say nothing."""
        try:
            async with asyncio.timeout(seconds):
                await self._straight(scope, receive, send)
        except Exception:
            logger.exception("request failed")
            raise

    @contextmanager
    def _counted(self) -> Iterator[None]:
        self._under_way += 1
        try:
            yield
        finally:
            self._under_way -= 1


PROCESS = Direct()
