"""Both clients as one call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headlight_client import AsyncClient, Client, Encoded

Encode = Callable[..., Awaitable[Encoded]]


async def by_waiting(url: str, inputs: Any, how: Any = None, **options: Any) -> Encoded:
    """Encode with Client."""

    def wait() -> Encoded:
        with Client(url, **(how or {})) as client:
            return client.encode(inputs, **options)

    return await asyncio.to_thread(wait)


async def by_awaiting(url: str, inputs: Any, how: Any = None, **options: Any) -> Encoded:
    """Encode with AsyncClient."""
    async with AsyncClient(url, **(how or {})) as client:
        return await client.encode(inputs, **options)


@pytest.fixture(params=[by_waiting, by_awaiting], ids=["Client", "AsyncClient"])
def encode(request: pytest.FixtureRequest) -> Encode:
    """Encode inputs with either client, made with the arguments in `how`."""
    chosen: Encode = request.param
    return chosen
