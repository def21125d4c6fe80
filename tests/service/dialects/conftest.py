"""A replica behind a real socket, for clients that are other people's code."""

import asyncio
import json
import os
import shutil
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported; nothing may call out

import httpx
import pytest
import pytest_asyncio
import uvicorn

from service import edge, guard
from service.gateway import Gateway
from service.settings import Settings
from service.weights import BUNDLED, locate

PROMPTS = {"query": "search for: ", "document": "", "passage": "pre"}


class Server(uvicorn.Server):
    """Uvicorn in the loop of the tests, which keep their own handling of signals."""

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield


@asynccontextmanager
async def listening(gateway: Gateway) -> AsyncIterator[str]:
    """A replica on a free port of this machine; gives its address."""

    async def scrape() -> bytes:
        return gateway.metrics.render()

    limits = gateway.settings
    inner = edge.application(gateway, scrape)
    app = guard.Guard(inner, limits.max_body_bytes, limits.max_binary_body_bytes)
    config = uvicorn.Config(app, lifespan="off", log_level="warning", ws="none")
    server = Server(config)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        serving = asyncio.create_task(server.serve(sockets=[listener]))
        while not server.started:
            await asyncio.sleep(0.01)
        yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        server.should_exit = True
        await serving


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def url(gateway: Gateway) -> AsyncIterator[str]:
    """Where the bundled model is served."""
    async with listening(gateway) as url:
        yield url


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def prompted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Gateway]:
    """The bundled model with prompts, and with one of them as its default."""
    folder = tmp_path_factory.mktemp("prompted") / "model"
    shutil.copytree(locate(BUNDLED).folder, folder)
    told = {"prompts": PROMPTS, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(told))
    gateway = Gateway(Settings(model=str(folder), threads=1), "prompted-1")
    await gateway.start()
    yield gateway
    await gateway.close()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def prompted_url(prompted: Gateway) -> AsyncIterator[str]:
    """Where the model with prompts is served."""
    async with listening(prompted) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def http(url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of the bundled model."""
    async with httpx.AsyncClient(base_url=url, timeout=60) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def prompted_http(prompted_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of the model with prompts."""
    async with httpx.AsyncClient(base_url=prompted_url, timeout=60) as client:
        yield client
