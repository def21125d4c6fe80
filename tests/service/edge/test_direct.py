"""The way past Ray: what takes it, how it ends, and what goes by Ray."""

import asyncio
import contextlib
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any
from urllib.parse import urlsplit

import httpx
import pytest
import pytest_asyncio
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service import keys
from service.cluster import ingress
from service.edge import direct, guard
from service.edge import routes as edge
from service.edge.direct import Direct
from service.edge.transport import Protocol
from service.replica import Replica
from service.settings import Settings
from tests.mounted import Mounted

pytestmark = pytest.mark.asyncio(loop_scope="session")

ASKED = {"type": "http", "method": "GET", "headers": []}


async def never() -> Any:
    """Nothing more comes."""


async def nothing(*message: Any) -> None:
    """Nobody looks at what is sent."""


class Place:
    """Routes that Ray has put somewhere, and what came to them and to Ray."""

    def __init__(self, place: str) -> None:
        self.direct, self.seen = Direct(), list[tuple[str, str]]()
        self.ray = Mounted(self.routes, self.direct, place)
        self.answer = self.direct.around(self.through, Settings())
        self.refuse = self.direct.refusing(self.through)

    async def ask(self, path: str, refused: bool = False) -> tuple[str, str]:
        """Where a request arrives first, and below which path."""
        first, app = len(self.seen), self.refuse if refused else self.answer
        await self.direct.path({**ASKED, "path": path}, self.ray)
        await app({**ASKED, "path": path}, never, nothing)
        return self.seen[first]

    async def routes(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(("routes", scope["root_path"]))

    async def through(self, scope: Scope, receive: Receive, send: Send) -> None:
        self.seen.append(("ray", scope.get("root_path", "")))
        await self.ray(scope, receive, send)


async def opened(routes: ASGIApp, ray: ASGIApp = nothing) -> ASGIApp:
    """The way to routes of which it is known where they are; by `ray` what does not go by it."""
    way = Direct()
    await way.path({**ASKED, "path": "/"}, Mounted(routes, way))
    return way.around(ray, Settings())


async def test_it_leads_to_where_ray_has_put_the_routes_from_the_first_request_on() -> None:
    """For requests and refusals."""
    place = Place("/minilm")

    assert await place.ask("/minilm/info") == ("routes", "/minilm")
    assert await place.ask("/minilm/info", refused=True) == ("routes", "/minilm")


async def test_what_ray_answers_itself_goes_to_ray_unless_it_is_refused() -> None:
    """Its probe, its list of routes, and every path that is not below ours."""
    place = Place("/minilm")
    for path in ("/-/healthz", "/-/routes", "/other/info", "/minilmother"):
        assert await place.ask(path) == ("ray", "")

    assert await place.ask("/-/routes", refused=True) == ("routes", "")


async def test_routes_that_ray_puts_elsewhere_are_found_there_before_long(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Ray says so to nobody, and is asked again."""
    place = Place("/")
    before, place.ray.place = await place.ask("/info"), "/minilm"
    meanwhile = await place.ask("/info")
    monkeypatch.setattr(direct, "PLACED_SECONDS", 0.0)
    place.direct._places._until = 0.0

    assert (before, meanwhile) == (("routes", ""), ("routes", ""))
    assert await place.ask("/minilm/info") == ("routes", "/minilm")


async def test_a_list_that_ray_cannot_give_leaves_what_is_known(
    caplog: pytest.LogCaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It refuses, has a bug or hangs, which is logged. Requests go by Ray until it is known."""
    monkeypatch.setattr(direct, "PLACED_SECONDS", 0.05)
    place, places = Place("/minilm"), []

    async def unready(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse("not yet", 503)(scope, receive, send)

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    async def other(scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse("success")(scope, receive, send)

    async def hanging(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    for ray in (unready, broken, place.ray, broken, other, hanging):
        place.direct._places._until = 0.0
        asked = {**ASKED, "path": "/minilm/info"}
        places.append(await place.direct.path(asked, ray))

    assert places == ["/minilm/info"] * 2 + ["/info"] * 4
    assert [record.message for record in caplog.records] == ["places unknown"] * 4


async def test_who_leaves_while_ray_is_asked_ends_it_for_nobody_else() -> None:
    """All wait for one answer."""
    place, answering = Place("/minilm"), asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await answering.wait()
        await place.ray(scope, receive, send)

    asked = {**ASKED, "path": "/minilm/info"}
    leaves, stays = (asyncio.create_task(place.direct.path(asked, slow)) for _ in range(2))
    await asyncio.sleep(0)
    leaves.cancel()
    await asyncio.wait([leaves])
    answering.set()

    assert await stays == "/info"


async def test_as_many_are_under_way_as_ray_would_run(monkeypatch: pytest.MonkeyPatch) -> None:
    """One more waits with Ray, or is refused there."""
    monkeypatch.setattr(ingress, "ongoing", lambda settings: 3)
    held, seen = asyncio.Event(), list[str]()

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        seen.append("routes")
        await held.wait()

    async def ray(scope: Any, receive: Any, send: Any) -> None:
        seen.append("ray")

    answer = await opened(routes, ray)
    asked = [asyncio.create_task(answer({**ASKED, "path": "/"}, never, nothing)) for _ in range(5)]
    await asyncio.wait(asked[3:])
    held.set()
    await asyncio.gather(*asked)
    await answer({**ASKED, "path": "/"}, never, nothing)

    assert seen == [*["routes"] * 3, *["ray"] * 2, "routes"]


async def test_what_holds_a_request_up_for_ever_is_ended_and_logged(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """A little after our own refusal was due; that it was not is a bug of ours."""
    monkeypatch.setattr(ingress, "request_seconds", lambda settings: 0.01)

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/slow":
            await asyncio.Event().wait()

    answer = await opened(routes)

    with pytest.raises(TimeoutError):
        await answer({**ASKED, "path": "/slow"}, never, nothing)

    assert [line.message for line in caplog.records] == ["request failed"]


async def test_what_holds_an_answers_reader_up_is_not_for_us_to_end(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Its connection does, if it is too slow; here it takes longer than the work may."""
    monkeypatch.setattr(ingress, "request_seconds", lambda settings: 0.01)
    taken = list[str]()

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        for kind in ("start", "body", "body"):
            await send({"type": f"http.response.{kind}"})

    async def slowly(message: Any) -> None:
        await asyncio.sleep(0.02)
        taken.append(message["type"])

    answer = await opened(routes)
    await answer({**ASKED, "path": "/"}, never, slowly)

    assert len(taken) == 3


async def test_nor_for_ray_where_it_brings_a_request_to_routes_of_its_own_process() -> None:
    """Its proxy's limit, in another process, is for replicas that do not answer."""
    seen = list[Any]()

    async def ray(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])

    direct = Direct()
    answer = direct.around(ray, Settings())
    await answer({**ASKED, "path": "/"}, never, nothing)
    direct.known(nothing)
    await answer({**ASKED, "path": "/"}, never, nothing)

    assert seen == [[], [(b"x-request-timeout-seconds", b"0")]]


async def test_a_bug_of_ours_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    """uvicorn, as Ray runs it, says nothing of it."""

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/bug":
            raise ZeroDivisionError

    answer = await opened(routes)

    with pytest.raises(ZeroDivisionError):
        await answer({**ASKED, "path": "/bug"}, never, nothing)

    assert [record.message for record in caplog.records] == ["request failed"]


async def test_the_start_and_end_of_a_server_go_to_ray_and_a_websocket_nowhere() -> None:
    """Also when the short way is open; none is served, so no key is asked for either."""
    seen: list[str] = []

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        seen.append("routes")

    way = Direct()
    ray = Mounted(routes, way)
    app = guard.Guard(ray, Settings(), way)
    for kind in ("http", "lifespan", "websocket"):
        await app({**ASKED, "type": kind, "path": "/"}, never, nothing)

    assert ray.seen == ["lifespan"] and seen == ["routes", "routes"]


async def test_what_ray_answers_itself_is_not_for_who_has_no_key() -> None:
    """Its list of routes, unlike the probe."""
    seen: list[str] = []

    async def routes(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["path"])

    way, key = Direct(), keys.read("a:the-key-of-a-12345678")
    ray = Mounted(routes, way)
    app = guard.Guard(ray, Settings(api_keys=key), way)
    for path in ("/info", "/-/routes", "/-/healthz"):
        await app({**ASKED, "path": path}, never, nothing)

    assert seen == ["/info", "/-/routes"] and ray.seen == ["http"]


@pytest_asyncio.fixture(loop_scope="session")
async def url(
    replica: Replica, listen: Callable[..., AbstractAsyncContextManager[str]]
) -> AsyncIterator[str]:
    """Where a replica answers past Ray."""

    async def no_metrics(openmetrics: bool) -> bytes:
        return b""

    way = Direct()
    app = Mounted(edge.application(replica, no_metrics), way)
    async with listen(guard.Guard(app, replica.settings, way), http=Protocol) as url:
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


async def open_post(url: str, length: int, *pieces: bytes) -> asyncio.StreamWriter:
    """A request on a connection of its own, of whose body these pieces are sent."""
    place = urlsplit(url)
    _, writer = await asyncio.open_connection(place.hostname, place.port)
    head = "POST /embed HTTP/1.1\r\nhost: h\r\ncontent-type: application/json\r\n"
    for piece in (f"{head}content-length: {length}\r\n\r\n".encode(), *pieces):
        writer.write(piece)
        await writer.drain()
        await asyncio.sleep(0.05)
    return writer


async def test_a_client_that_leaves_is_noticed_however_large_its_body_was(
    url: str, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """uvicorn reads no further once it holds 64 KiB, and so would not see its end."""
    queue = replica.batcher
    monkeypatch.setattr(queue, "_idle", [])
    body = b'{"truncate": true, "inputs": "%s"}' % (b"well " * 20_000)
    writer = await open_post(url, len(body), body[:10], body[10:])
    async with asyncio.timeout(10):
        while not queue.waiting_requests:
            await asyncio.sleep(0)
        writer.close()
        while queue.waiting_requests:
            await asyncio.sleep(0)


async def test_a_body_that_never_came_whole_is_not_parsed(
    url: str, replica: Replica, log: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nor looked through; its client has left, and so it is counted."""
    looked = list[Any]()
    monkeypatch.setattr(guard.Bodies, "_check", lambda *all_: looked.append(all_))
    writer = await open_post(url, 1000, b'{"inputs": ["a')
    writer.close()
    async with asyncio.timeout(10):
        while not (replica.observer._ended or log()):
            await asyncio.sleep(0)
    replica.observer.tell()

    (line,) = map(json.loads, log().splitlines())
    assert (line["route"], line["code"], looked) == ("/embed", 499, [])
