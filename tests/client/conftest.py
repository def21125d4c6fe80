"""Both clients as one call."""

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from headlight_client import AsyncClient, Client, Encoded

Call = Callable[..., Awaitable[Any]]
Encode = Callable[..., Awaitable[Encoded]]


async def by_waiting(url: str, method: str, /, *given: Any, how: Any = None, **options: Any) -> Any:
    """Call a method of Client."""

    def wait() -> Any:
        with Client(url, **(how or {})) as client:
            return getattr(client, method)(*given, **options)

    return await asyncio.to_thread(wait)


async def by_awaiting(
    url: str, method: str, /, *given: Any, how: Any = None, **options: Any
) -> Any:
    """Call a method of AsyncClient."""
    async with AsyncClient(url, **(how or {})) as client:
        return await getattr(client, method)(*given, **options)


@pytest.fixture(params=[by_waiting, by_awaiting], ids=["Client", "AsyncClient"])
def call(request: pytest.FixtureRequest) -> Call:
    """Call a method of either client, made with the arguments in `how`."""
    chosen: Call = request.param
    return chosen


@pytest.fixture
def encode(call: Call) -> Encode:
    """Encode inputs with either client."""

    def asked(url: str, inputs: Any, how: Any = None, **options: Any) -> Awaitable[Encoded]:
        return call(url, "encode", inputs, how=how, **options)

    return asked
