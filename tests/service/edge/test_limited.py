"""Limits that a replica takes up while it serves."""

from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from service import settings
from service.edge import guard
from service.edge import routes as edge
from service.edge.direct import Direct
from service.replica import Replica
from service.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="session")


async def no_metrics(openmetrics: bool) -> bytes:
    """Nobody asks for them here."""
    return b""


async def test_a_replica_takes_up_limits_and_says_so(replica: Replica) -> None:
    """In the outermost layer as in the routes, by the same connection."""
    way = Direct()
    app: ASGIApp = way.known(edge.application(replica, no_metrics))
    outer = guard.Guard(app, replica.settings, way)
    transport = httpx.ASGITransport(outer)
    texts = {"inputs": ["All is well"] * 3}
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as client:
        before = await client.post("/v1/encode", json=texts)
        limits = settings.limited(
            replica.settings, {"max_sequences": 2, "max_body_bytes": 100, "max_tokens": 7}
        )
        other = replica.limited(limits)
        way.change(edge.application(other, no_metrics), limits)
        many = await client.post("/v1/encode", json=texts)
        large = await client.post("/v1/encode", json={"inputs": ["a" * 100]})
        long = await client.post(
            "/v1/encode", json={"inputs": ["A dog ate the food because it is his"]}
        )
        shown = (await client.get("/info")).json()["limits"]

    assert before.status_code == 200
    assert (many.json()["code"], large.json()["code"], long.json()["code"]) == (
        "batch_too_large",
        "body_too_large",
        "sequence_too_long",
    )
    assert (shown["max_sequences"], shown["max_body_bytes"], shown["max_tokens"]) == (2, 100, 7)
    assert replica.settings.max_sequences == 2048


@pytest.mark.parametrize(
    ("limits", "said"),
    [
        ({"max_sequences": 0}, "max_sequences: Input should be greater than or equal to 1, not 0"),
        ({"max_sequence": 2}, "max_sequence: no such setting"),
        ({"drain_seconds": 7}, "drain_seconds: not in user_config; in args, for new replicas"),
        ({"max_tokens": 70_000}, "max_tokens 70000 must not be more than max_request_tokens"),
        (["max_tokens"], "user_config must hold limits"),
    ],
)
async def test_a_limit_that_cannot_be_taken_up_is_named(limits: Any, said: str) -> None:
    """By the names and bounds that args have."""
    with pytest.raises(ValueError, match=said) as refused:
        settings.limited(Settings(), limits)

    assert "\n" not in str(refused.value)


async def test_behind_rays_proxy_no_limit_changes_in_place() -> None:
    """It reads bodies by the limits of its own start."""
    with pytest.raises(ValueError, match="with ingress proxy"):
        settings.limited(Settings(ingress="proxy"), {"max_sequences": 2})
    assert settings.limited(Settings(ingress="proxy"), None) == Settings(ingress="proxy")
