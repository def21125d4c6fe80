"""The way of a refusal past Ray."""

from typing import Any

import pytest

from service.edge.direct import Direct

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def test_it_is_open_once_ray_has_brought_a_request_and_leads_to_the_same_place() -> None:
    """Below the path where Ray has put the routes; a start-up message says nothing of it."""
    seen: list[tuple[str, str]] = []

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        seen.append(("routes", scope["root_path"]))

    async def ray(scope: Any, receive: Any, send: Any) -> None:
        seen.append(("ray", scope.get("root_path", "")))
        await known({**scope, "root_path": "/minilm"}, receive, send)

    async def never() -> Any: ...
    async def nothing(message: Any) -> None: ...

    direct = Direct()
    known, refuse = direct.known(routes), direct.around(ray)
    await known({"type": "lifespan", "root_path": ""}, never, nothing)
    await refuse({"type": "http"}, never, nothing)
    await refuse({"type": "http"}, never, nothing)

    assert seen == [("routes", ""), ("ray", ""), ("routes", "/minilm"), ("routes", "/minilm")]
