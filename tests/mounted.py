"""What stands between the outermost layer and the routes in a replica: a stand-in for Ray's app.

It does with a request what `_direct_ingress_asgi` of ray/serve/_private/replica.py (2.60) does:
says where the routes are, answers the probe, and leads below that place with `root_path` set.
"""

from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.edge.direct import Direct


class Mounted:
    """Routes below a place.

    Args:
        place: a Serve configuration's `route_prefix`.
    """

    def __init__(self, routes: ASGIApp, direct: Direct, place: str = "/") -> None:
        self.app, self.place, self.seen = routes, place, list[str]()
        self._known = direct.known(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and scope["path"] == "/-/routes":
            return await JSONResponse({self.place: "minilm"})(scope, receive, send)
        self.seen.append(scope["type"])
        prefix = self.place.rstrip("/")
        if scope["type"] == "http" and scope["path"] == "/-/healthz":
            return await PlainTextResponse("success")(scope, receive, send)
        if scope["type"] == "http" and not f"{scope['path']}/".startswith(f"{prefix}/"):
            return await PlainTextResponse("", 404)(scope, receive, send)
        root_path = scope.get("root_path", "") + prefix
        await self._known({**scope, "root_path": root_path}, receive, send)
