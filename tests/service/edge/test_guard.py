"""What the outermost layer lets through."""

import asyncio
import sys
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import pytest

from service.api.document import document
from service.edge import reading
from service.edge.guard import REFUSAL, Guard
from service.encode.answer import INFERENCE_HEADER, OCTETS, SAFETENSORS
from service.keys import Key
from service.memory import PROCESS
from service.observe.record import WAITED
from service.refusals import REFUSALS
from service.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="session")


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


async def test_the_client_cannot_smuggle_a_refusal_or_steer_ray() -> None:
    """The headers between the layers, and Ray's own, are dropped at the door."""
    seen: list[list[tuple[bytes, bytes]]] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(scope["headers"])

    guard = Guard(inner, Settings(max_body_bytes=10))
    steering = [
        (REFUSAL, b"x"),
        (WAITED.encode(), b"9"),
        (b"x-request-timeout-seconds", b"0"),
        (b"accept", b"*/*"),
    ]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/", "headers": steering}
    await guard(scope, receive, send)

    assert [name for name, _ in seen[0]] == [b"accept", b"x-request-id"]


@pytest.mark.parametrize(
    ("method", "headers", "statuses"),
    [
        ("POST", {"upgrade": "foo"}, (400, "close")),
        ("POST", {"upgrade": "h2c"}, (400, "close")),
        ("POST", {"upgrade": b"foo\xff"}, (400, "close")),
        ("GET", {"upgrade": "websocket"}, (400, "close")),
        ("GET", {"upgrade": "h2c, foo"}, (400, "close")),
        ("GET", {"upgrade": "H2C"}, (200, None)),
        ("GET", {"connection": "upgrade"}, (200, None)),
    ],
)
async def test_a_request_for_another_protocol_is_refused_and_the_last_of_its_connection(
    client: httpx.AsyncClient, method: str, headers: dict[str, Any], statuses: tuple[int, str]
) -> None:
    """Whether or not Connection names it; Java's client, which asks in passing, is answered."""
    content = b'{"inputs":["a"]}' if method == "POST" else None
    path = "/v1/encode" if method == "POST" else "/live"
    answer = await client.request(method, path, content=content, headers=headers)

    assert (answer.status_code, answer.headers.get("connection")) == statuses
    assert answer.status_code == 200 or "Upgrade" in answer.json()["detail"]


@pytest.mark.parametrize(("length", "fits"), [(b"0" * 5000 + b"5", True), (b"9" * 5000, False)])
async def test_a_length_of_thousands_of_digits_is_read_like_any(length: bytes, fits: bool) -> None:
    """Python itself reads no number of so many."""
    served: list[bool] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        served.append((REFUSAL, b"body_too_large") not in scope["headers"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"12345"}

    async def send(message: Any) -> None: ...

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/",
        "headers": [(b"content-length", length)],
    }
    await Guard(inner, Settings(max_body_bytes=12))(scope, receive, send)

    assert served == [fits]


async def test_a_body_without_a_length_is_read_no_further_than_the_limit() -> None:
    """A stream that goes on and on is refused after the first byte too many."""
    served: list[bool] = []
    chunks = 0

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        served.append((REFUSAL, b"body_too_large") in scope["headers"])

    async def receive() -> dict[str, Any]:
        nonlocal chunks
        chunks += 1
        return {"type": "http.request", "body": b"12345", "more_body": True}

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await Guard(inner, Settings(max_body_bytes=12))(scope, receive, send)

    assert served == [True] and chunks == 3


