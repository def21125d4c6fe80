"""One real replica in process, on the bundled weights, and a client that speaks ASGI to it."""

from collections.abc import AsyncIterator

import httpx
import pytest
import pytest_asyncio

from service import edge, guard
from service.gateway import Gateway
from service.settings import Settings


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def gateway() -> AsyncIterator[Gateway]:
    """The bundled model behind its queue, two lanes."""
    gateway = Gateway(Settings(threads=2), "replica-1")
    await gateway.start()
    yield gateway
    await gateway.close()


@pytest.fixture
def app(gateway: Gateway) -> guard.Guard:
    """The replica's ASGI application with its outermost layer."""

    async def scrape() -> bytes:
        return gateway.metrics.render()

    limits = gateway.settings
    inner = edge.application(gateway, scrape)
    return guard.Guard(inner, limits.max_body_bytes, limits.max_binary_body_bytes)


@pytest_asyncio.fixture(loop_scope="session")
async def client(app: guard.Guard) -> AsyncIterator[httpx.AsyncClient]:
    """An HTTP client of that application."""
    transport = httpx.ASGITransport(app, raise_app_exceptions=True)
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        yield client
