"""What the outermost layer lets through."""

from typing import Any

import httpx
import pytest

from service.guard import REFUSAL, Guard

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

    guard = Guard(inner, 10, 10)
    steering = [(REFUSAL, b"x"), (b"x-request-timeout-seconds", b"0"), (b"accept", b"*/*")]

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None: ...

    await guard({"type": "http", "path": "/", "headers": steering}, receive, send)

    assert [name for name, _ in seen[0]] == [b"accept", b"x-request-id"]


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

    await Guard(inner, 12, 12)({"type": "http", "path": "/", "headers": []}, receive, send)

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
    await Guard(inner, 10, 12)({"type": "http", "path": path, "headers": headers}, receive, send)

    assert served == [binary]
