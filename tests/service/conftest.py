"""What tests of the service share: replicas behind real sockets, and a model of odd sizes."""

import json
import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when huggingface_hub is imported; nothing may call out

import httpx
import pytest
import pytest_asyncio
import torch
from sentence_transformers import SentenceTransformer
from starlette.types import ASGIApp
from transformers import BertConfig, BertModel

from service.files.weights import BUNDLED_MODEL, locate_model
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.task_heads import embedder

Serving = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]

PROMPTS = {"query": "search for: ", "document": "", "passage": "pre"}


@pytest_asyncio.fixture(scope="session")
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


@pytest_asyncio.fixture(scope="session")
async def prompted_url(prompted: Replica, listen: Any, outer: Any) -> AsyncIterator[str]:
    """Where the model with prompts is served."""
    async with listen(outer(prompted)) as url:
        yield url


@pytest_asyncio.fixture
async def http(address: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of the bundled model."""
    async with httpx.AsyncClient(base_url=address, timeout=60) as client:
        yield client


@pytest_asyncio.fixture
async def prompted_http(prompted_url: str) -> AsyncIterator[httpx.AsyncClient]:
    """A plain client of the model with prompts."""
    async with httpx.AsyncClient(base_url=prompted_url, timeout=60) as client:
        yield client


@pytest.fixture
def loud(tmp_path: Path) -> Path:
    """A small BERT whose last hidden state is about 20 everywhere; one head, of odd size."""
    torch.manual_seed(0)
    bert = BertModel(
        BertConfig(
            vocab_size=30522,  # the bundled tokenizer's
            hidden_size=37,
            num_hidden_layers=2,
            num_attention_heads=1,
            intermediate_size=53,
            max_position_embeddings=419,
        )
    )
    with torch.no_grad():
        bert.encoder.layer[-1].output.LayerNorm.bias.fill_(20.0)
    bert.save_pretrained(tmp_path)
    shutil.copy(locate_model(BUNDLED_MODEL).folder / "tokenizer.json", tmp_path)
    return tmp_path


@pytest.fixture
def serving(listen: Any, outer: Callable[[Replica], ASGIApp]) -> Serving:
    """A client of a replica that serves a folder over real HTTP."""

    @asynccontextmanager
    async def serve(folder: Path, **more: Any) -> AsyncIterator[httpx.AsyncClient]:
        settings = Settings(model=str(folder), device="cpu", threads=1, **more)
        replica = await Replica.start(settings, "replica-1")
        try:
            async with listen(outer(replica)) as url, httpx.AsyncClient(base_url=url) as http:
                yield http
        finally:
            await replica.close()

    return serve
