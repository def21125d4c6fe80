"""The way past Ray: what takes it, how it ends, and what goes by Ray."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest
import pytest_asyncio

from service import keys
from service.cluster import ingress
from service.edge import guard
from service.edge import routes as edge
from service.edge.direct import Direct
from service.edge.transport import Protocol
from service.replica import Replica
from service.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED = {"type": "http", "method": "GET", "headers": []}


async def never() -> Any:
    """Nothing more comes."""


async def nothing(*message: Any) -> None:
    """Nobody looks at what is sent."""


class Place:
    """Routes that Ray has put somewhere, and what came to them and to Ray."""

    def __init__(self) -> None:
        self.root_path, self.seen = "", list[tuple[str, str]]()
        self.direct = Direct()
        self._known = self.direct.known(self.routes)
        self.answer = self.direct.around(self.ray, Settings())
        self.refuse = self.direct.refusing(self.ray)

    async def ask(self, path: str, refused: bool = False) -> tuple[str, str]:
        """Where a request arrives first, and below which path."""
        first, app = len(self.seen), self.refuse if refused else self.answer
        await app({**ASKED, "path": path}, never, nothing)
        return self.seen[first]

    async def routes(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(("routes", scope["root_path"]))

    async def ray(self, scope: Any, receive: Any, send: Any) -> None:
        self.seen.append(("ray", scope.get("root_path", "")))
        if not scope["path"].startswith("/-/"):
            await self._known({**scope, "root_path": self.root_path}, receive, send)


async def test_it_is_open_once_ray_has_brought_a_request_and_leads_to_the_same_place() -> None:
    """For requests and refusals, below the path where Ray has put the routes."""
    place = Place()
    place.root_path = "/minilm"
    await place.direct.known(place.routes)({"type": "lifespan", "root_path": ""}, never, nothing)
    place.seen.clear()

    assert await place.ask("/minilm/info", refused=True) == ("ray", "")
    assert await place.ask("/minilm/info", refused=True) == ("routes", "/minilm")
    assert await place.ask("/minilm/info") == ("routes", "/minilm")


async def test_what_ray_answers_itself_goes_to_ray_unless_it_is_refused() -> None:
    """Its probe, its list of routes, and every path that is not below ours."""
    place = Place()
    place.root_path = "/minilm"
    for path in ("/-/healthz", "/-/routes"):
        await place.ask("/minilm/info")
        assert await place.ask("/minilm/info") == ("routes", "/minilm")
        assert await place.ask(path) == ("ray", "")
    await place.ask("/minilm/info")

    assert await place.ask("/other/info") == ("ray", "")
    assert await place.ask("/-/routes", refused=True) == ("routes", "/minilm")


async def test_routes_that_ray_puts_elsewhere_are_found_there_after_the_next_probe() -> None:
    """Ray says so to nobody."""
    place = Place()
    await place.ask("/info")
    before, place.root_path = await place.ask("/info"), "/minilm"
    await place.ask("/-/healthz")
    await place.ask("/minilm/info")

    assert (before, await place.ask("/minilm/info")) == (("routes", ""), ("routes", "/minilm"))


async def test_as_many_are_under_way_as_ray_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more waits with Ray, or is refused there."""
    monkeypatch.setattr(ingress, "ongoing", lambda settings: 3)
    held, seen = asyncio.Event(), list[str]()

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        seen.append("routes")
        await held.wait()

    async def ray(scope: Any, receive: Any, send: Any) -> None:
        seen.append("ray")

    direct = Direct()
    known, answer = direct.known(routes), direct.around(ray, Settings())
    held.set()
    await known({**ASKED, "path": "/"}, never, nothing)
    held.clear()
    asked = [asyncio.create_task(answer({**ASKED, "path": "/"}, never, nothing)) for _ in range(5)]
    await asyncio.wait(asked[3:])
    held.set()
    await asyncio.gather(*asked)
    await answer({**ASKED, "path": "/"}, never, nothing)

    assert seen == [*["routes"] * 4, *["ray"] * 2, "routes"]


