"""What is sent on to another model, and how its answer comes back."""

import asyncio
import sys
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager

import httpx
import orjson
import pytest
import pytest_asyncio
from starlette.types import ASGIApp, Receive, Scope, Send

from service.cluster.choose_model import NAMES_HEADER
from service.door.coding import zstd
from service.door.door import Door
from service.door.transport import Protocol
from service.pipeline.replica import Replica
from service.tables.keys import parse_keys
from tests.conftest import Connected, in_flight

OTHER = {NAMES_HEADER: "all-MiniLM-L6-v2, other"}
BODY = {"inputs": "All is well", "model": "other"}
NAMED = {"inputs": ["a"], "model": "other"}
INFER = {"inputs": [{"name": "text", "shape": [1], "datatype": "BYTES", "data": ["a"]}]}
FIRST, SECOND = b"of more ", b"pieces"
PATIENCE_SECONDS = 10


class Front:
    """Stands in for HAProxy and the other model: its answer breaks off, or waits in the middle."""

    def __init__(self) -> None:
        self.goes_on, self.left, self.breaks_off = asyncio.Event(), asyncio.Event(), False
        self.begun: asyncio.Event | None = None  # set once it is asked, where it says nothing
        self.asked, self.head = b"", dict[bytes, bytes]()  # the body and headers it was last sent

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Answer in two pieces."""
        self.asked, self.head, more = b"", dict(scope["headers"]), True
        while more:
            message = await receive()
            self.asked, more = self.asked + message["body"], message["more_body"]
        if self.begun:
            self.begun.set()
            await receive()
            return self.left.set()
        told = {"content-length": str(len(FIRST + SECOND)), "x-headlight-ignored": "model"}
        headers = [(name.encode(), value.encode()) for name, value in told.items()]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": FIRST, "more_body": True})
        if self.breaks_off:
            raise ConnectionError
        leaving = asyncio.ensure_future(receive())
        going = asyncio.ensure_future(self.goes_on.wait())
        await asyncio.wait((leaving, going), return_when=asyncio.FIRST_COMPLETED)
        going.cancel()
        if leaving.done():
            return self.left.set()
        leaving.cancel()
        await send({"type": "http.response.body", "body": SECOND, "more_body": False})


@pytest.fixture
def front() -> Front:
    """What the replica sends on to."""
    return Front()


@pytest_asyncio.fixture
async def root(
    replica: Replica, front: Front, listen: Callable[..., AbstractAsyncContextManager[str]]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of the replica, told of another model."""

    async def scrape(openmetrics: bool, every_model: bool) -> bytes:
        return b""

    async with listen(front, http=Protocol) as beyond:
        door = Door(replica, scrape, front=beyond)
        app: ASGIApp = door
        async with (
            listen(app, http=Protocol) as here,
            httpx.AsyncClient(base_url=here, headers=OTHER, timeout=PATIENCE_SECONDS) as client,
        ):
            yield client
            await door.close()


async def test_an_answer_is_passed_on_as_it_comes(root: httpx.AsyncClient, front: Front) -> None:
    """With the headers of the replica that made it, each once."""
    async with root.stream("POST", "/embed", json=BODY) as answer:
        pieces = answer.aiter_raw()
        assert await anext(pieces) == FIRST
        front.goes_on.set()
        assert await anext(pieces) == SECOND

    assert answer.headers.get_list("x-headlight-ignored") == ["model"]
    assert answer.headers["content-length"] == str(len(FIRST + SECOND))


async def test_a_compressed_body_is_sent_on_as_its_text(
    root: httpx.AsyncClient, front: Front
) -> None:
    """Which says how long it is, and no longer that it is compressed."""
    front.goes_on.set()
    text = orjson.dumps(BODY | {"inputs": "well " * 999})
    headers = {"content-type": "application/json", "content-encoding": "zstd"}
    answer = await root.post("/embed", content=zstd.compress(text), headers=headers)

    assert answer.content == FIRST + SECOND and front.asked == text
    assert front.head[b"content-length"] == str(len(text)).encode()
    assert b"content-encoding" not in front.head


async def test_a_client_that_leaves_ends_what_was_sent_on(
    root: httpx.AsyncClient, front: Front
) -> None:
    """Also in the midst of the answer."""
    async with root.stream("POST", "/embed", json=BODY) as answer:
        assert await anext(answer.aiter_raw()) == FIRST

    await asyncio.wait_for(front.left.wait(), PATIENCE_SECONDS)


