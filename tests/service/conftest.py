"""A replica behind a real socket, for clients that are other people's code."""

import json
import os
from collections.abc import AsyncIterator
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported; nothing may call out

import httpx
import pytest
import pytest_asyncio
from sentence_transformers import SentenceTransformer

from service.replica import Replica
from service.settings import Settings
from tests.task_heads import embedder

PROMPTS = {"query": "search for: ", "document": "", "passage": "pre"}


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def prompted(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replica]:
    """A small model with prompts, and with one of them as its default."""
    folder = tmp_path_factory.mktemp("prompted") / "model"
    embedder(folder)
    told = {"prompts": PROMPTS, "default_prompt_name": "query"}
    (folder / "config_sentence_transformers.json").write_text(json.dumps(told))
    replica = await Replica.start(Settings(model=str(folder), threads=1), "prompted-1")
    yield replica
    await replica.close()


@pytest.fixture(scope="session")
def prompted_peer(prompted: Replica) -> SentenceTransformer:
    """sentence-transformers' model of the same folder."""
    return SentenceTransformer(prompted.settings.model, device="cpu")


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def prompted_url(prompted: Replica, listen: Any, outer: Any) -> AsyncIterator[str]:
    """Where the model with prompts is served."""
    async with listen(outer(prompted)) as url:
        yield url


@pytest_asyncio.fixture(loop_scope="session")
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of the bundled model."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        yield client


@pytest_asyncio.fixture(loop_scope="session")
async def prompted_http(prompted_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of the model with prompts."""
    async with httpx.AsyncClient(base_url=prompted_url, timeout=60) as client:
        yield client