@pytest.mark.parametrize(
    ("path", "name", "value", "binary"),
    [
        ("/v1/encode", "content-type", "application/vnd.safetensors", True),
        ("/v1/encode", "content-type", "Application/Octet-Stream; x=y", True),
        ("/v1/encode", "content-type", "application/json", False),
        ("/v1/encode", "inference-header-content-length", "2", False),
        ("/v2/models/m/infer", "inference-header-content-length", "2", True),
    ],
)
async def test_only_bytes_may_take_more_than_json(
    path: str, name: str, value: str, binary: bool
) -> None:
    """By media type; the header that announces bytes counts where it is read."""
    served: list[bool] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        served.append((REFUSAL, b"body_too_large") not in scope["headers"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": bytes(11)}

    async def send(message: Any) -> None: ...

    headers = [(name.encode(), value.encode())]
    limits = Settings(max_body_bytes=10, max_binary_body_bytes=12)
    scope = {"type": "http", "method": "POST", "path": path, "headers": headers}
    await Guard(inner, limits)(scope, receive, send)

    assert served == [binary]


async def test_only_the_hosts_allowed_are_answered_and_the_probe(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """With any port, in any case; another name may be a page that rebinds its own."""
    answered = {}
    async with served(allowed_hosts=("headlight.example", "127.0.0.1")) as client:
        for host in ("Headlight.example", "127.0.0.1:8000", "evil.example", "evil.127.0.0.1", ""):
            answered[host] = (await client.get("/live", headers={"host": host})).status_code
        probe = await client.get("/-/healthz", headers={"host": "10.0.0.7"})

    assert list(answered.values()) == [200, 200, 421, 421, 421]
    assert probe.status_code == 404  # of the routes here; Ray answers it


@pytest.mark.parametrize(
    ("method", "headers", "code"),
    [
        ("GET", {"content-length": "5"}, b"bad_request"),
        ("HEAD", {"content-length": "5"}, b"bad_request"),
        ("OPTIONS", {"transfer-encoding": "chunked"}, b"bad_request"),
        ("PUT", {"content-length": "5"}, None),
        ("GET", {"content-length": "0"}, None),
        ("GET", {}, None),
        ("POST", {"content-length": "5"}, b"unauthorized"),
    ],
)
async def test_no_body_is_read_where_none_belongs_or_of_who_has_no_key(
    method: str, headers: dict[str, str], code: bytes | None
) -> None:
    """Nor is it taken for the next request: where one was announced, the connection ends."""
    seen: list[bytes | None] = []
    sent: list[Any] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(next((value for name, value in scope["headers"] if name == REFUSAL), None))
        assert await receive() == {"type": "http.request", "body": b"", "more_body": False}
        await send({"type": "http.response.start", "status": 200, "headers": []})

    async def receive() -> dict[str, Any]:
        raise AssertionError("a body was read")

    async def send(message: Any) -> None:
        sent.extend(name for name, _ in message["headers"])

    raw = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": method, "path": "/live", "headers": raw}
    await Guard(inner, Settings(api_keys=(Key("me", "0" * 64),)))(scope, receive, send)

    announced = headers.get("content-length") != "0" and bool(headers)
    assert seen == [b"unauthorized" if method == "PUT" else code]
    assert (b"connection" in sent) == (announced and method != "POST")


async def test_a_body_that_comes_with_a_get_is_no_next_request(
    app: Guard, listen: Callable[..., AbstractAsyncContextManager[str]]
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
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Half of it, then silence."""
    monkeypatch.setattr(reading, "BODY_SECONDS", 0.05)
    codes, parts = [], [{"type": "http.request", "body": b"{", "more_body": True}]

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        codes.extend(value for name, value in scope["headers"] if name == REFUSAL)

    async def receive() -> dict[str, Any]:
        if not parts:
            await asyncio.sleep(3600)
        return parts.pop()

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await Guard(inner, Settings())(scope, receive, send)

    assert codes == [b"request_timeout"]


async def test_of_a_body_refused_nothing_more_reaches_ray() -> None:
    """Ray keeps all that it receives until the client leaves."""
    seen: list[dict[str, Any]] = []
    coming = iter(
        [
            *({"type": "http.request", "body": b"12345", "more_body": True},) * 9,
            {"type": "http.disconnect"},
        ]
    )

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.extend([await receive(), await receive()])

    async def receive() -> dict[str, Any]:
        return next(coming)

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await Guard(inner, Settings(max_body_bytes=12))(scope, receive, send)

    assert [(each["type"], each.get("body")) for each in seen] == [
        ("http.request", b""),
        ("http.disconnect", None),
    ]


@pytest.mark.parametrize("length", [None, "0", "1", "13"])
@pytest.mark.parametrize(
    "media_type",
    [None, "application/json; charset=latin-1", "APPLICATION/JSON", OCTETS, SAFETENSORS, "a/b"],
)
async def test_no_route_reads_json_that_was_not_looked_through(
    client: httpx.AsyncClient, media_type: str | None, length: str | None
) -> None:
    """Whatever the headers say that it is: each POST route refuses a key that stands twice."""
    headers = {} if media_type is None else {"content-type": media_type}
    headers |= {} if length is None else {INFERENCE_HEADER: length}
    twice = b'{"a":1,"a":1}'
    body = len(twice).to_bytes(8, "little") + twice if media_type == SAFETENSORS else twice
    paths = [path for path, known in document()["paths"].items() if "post" in known]

    answers = {
        path: await client.post(
            path.replace("{model}", "all-MiniLM-L6-v2").replace("{version}", "1"),
            content=body,
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


async def test_a_body_is_held_until_it_is_handed_on() -> None:
    """With as much again for what is made of it; what came of one that is refused is not."""
    seen: list[int] = []

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        seen.append(PROCESS.bytes["bodies"])
        await receive()
        seen.append(PROCESS.bytes["bodies"])

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b" " * 7, "more_body": False}

    async def send(message: Any) -> None: ...

    scope = {"type": "http", "method": "POST", "path": "/", "headers": []}
    await Guard(inner, Settings())(scope, receive, send)
    await Guard(inner, Settings(max_body_bytes=5))(scope, receive, send)

    assert (seen, PROCESS.bytes["bodies"]) == ([14, 0, 0, 0], 0)


async def test_it_starts_without_torch() -> None:
    """Ray's own proxy, which has no model, imports it too."""
    code = "import sys, service.edge.guard; sys.exit('torch' in sys.modules)"

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)

    assert await process.wait() == 0
