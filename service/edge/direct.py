"""The short way of a refusal: past Ray, where the routes are in the outermost layer's own process.

Ray makes tasks, a queue and counts of its own for each request. That takes the event loop longer
than to word a refusal, and whoever is refused comes again.
"""

from collections.abc import Callable

from starlette.types import ASGIApp, Receive, Scope, Send

from service.settings import Settings


class Direct:
    """Leads to the routes once Ray has: a request that it brought shows where it has put them.

    Other limits are other routes, and the outermost layer is told of them too.
    """

    def __init__(self) -> None:
        self._routes: ASGIApp | None = None
        self._root_path: str | None = None  # until Ray has brought them a request
        self._followers: list[Callable[[Settings], None]] = []

    def known(self, routes: ASGIApp) -> ASGIApp:
        """The routes as Ray is to have them."""
        current = self._routes = routes

        async def through_ray(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self._root_path = scope.get("root_path", "")
            await (self._routes or current)(scope, receive, send)

        return through_ray

    def around(self, app: ASGIApp) -> ASGIApp:
        """What leads by the short way; as long as there is none, by the app."""

        async def past_ray(scope: Scope, receive: Receive, send: Send) -> None:
            if self._routes is None or self._root_path is None:
                return await app(scope, receive, send)
            await self._routes({**scope, "root_path": self._root_path}, receive, send)

        return past_ray

    def inform(self, follow: Callable[[Settings], None]) -> None:
        """Have somebody take up other limits together with the routes."""
        self._followers.append(follow)

    def change(self, routes: ASGIApp, settings: Settings) -> None:
        """Lead whoever comes from now on to other routes, by other limits."""
        self._routes = routes
        for follow in self._followers:
            follow(settings)


PROCESS = Direct()
