"""What stands behind the entrance of a replica: a stand-in for Ray's application.

It does with a request what `_direct_ingress_asgi` of ray/serve/_private/replica.py (2.60) does:
says where the routes are and answers the probe. No other request is to reach it.
"""

from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.door.entrance import Doorway, Entrance


class Ray:
    """Ray's application, and what came to it.

    Args:
        place: a Serve configuration's `route_prefix`.
    """

    def __init__(self, place: str = "/") -> None:
        self.place, self.seen = place, list[tuple[str, str]]()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append((scope["type"], scope.get("path", "")))
        if scope["type"] != "http":
            return
        told = {"/-/routes": JSONResponse({self.place: "minilm"})}
        told["/-/healthz"] = PlainTextResponse("success")
        answer = told.get(scope["path"], PlainTextResponse("Ray's own", 500))
        await answer(scope, receive, send)


def mounted(door: ASGIApp | None, place: str = "/", ray: ASGIApp | None = None) -> Entrance:
    """A door where Ray has put it."""
    doorway = Doorway()
    doorway.door = door
    return Entrance(ray or Ray(place), doorway)
