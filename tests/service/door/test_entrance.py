"""The entrance: what Ray answers itself, where it has put us, and clients that leave."""

import asyncio
import contextlib
import json
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, ExitStack
from typing import Any
from urllib.parse import unquote, urlsplit

import httpx
import pytest
import pytest_asyncio
from starlette.responses import JSONResponse, PlainTextResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from service.door import body, entrance
from service.door.body import BodyReader
from service.door.door import Door
from service.door.entrance import Doorway, Entrance
from service.door.transport import Protocol
from service.pipeline.replica import Replica
from tests.behind_entrance import Ray, mounted
from tests.conftest import in_flight
from tests.replica_internals import stalled


class Answering:
    """A door that says at which place it was asked for what."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await PlainTextResponse(f"{scope['root_path']} {scope['path']}")(scope, receive, send)


def asking(app: ASGIApp) -> httpx.AsyncClient:
    """A client of what stands behind Ray's server."""
    return httpx.AsyncClient(transport=httpx.ASGITransport(app), base_url="http://headlight")


async def test_the_door_is_told_where_ray_has_put_it_from_the_first_request_on() -> None:
    """And no request but Ray's own probe reaches Ray's application."""
    ray = Ray("/minilm")
    async with asking(mounted(Answering(), ray=ray)) as client:
        told = [(await client.get(path)).text for path in ("/minilm/info", "/other", "/-/routes")]
        probe = await client.get("/-/healthz")

    assert told == [f"/minilm {path}" for path in ("/minilm/info", "/other", "/-/routes")]
    assert probe.text == "success"
    assert ray.seen == [("http", "/-/routes"), ("http", "/-/healthz")]


@pytest.mark.parametrize(
    ("method", "headers"),
    [
        ("POST", {}),
        ("GET", {"content-length": "1"}),
        ("GET", {"transfer-encoding": "chunked"}),
        ("GET", {"upgrade": "websocket"}),
    ],
)
async def test_a_probe_that_is_more_than_one_is_the_doors_to_refuse(
    method: str, headers: dict[str, str]
) -> None:
    """Ray reads no body of it, which must not be taken for the next request."""
    async with asking(mounted(Answering())) as client:
        told = await client.request(method, "/-/healthz", headers=headers)

    assert told.text == " /-/healthz"


@pytest.mark.parametrize("path", ["/%2d/names", "/-/%6eames", "/%2d/healthz"])
async def test_what_needs_no_key_is_asked_for_in_one_spelling(path: str) -> None:
    """The door, which asks for one, gets all others."""
    async with asking(mounted(Answering())) as client:
        told = await client.get(path)

    assert told.text == f" {unquote(path)}"


@pytest.mark.parametrize(("stays", "status"), [(True, 200), (False, 503)])
async def test_the_probe_of_a_replica_that_stays_passes_though_ray_takes_it_out(
    stays: bool, status: int
) -> None:
    """HAProxy may not know another one yet."""
    doorway = Doorway()
    doorway.door, doorway.stays = Answering(), lambda: stays
    app = Entrance(PlainTextResponse("DRAINING", 503), doorway)
    async with asking(app) as client:
        assert (await client.get("/-/healthz")).status_code == status


@pytest.mark.parametrize("door", [None, Answering()], ids=["no door", "no place"])
async def test_where_no_replica_serves_all_but_the_probe_is_refused(
    door: ASGIApp | None,
) -> None:
    """In a process of Ray's proxy, before a start, and until Ray says where we are."""

    async def ray(scope: Scope, receive: Receive, send: Send) -> None:
        app = PlainTextResponse("success" if scope["path"] == "/-/healthz" else "Ray's own")
        await app(scope, receive, send)

    async with asking(mounted(door, ray=ray)) as client:
        refused = await client.post("/v1/encode", content=b"{}")
        routes = await client.get("/-/routes")
        probe = await client.get("/-/healthz")

    assert (refused.status_code, refused.json()["code"]) == (503, "not_ready")
    assert refused.headers["retry-after"] == "1" and refused.headers["connection"] == "close"
    assert refused.headers["x-request-id"] == refused.json()["request_id"]
    assert (routes.status_code, probe.text) == (503, "success")


class Clock:
    """A clock that a test sets."""

    now = 1.0

    def monotonic(self) -> float:
        """Return the seconds it was set to."""
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    """The entrance's clock."""
    clock = Clock()
    monkeypatch.setattr(entrance, "time", clock)
    return clock


async def test_a_place_that_ray_changes_is_learnt_before_long(clock: Clock) -> None:
    """Ray does not announce it, and is asked again."""
    ray, told = Ray("/"), list[str]()
    app = mounted(Answering(), ray=ray)
    async with asking(app) as client:
        told.append((await client.get("/info")).text)
        ray.place = "/minilm"
        told.append((await client.get("/info")).text)
        clock.now += entrance.PLACED_SECONDS
        told.append((await client.get("/minilm/info")).text)

    assert told == [" /info", " /info", "/minilm /minilm/info"]


