"""What the engine's tests share."""

import os
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import httpx
import pytest
import torch
from starlette.types import ASGIApp
from transformers import BertConfig, BertModel

from service.engine.weights import BUNDLED_MODEL, locate_model
from service.replica import Replica
from service.settings import Settings

Served = Callable[..., AbstractAsyncContextManager[httpx.AsyncClient]]


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
def served(listen: Any, outer: Callable[[Replica], ASGIApp]) -> Served:
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
