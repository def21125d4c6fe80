"""The short way: past Ray, where the routes are in the outermost layer's own process.

Ray makes tasks, a queue and counts of its own for each request, which takes the event loop a sixth
of what a short one takes it in all. What else Ray does for a request is done here, or as if it had
done it: docs/decisions/0023-past-ray.md.
"""

import asyncio
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import httpx
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from service.cluster import ingress
from service.edge.auth import PROBE, own_path
from service.edge.transport import CLIENT, NOBODY
from service.settings import Settings

logger = logging.getLogger(__name__)

ROUTES = "/-/routes"  # Ray's own list of applications, by where it has put them
RAYS = (PROBE, ROUTES)  # paths that Ray answers itself
PLACED_SECONDS = 2.0  # until Ray is asked again: it may put them elsewhere while they serve
# Ray's own limit of time would end an answer that is being sent; HAProxy has one for work
UNTIMED = (b"x-request-timeout-seconds", b"0")


class Places:
    """Where Ray has put applications: ours, and in its proxy those of others too."""

    def __init__(self) -> None:
        self._paths, self._until = list[str](), -math.inf
        self._asking: asyncio.Task[None] | None = None

    async def learn(self, ray: ASGIApp) -> None:
        """Have Ray say it, if it has not lately; whoever comes meanwhile waits too."""
        now = asyncio.get_running_loop().time()
        if self._asking is None or now >= self._until:
            self._until, self._asking = now + PLACED_SECONDS, asyncio.create_task(self._ask(ray))
        if not self._asking.done():
            await asyncio.shield(self._asking)  # one that leaves does not end it for the others

    def of(self, scope: Scope) -> str | None:
        """The part of a request's path that is Ray's; None where nothing is, as far as we know."""
        root: str = scope.get("root_path", "")
        path = scope["path"].removeprefix(root) + "/"
        return next((root + place for place in self._paths if path.startswith(f"{place}/")), None)

    async def _ask(self, ray: ASGIApp) -> None:
        try:
            transport = httpx.ASGITransport(ray)
            async with (
                asyncio.timeout(PLACED_SECONDS),
                httpx.AsyncClient(transport=transport) as client,
            ):
                told = await client.get(f"http://ray{ROUTES}")
            if told.is_success:  # else Ray has put nothing anywhere yet
                places = (path.rstrip("/") for path in told.json())
                self._paths = sorted(places, key=len, reverse=True)
        except Exception:
            logger.exception("places unknown")


class Direct:
    """Leads to the routes, below the place where Ray has put them.

    Other limits are other routes, and the outermost layer is told of them too.
    """

    def __init__(self) -> None:
        self._routes: ASGIApp | None = None
        self._loop: asyncio.AbstractEventLoop | None = None  # in which Ray runs them
        self._places, self._under_way = Places(), 0
        self._followers: list[Callable[[Settings], None]] = []

    def known(self, routes: ASGIApp) -> ASGIApp:
        """The routes as Ray is to have them; it runs them in this loop."""
        current = self._routes = routes
        self._loop = asyncio.get_running_loop()

        async def through_ray(scope: Scope, receive: Receive, send: Send) -> None:
            await (self._routes or current)(scope, receive, send)

        return through_ray

    async def path(self, scope: Scope, ray: ASGIApp) -> str:
        """The path of a request below the place where Ray has put its application."""
        await self._places.learn(ray)
        return str(scope["path"]).removeprefix(self._places.of(scope) or "")

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
                return await app(self._untimed(scope), receive, send)
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
        """Whether the routes run in this loop."""
        return self._loop is asyncio.get_running_loop()

    def _leads(self, scope: Scope) -> bool:
        """Whether a request may go to the routes at once."""
        return own_path(scope) not in RAYS and self._open() and self._places.of(scope) is not None

    def _untimed(self, scope: Scope) -> Scope:
        """A request that Ray is to bring to the routes, where they are in this process."""
        timed = scope["type"] != "http" or self._routes is None
        return scope if timed else {**scope, "headers": [*scope["headers"], UNTIMED]}

    async def _straight(self, scope: Scope, receive: Receive, send: Send) -> None:
        routes: ASGIApp = self._routes  # type: ignore[assignment]  # they run in this loop
        root_path = self._places.of(scope) or ""
        await routes({**scope, "root_path": root_path}, receive, send)

    async def _watched(self, scope: Scope, receive: Receive, send: Send, seconds: float) -> None:
        """Go straight, answer in time, and log a bug of ours: Ray has uvicorn say nothing.

        How long an answer's reader may take is for its connection to say.
        """
        try:
            async with asyncio.timeout(seconds) as limit:

                async def begin(message: Message) -> None:
                    limit.reschedule(None)
                    await send(message)

                await self._straight(scope, receive, begin)
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