async def test_what_holds_a_request_up_for_ever_is_ended_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A little after our own refusal was due; that it was not is a bug of ours."""
    monkeypatch.setattr(ingress, "request_seconds", lambda settings: 0.01)

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await asyncio.Event().wait()

    direct = Direct()
    known, answer = direct.known(routes), direct.around(nothing, Settings())
    await known({**ASKED, "path": "/"}, never, nothing)

    with pytest.raises(TimeoutError):
        await answer({**ASKED, "path": "/slow"}, never, nothing)

    assert [line.message for line in caplog.records] == ["request failed"]


async def test_a_bug_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn, as Ray runs it, says nothing of it."""

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/bug":
            raise ZeroDivisionError

    direct = Direct()
    known, answer = direct.known(routes), direct.around(nothing, Settings())
    await known({**ASKED, "path": "/"}, never, nothing)
    with pytest.raises(ZeroDivisionError):
        await answer({**ASKED, "path": "/bug"}, never, nothing)

    assert [record.message for record in caplog.records] == ["request failed"]


async def test_what_is_no_request_goes_to_ray() -> None:
    """Its start and end, and WebSockets, also when the short way is open."""
    seen: list[str] = []

    async def ray(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["type"])
        await known(scope, receive, send)

    async def routes(scope: Any, receive: Any, send: Any) -> None: ...

    way = Direct()
    known, app = way.known(routes), guard.Guard(ray, Settings(), way)
    for kind in ("http", "http", "lifespan", "websocket"):
        await app({**ASKED, "type": kind, "path": "/"}, never, nothing)

    assert seen == ["http", "lifespan", "websocket"]


async def test_what_ray_answers_itself_is_not_for_who_has_no_key() -> None:
    """Its list of routes, unlike the probe."""
    seen: list[str] = []

    async def ray(scope: Any, receive: Any, send: Any) -> None:
        seen.append("ray")
        await known(scope, receive, send)

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        seen.append("routes")

    way, key = Direct(), keys.read("a:the-key-of-a-12345678")
    known, app = way.known(routes), guard.Guard(ray, Settings(api_keys=key), way)
    for path in ("/info", "/-/routes", "/-/healthz"):
        await app({**ASKED, "path": path}, never, nothing)

    assert seen == ["ray", "routes", "routes", "ray", "routes"]


@pytest_asyncio.fixture(loop_scope="session")
async def url(
    replica: Replica, listen: Callable[..., AbstractAsyncContextManager[str]]
) -> AsyncIterator[str]:
    """Where a replica answers past Ray, which has brought it a request."""

    async def no_metrics(openmetrics: bool) -> bytes:
        return b""

    way = Direct()
    app = guard.Guard(way.known(edge.application(replica, no_metrics)), replica.settings, way)
    async with listen(app, http=Protocol) as url, httpx.AsyncClient() as client:
        await client.get(f"{url}/live")
        yield url


async def test_a_client_that_leaves_takes_its_waiting_work_along(
    url: str, replica: Replica
) -> None:
    """The client of another stays, and is answered."""
    queue, (idle, replica.batcher._idle) = replica.batcher, (replica.batcher._idle, [])
    async with httpx.AsyncClient(base_url=url) as staying:
        stays = asyncio.create_task(staying.post("/embed", json={"inputs": "a"}))
        async with httpx.AsyncClient(base_url=url) as leaving:
            leaves = asyncio.create_task(leaving.post("/embed", json={"inputs": "b"}))
            while queue.waiting_requests < 2:
                await asyncio.sleep(0)
            leaves.cancel()
            await asyncio.wait([leaves])
        async with asyncio.timeout(10):
            while queue.waiting_requests == 2:
                await asyncio.sleep(0)
        waiting = queue.waiting_requests
        replica.batcher._idle = idle
        async with httpx.AsyncClient(base_url=url) as third:
            await third.post("/embed", json={"inputs": "c"})
        answer = await stays

    assert waiting == 1 and answer.status_code == 200


async def test_of_a_client_that_has_left_nothing_is_begun(
    url: str, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left while its body was looked through."""
    left, seen = asyncio.Event(), asyncio.Event()
    read = guard.Bodies.read

    async def slowly(self: guard.Bodies, *where: Any) -> Any:
        result = await read(self, *where)
        seen.set()
        await left.wait()
        return result

    monkeypatch.setattr(guard.Bodies, "read", slowly)
    monkeypatch.setattr(replica.batcher, "_idle", [])
    lost = Protocol.connection_lost

    def leave(self: Protocol, exc: Exception | None) -> None:
        lost(self, exc)
        asyncio.get_running_loop().call_soon(left.set)

    monkeypatch.setattr(Protocol, "connection_lost", leave)
    async with httpx.AsyncClient(base_url=url) as client:
        asked = asyncio.create_task(client.post("/embed", json={"inputs": "a"}))
        await seen.wait()
        asked.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await asked
    await left.wait()
    for _ in range(20):
        await asyncio.sleep(0)

    assert replica.batcher.waiting_requests == 0 and not replica.observer._in_flight
