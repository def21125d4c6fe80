"""The short way of a refusal: past Ray, where the routes are in the outermost layer's own process.

Ray makes tasks, a queue and counts of its own for each request. That takes the event loop longer
than to word a refusal, and whoever is refused comes again.
"""

from starlette.types import ASGIApp, Receive, Scope, Send


class Direct:
    """Leads to the routes once Ray has: a request that it brought shows where it has put them."""

    def __init__(self) -> None:
        self._routes: ASGIApp | None = None  # until Ray has brought them a request
        self._root_path = ""

    def known(self, routes: ASGIApp) -> ASGIApp:
        """The routes as Ray is to have them."""

        async def through_ray(scope: Scope, receive: Receive, send: Send) -> None:
            if scope["type"] == "http":
                self._routes, self._root_path = routes, scope.get("root_path", "")
            await routes(scope, receive, send)

        return through_ray

    def around(self, app: ASGIApp) -> ASGIApp:
        """What leads by the short way; as long as there is none, by the app."""

        async def past_ray(scope: Scope, receive: Receive, send: Send) -> None:
            if self._routes is None:
                return await app(scope, receive, send)
            await self._routes({**scope, "root_path": self._root_path}, receive, send)

        return past_ray


PROCESS = Direct()
