"""What the door lets in, and how it reads a body."""

import asyncio
import json
import time
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from itertools import product
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from service.api.document import document
from service.cluster import ingress
from service.door import body, door, under_way
from service.pipeline.replica import Replica
from service.shapes.answer import INFERENCE_HEADER, OCTETS
from service.tables.keys import Key, parse_keys
from service.tables.memory import PROCESS
from service.tables.refusals import REFUSALS
from tests.conftest import application, connected


async def test_a_request_id_is_kept_when_harmless_and_replaced_when_not(
    client: httpx.AsyncClient,
) -> None:
    """What comes back can be logged."""
    kept = await client.get("/live", headers={"x-request-id": "Trace.1_a-b"})
    replaced = [
        await client.get("/live", headers={"x-request-id": bad})
        for bad in (b"\xff", b"a b", b"x" * 129)
    ]

    assert kept.headers["x-request-id"] == "Trace.1_a-b"
    assert all(len(answer.headers["x-request-id"]) == 32 for answer in replaced)


async def test_many_headers_are_refused_in_no_time(app: ASGIApp) -> None:
    """To look for names that stand twice takes no time that grows with their square."""
    asking = Client(app)
    asking.extra = [(b"x-%d" % (number // 2), b"") for number in range(20_000)]
    start = time.thread_time()
    status = await asking.ask("GET", "/live", {})

    assert status == 431
    assert time.thread_time() - start < 1


class Client:
    """Asks an application, message by message."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self.status, self.headers = 0, dict[bytes, bytes]()
        self.reads, self.held = 0, list[int]()
        self.extra = list[tuple[bytes, bytes]]()

    async def ask(
        self, method: str, path: str, headers: dict[str, Any], *pieces: bytes, more: bool = False
    ) -> int:
        """Send a request; after its pieces comes the last one again, or nothing where more is."""
        coming = list(pieces)

        async def receive() -> dict[str, Any]:
            self.reads += 1
            self.held.append(PROCESS.bytes["bodies"])
            if not coming:
                await asyncio.sleep(3600)
            piece = coming.pop(0)
            return {"type": "http.request", "body": piece, "more_body": more or bool(coming)}

        async def send(message: Any) -> None:
            if message["type"] == "http.response.start":
                self.status, self.headers = message["status"], dict(message["headers"])

        raw = [(name.encode(), str(value).encode()) for name, value in headers.items()]
        raw += self.extra
        scope = {"type": "http", "method": method, "path": path, "headers": raw}
        await self.app(scope, receive, send)
        return self.status


async def test_a_length_of_thousands_of_zeros_is_read_like_any(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """Python itself reads no number of so many digits."""
    client, length = Client(served(max_body_bytes=12).app), "0" * 5000 + "5"

    assert await client.ask("POST", "/v1/encode", {"content-length": length}, b"12345") == 422


async def test_a_body_without_a_length_is_read_no_further_than_the_limit(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """A stream that goes on and on is refused after the first byte too many."""
    client = Client(served(max_body_bytes=12).app)

    assert await client.ask("POST", "/v1/encode", {}, *[b"12345"] * 9, more=True) == 413
    assert client.reads == 3


@pytest.mark.parametrize(
    ("path", "name", "value", "binary"),
    [
        ("/v1/encode", "content-type", "Application/Octet-Stream; x=y", True),
        ("/v1/encode", "content-type", "application/json", False),
        ("/v1/encode", "inference-header-content-length", "2", False),
        ("/v2/models/m/infer", "inference-header-content-length", "2", True),
    ],
)
async def test_only_bytes_may_take_more_than_json(
    served: Callable[..., httpx.AsyncClient], path: str, name: str, value: str, binary: bool
) -> None:
    """By media type; the header that announces bytes counts where it is read."""
    client = Client(served(max_body_bytes=3).app)

    status = await client.ask("POST", path, {name: value}, bytes(11))

    assert (status != 413) == binary


async def test_only_the_hosts_allowed_are_answered(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """With any port, in any case; another name may be a page that rebinds its own."""
    answered = {}
    async with served(allowed_hosts=("headlight.example", "127.0.0.1")) as client:
        for host in ("Headlight.example", "127.0.0.1:8000", "evil.example", "evil.127.0.0.1", ""):
            answered[host] = (await client.get("/info", headers={"host": host})).status_code

    assert list(answered.values()) == [200, 200, 421, 421, 421]


@pytest.mark.parametrize(
    "path", ["/live", "/ready", "/health", "/v2/health/live", "/v2/health/ready"]
)
async def test_a_probe_is_answered_under_any_name(
    served: Callable[..., httpx.AsyncClient], path: str
) -> None:
    """A kubelet asks a pod by its address, and no other method or path is a probe."""
    async with served(allowed_hosts=("headlight.example",)) as client:
        by_address = {"host": "10.0.0.7:8000"}
        answered = [
            (await client.request(method, asked, headers=by_address)).status_code
            for method, asked in [("GET", path), ("HEAD", path), ("POST", path), ("GET", "/page/")]
        ]

    assert answered == [200, 200, 421, 421]


@pytest.mark.parametrize("public", [False, True])
async def test_a_scrape_with_a_key_is_answered_under_any_name(
    served: Callable[..., httpx.AsyncClient], public: bool
) -> None:
    """Prometheus asks a pod by its address; a page that rebinds its name has no key.

    Where everyone may read the metrics, no key vouches for who asks.
    """
    keys = parse_keys(f"prometheus:{'p' * 16} metrics\nme:{'m' * 16}\n")
    answered = {}
    async with served(allowed_hosts=("a.b",), api_keys=keys, public_metrics=public) as client:
        for key, path in product(("p", "m", "x"), ("/metrics", "/metrics/targets", "/info")):
            headers = {"host": "10.0.0.7:8000", "authorization": f"Bearer {key * 16}"}
            answered[key, path] = (await client.get(path, headers=headers)).status_code

    scrapes = {("p", "/metrics"), ("p", "/metrics/targets")}
    assert {asked for asked, status in answered.items() if status == 200} == (
        set() if public else scrapes
    )
    assert set(answered.values()) <= {200, 421}


@pytest.mark.parametrize(
    ("method", "headers", "status"),
    [
        ("GET", {"content-length": "5"}, 400),
        ("HEAD", {"content-length": "5"}, 400),
        ("OPTIONS", {"transfer-encoding": "chunked"}, 400),
        ("PUT", {"content-length": "5"}, 401),
        ("GET", {"content-length": "0"}, 200),
        ("GET", {}, 200),
        ("POST", {"content-length": "5"}, 401),
    ],
)
async def test_no_body_is_read_where_none_belongs_or_of_who_has_no_key(
    served: Callable[..., httpx.AsyncClient], method: str, headers: dict[str, str], status: int
) -> None:
    """Nor is it taken for the next request: where one was announced, the connection ends."""
    client = Client(served(api_keys=(Key("me", "0" * 64),)).app)

    assert await client.ask(method, "/live", headers, b"12345") == status

    announced = headers.get("content-length") != "0" and bool(headers)
    assert client.reads == 0
    assert (b"connection" in client.headers) == (announced and method != "POST")


async def test_a_body_that_comes_with_a_get_is_no_next_request(
    app: ASGIApp, listen: Callable[..., AbstractAsyncContextManager[str]]
) -> None:
    """Over a connection that would be kept."""
    inner = b"GET /live HTTP/1.1\r\nHost: h\r\n\r\n"
    outer = b"GET /live HTTP/1.1\r\nHost: h\r\nContent-Length: %d\r\n\r\n%s" % (len(inner), inner)
    async with listen(app) as url:
        port = int(url.rpartition(":")[2])
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        writer.write(outer)
        answer = await reader.read()
        writer.close()

    assert answer.startswith(b"HTTP/1.1 400") and answer.count(b"\r\ndate: ") == 1


async def test_a_body_that_does_not_come_is_refused_in_time(
    app: ASGIApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Half of it, then silence."""
    monkeypatch.setattr(body, "BODY_SECONDS", 0.05)

    assert await Client(app).ask("POST", "/v1/encode", {}, b"{", more=True) == 408


@pytest.mark.parametrize("length", [None, "0", "1", "13"])
@pytest.mark.parametrize(
    "media_type",
    [None, "application/json; charset=latin-1", "APPLICATION/JSON", OCTETS, "a/b"],
)
async def test_no_route_reads_json_that_was_not_looked_through(
    client: httpx.AsyncClient, media_type: str | None, length: str | None
) -> None:
    """Whatever the headers say that it is: each POST route refuses a key that stands twice."""
    headers = {} if media_type is None else {"content-type": media_type}
    headers |= {} if length is None else {INFERENCE_HEADER: length}
    twice = b'{"a":1,"a":1}'
    paths = [path for path, known in document()["paths"].items() if "post" in known]

    answers = {
        path: await client.post(
            path.replace("{model}", "all-MiniLM-L6-v2").replace("{version}", "1"),
            content=twice,
            headers=headers,
        )
        for path in paths
    }

    assert "/v1/encode" in answers and any("infer" in path for path in answers)
    whole = length in (None, "13")
    for path, answer in answers.items():
        refused = REFUSALS["duplicate_key"].title in answer.text
        infers = path.endswith("/infer")
        unread = answer.status_code in (
            404,
            415,
        )  # a task that is not here, a type that is not read
        assert refused or unread or (infers and not whole and answer.status_code == 400), path


async def test_bodies_hold_no_more_than_the_budget(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """What comes when others hold it all may come again; small ones pass."""
    body = b'{"inputs":["' + b"a" * 100_000 + b'"]}'
    json = {"content-type": "application/json"}

    async with served(max_held_bytes=1) as client:
        refused = await client.post("/v1/encode", content=body, headers=json)
        unrouted = await client.post("/none", content=body, headers=json)
        small = await client.post("/v1/encode", json={"inputs": ["a"]})

    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert refused.headers["retry-after"] == "1"
    assert (unrouted.status_code, small.status_code) == (429, 200)
    assert not any(PROCESS.bytes.values())


async def test_a_body_is_held_while_it_comes_and_until_it_is_answered(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """With as much again for what is made of it; what came of one that is refused is not."""
    client = Client(served(max_body_bytes=20).app)

    assert await client.ask("POST", "/v1/encode", {}, b" " * 7, b" " * 7) == 400
    assert await client.ask("POST", "/v1/encode", {}, b" " * 17, b" " * 7) == 413

    assert client.held == [0, 14, 0, 34] and PROCESS.bytes["bodies"] == 0


async def test_what_holds_a_request_up_for_ever_is_ended_and_logged(
    replica: Replica,
    monkeypatch: pytest.MonkeyPatch,
    log: Callable[[], str],
) -> None:
    """A little after our own refusal was due; that it was not is a bug of ours."""

    async def hang(*asked: Any) -> None:
        await asyncio.Event().wait()

    monkeypatch.setattr(replica.heads, "answer", hang)
    monkeypatch.setattr(ingress, "request_seconds", lambda settings: 0.05)
    async with connected(application(replica)) as client:
        answer = await client.get("/v1/heads")

    assert (answer.status_code, answer.json()["code"]) == (500, "internal")
    assert [json.loads(line)["event"] for line in log().splitlines()][0] == "request failed"


async def test_what_holds_an_answers_reader_up_is_not_for_the_door_to_end(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its connection does, if it is too slow; here it takes longer than the work may."""
    monkeypatch.setattr(ingress, "request_seconds", lambda settings: 0.0)
    app, taken = application(replica), list[str]()
    monkeypatch.setattr(under_way, "OVERDUE_SECONDS", 0.01)

    async def slowly(message: Any) -> None:
        await asyncio.sleep(0.05)
        taken.append(message["type"])

    async def never() -> None: ...

    scope = {"type": "http", "method": "GET", "path": "/live", "headers": []}
    await app(scope, never, slowly)

    assert len(taken) == 2


async def test_what_too_many_ask_at_once_is_refused(
    replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work alone: who looks whether the service lives is answered."""
    monkeypatch.setattr(door, "POSTS_FACTOR", 0)
    async with connected(application(replica)) as client:
        refused = await client.post("/v1/encode", json={"inputs": ["a"]})
        live = await client.get("/live")

    assert (refused.status_code, refused.json()["code"]) == (429, "overloaded")
    assert refused.headers["retry-after"] == "1" and live.status_code == 200


async def test_an_answers_last_piece_is_held_until_its_reader_takes_it(app: ASGIApp) -> None:
    """It is counted before, so that its reader finds it counted."""
    held = list[int]()
    size = 200  # of queries and keys: some 400 KB
    body = {"query": [[1]] * size, "key": [[1]] * size, "value": [[1]] * size}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": json.dumps(body).encode()}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.body":
            held.append(PROCESS.bytes["answers"] - len(message["body"]))

    scope = {"type": "http", "method": "POST", "path": "/v1/attend", "headers": []}
    await app(scope, receive, send)

    assert len(held) > 2 and min(held) == held[-1] == 0
    assert not any(PROCESS.bytes.values())