async def test_a_list_that_ray_cannot_give_leaves_what_is_known(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch, clock: Clock
) -> None:
    """It refuses, has a bug or hangs, which is logged."""
    monkeypatch.setattr(entrance, "PLACED_SECONDS", 0.05)

    async def unready(scope: Scope, receive: Receive, send: Send) -> None:
        await JSONResponse("not yet", 503)(scope, receive, send)

    async def broken(scope: Scope, receive: Receive, send: Send) -> None:
        raise ZeroDivisionError

    async def hanging(scope: Scope, receive: Receive, send: Send) -> None:
        await asyncio.Event().wait()

    now = list[ASGIApp]()

    async def ray(scope: Scope, receive: Receive, send: Send) -> None:
        await now[-1](scope, receive, send)

    statuses = list[int]()
    async with asking(mounted(Answering(), ray=ray)) as client:
        for one in (unready, broken, Ray("/"), broken, PlainTextResponse("success"), hanging):
            now.append(one)
            clock.now += entrance.PLACED_SECONDS
            statuses.append((await client.get("/info")).status_code)

    assert statuses == [503, 503, 200, 200, 200, 200]
    assert [record.message for record in caplog.records] == ["place unknown"] * 4


async def test_a_client_that_leaves_while_ray_is_asked_ends_it_for_no_other() -> None:
    """All wait for one answer."""
    answering = asyncio.Event()

    async def slow(scope: Scope, receive: Receive, send: Send) -> None:
        await answering.wait()
        await Ray("/")(scope, receive, send)

    async with asking(mounted(Answering(), ray=slow)) as client:
        leaves, stays = (asyncio.create_task(client.get("/info")) for _ in range(2))
        await asyncio.sleep(0.01)
        leaves.cancel()
        await asyncio.wait([leaves])
        answering.set()

        assert (await stays).text == " /info"


async def test_a_websocket_is_closed() -> None:
    """None is served, so no key is asked for either."""
    sent, ray = list[Any](), Ray("/")

    async def send(message: Any) -> None:
        sent.append(message)

    async def never() -> Any: ...

    await mounted(Answering(), ray=ray)({"type": "websocket", "path": "/"}, never, send)

    assert sent == [{"type": "websocket.close"}] and ray.seen == []


async def test_the_entrance_needs_no_torch() -> None:
    """Ray's own proxy, which has no model, imports it too."""
    code = "import sys, service.door.entrance; sys.exit('torch' in sys.modules)"

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)

    assert await process.wait() == 0


async def test_a_bug_of_ours_is_logged_and_answered(
    replica: Replica, log: Callable[[], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """With our own 500, which says nothing of it."""

    def bug() -> Any:
        raise ZeroDivisionError

    monkeypatch.setattr(replica.health, "raise_if_faulty", bug)
    async with asking(Door(replica, no_metrics)) as client:
        answer = await client.get("/ready")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert json.loads(log().splitlines()[0])["event"] == "request failed"


async def all_idle(replica: Replica) -> None:
    """Wait until no lane runs, not even a self-check: what ends while a test holds all is lost."""
    while replica.batcher.busy:
        await asyncio.sleep(0.01)


async def no_metrics(openmetrics: bool, every_model: bool) -> bytes:
    """They are not read here."""
    return b""


@pytest_asyncio.fixture
async def url(
    replica: Replica, listen: Callable[..., AbstractAsyncContextManager[str]]
) -> AsyncIterator[str]:
    """Where a replica answers past Ray."""
    async with listen(mounted(Door(replica, no_metrics)), http=Protocol) as url:
        yield url


async def test_a_client_that_leaves_takes_its_waiting_work_along(
    url: str, replica: Replica
) -> None:
    """The client of another stays, and is answered."""
    await all_idle(replica)
    queue, stall = replica.batcher, ExitStack()
    async with httpx.AsyncClient(base_url=url) as staying:
        stall.enter_context(stalled(queue))
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
        stall.close()
        async with httpx.AsyncClient(base_url=url) as third:
            await third.post("/embed", json={"inputs": "c"})
        answer = await stays

    assert waiting == 1 and answer.status_code == 200


async def test_of_a_client_that_has_left_nothing_is_begun(
    url: str, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It left while its body was looked through."""
    await all_idle(replica)
    left, seen = asyncio.Event(), asyncio.Event()
    read = BodyReader.read

    async def slowly(self: BodyReader, *where: Any) -> Any:
        result = await read(self, *where)
        seen.set()
        await left.wait()
        return result

    monkeypatch.setattr(BodyReader, "read", slowly)
    lost = Protocol.connection_lost

    def leave(self: Protocol, exc: Exception | None) -> None:
        lost(self, exc)
        asyncio.get_running_loop().call_soon(left.set)

    monkeypatch.setattr(Protocol, "connection_lost", leave)
    with stalled(replica.batcher):
        async with httpx.AsyncClient(base_url=url) as client:
            asked = asyncio.create_task(client.post("/embed", json={"inputs": "a"}))
            await seen.wait()
            asked.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await asked
        await left.wait()
        for _ in range(20):
            await asyncio.sleep(0)

        assert replica.batcher.waiting_requests == 0 == in_flight(replica)


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
    url: str, replica: Replica
) -> None:
    """uvicorn reads no further once it holds 64 KiB, and so would not see its end."""
    await all_idle(replica)
    queue = replica.batcher
    long = b'{"truncate": true, "inputs": "%s"}' % (b"well " * 20_000)
    with stalled(queue):
        writer = await open_post(url, len(long), long[:10], long[10:])
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
    monkeypatch.setattr(body, "scan", lambda *all_: looked.append(all_))
    writer = await open_post(url, 1000, b'{"inputs": ["a')
    writer.close()
    async with asyncio.timeout(10):
        while not log():
            await asyncio.sleep(0)

    (line,) = map(json.loads, log().splitlines())
    assert (line["route"], line["code"], looked) == ("/embed", 499, [])
