"""Checkpoints that users bring, served from their folders and asked over HTTP."""

import os
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import httpx
import numpy as np
import pytest
import torch
from transformers import AutoTokenizer, BertConfig, BertModel, PreTrainedTokenizerBase

from service import guard
from service.gateway import Gateway
from service.settings import Settings
from service.weights import BUNDLED, locate

TEXT = "A dog ate the food because it was hungry"
MOST = 13  # rows of the position table

Served = Callable[[Path], AbstractAsyncContextManager[httpx.AsyncClient]]


@pytest.fixture
def served(outer: Callable[[Gateway], guard.Guard]) -> Served:
    """A client of a replica that serves a folder."""

    @asynccontextmanager
    async def serve(folder: Path) -> AsyncIterator[httpx.AsyncClient]:
        settings = Settings(model=str(folder), device="cpu", threads=1, canary_seconds=60)
        gateway = Gateway(settings, "replica-1")
        await gateway.start()
        transport = httpx.ASGITransport(outer(gateway))
        try:
            async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as http:
                yield http
        finally:
            await gateway.close()

    return serve


@pytest.fixture(scope="module")
def tokenizer() -> PreTrainedTokenizerBase:
    """The bundled model's, as transformers reads it."""
    return AutoTokenizer.from_pretrained(locate(BUNDLED).folder)


def bert(folder: Path, tokenizer: PreTrainedTokenizerBase, **choices: Any) -> BertModel:
    """A small model with random weights, saved with its tokenizer."""
    sizes = {"hidden_size": 15, "num_hidden_layers": 2, "num_attention_heads": 3}
    config = BertConfig(
        **sizes | {"vocab_size": len(tokenizer), "intermediate_size": 23} | choices,
        max_position_embeddings=MOST,
        initializer_range=0.5,
        attn_implementation="eager",
    )
    torch.manual_seed(0)
    model = BertModel(config).eval()
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return model


async def encode(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """What is answered of the one input."""
    answer = await http.post("/v1/encode", json={"inputs": [TEXT], **body})
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()["data"][0]
    return told


@pytest.mark.parametrize("name", ["gelu_new", "relu", "swish"])
async def test_an_activation_of_transformers_is_served_exactly(
    served: Served, tokenizer: PreTrainedTokenizerBase, tmp_path: Path, name: str
) -> None:
    """All hidden states, as transformers has them."""
    model = bert(tmp_path, tokenizer, hidden_act=name)
    with torch.inference_mode():
        theirs = model(**tokenizer(TEXT, return_tensors="pt"), output_hidden_states=True)

    async with served(tmp_path) as http:
        told = await encode(http, layers=[0, 1, 2])

    for layer, state in enumerate(theirs.hidden_states):
        ours = np.array(told["layers"][str(layer)])
        np.testing.assert_allclose(ours, state[0].numpy(), rtol=0, atol=2e-5)