async def test_an_answer_that_breaks_off_does_so_for_the_client_too(
    root: httpx.AsyncClient, front: Front
) -> None:
    """None takes a part for the whole."""
    front.breaks_off = True

    with pytest.raises(httpx.RemoteProtocolError):
        await root.post("/embed", json=BODY)


async def test_a_client_that_leaves_before_the_answer_is_counted_by_the_other_alone(
    root: httpx.AsyncClient, front: Front, replica: Replica
) -> None:
    """Here it has left no trace, as if it had been answered."""
    front.begun = asyncio.Event()
    before = counted(replica)
    asking = asyncio.create_task(root.post("/embed", json=BODY))
    await asyncio.wait_for(front.begun.wait(), PATIENCE_SECONDS)
    asking.cancel()
    await asyncio.wait_for(front.left.wait(), PATIENCE_SECONDS)

    assert counted(replica) == before and in_flight(replica) == 0


def counted(replica: Replica) -> list[str]:
    """The counts of requests of a replica."""
    replica.observer.report()
    page = replica.freeze_metrics(False)().decode().splitlines()
    return [line for line in page if line.startswith("headlight_requests_total")]


async def test_a_name_that_none_has_yet_is_of_a_model_that_starts(
    client: httpx.AsyncClient, served: Callable[..., Connected]
) -> None:
    """Whether HAProxy knows of it or not; when all have said their names, it is unknown."""
    starts = await client.post(
        "/v1/encode", json=NAMED, headers={NAMES_HEADER: "all-MiniLM-L6-v2, *"}
    )
    told = await client.post(
        "/v1/encode", json=NAMED, headers={NAMES_HEADER: "all-MiniLM-L6-v2, a"}
    )
    async with served(other_replicas=1) as first:
        untold = await first.post("/v1/encode", json=NAMED)

    assert [answer.status_code for answer in (starts, told, untold)] == [503, 404, 503]
    assert starts.headers["retry-after"] == untold.headers["retry-after"] == "1"


async def test_a_version_that_the_model_has_not_is_of_no_model_that_starts(
    served: Callable[..., Connected],
) -> None:
    """Waiting for another one would not bring it."""
    path = "/v2/models/all-MiniLM-L6-v2/versions/2/infer"
    async with served(other_replicas=1) as first:
        answers = [
            await first.post(path, json=INFER, headers=told)
            for told in ({}, {NAMES_HEADER: "all-MiniLM-L6-v2, *"}, OTHER)
        ]

    assert [answer.status_code for answer in answers] == [404] * 3


async def test_a_path_that_only_a_model_that_starts_may_answer_is_503_until_then(
    client: httpx.AsyncClient, served: Callable[..., Connected]
) -> None:
    """One that every model answers stays 404."""
    ranking = {"query": "a", "documents": ["b"]}
    starts, said = ({NAMES_HEADER: f"all-MiniLM-L6-v2, {last}"} for last in ("*", "a"))
    early = await client.post("/v1/rerank", json=ranking, headers=starts)
    late = await client.post("/v1/rerank", json=ranking, headers=said)
    classes = {"inputs": ["a"], "classify": True}
    every = await client.post("/v1/encode", json=classes, headers=starts)
    async with served(other_replicas=1) as first:
        untold = await first.post("/v1/rerank", json=ranking)

    codes = [answer.status_code for answer in (early, late, every, untold)]
    assert codes == [503, 404, 404, 503]
    assert early.headers["retry-after"] == "1"


async def test_a_key_that_names_no_model_is_told_in_the_log_once(
    served: Callable[..., Connected], caplog: pytest.LogCaptureFixture
) -> None:
    """When all models have said their names; one that another has is right."""
    held = parse_keys("a:the-key-of-a-12345678 models=other,misspelt")
    async with served(api_keys=held) as client:
        for names in ("all-MiniLM-L6-v2, *", *["all-MiniLM-L6-v2, org/Other"] * 2):
            await client.get("/live", headers={NAMES_HEADER: names})
            said = [line.getMessage() for line in caplog.records if "models=" in line.getMessage()]
            assert len(said) == (names[-1] != "*")

    assert said == ["key a: models= names misspelt, which no model is called"]


async def test_a_replica_that_sends_nothing_on_has_no_client_of_http() -> None:
    """aiohttp takes a start 0.2 s, and 5 MiB."""
    code = "import sys, service.door.door; sys.exit('aiohttp' in sys.modules)"

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)

    assert await process.wait() == 0
