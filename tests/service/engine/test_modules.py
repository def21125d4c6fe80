"""sentence-transformers' newer modules over HTTP: ranks by layers, a Router's documents."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import torch
from sentence_transformers import CrossEncoder, SparseEncoder
from sentence_transformers.base.modules import Dense, Transformer
from sentence_transformers.sentence_transformer.modules import (
    LayerNorm,
    Pooling,
)
from starlette.types import ASGIApp
from torch import nn

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.conftest import posted
from tests.sparse_router import routed
from tests.task_heads import SIZES, checkpoint

WIDTH = SIZES["hidden_size"]
QUERY, TEXTS = "Why is the dog here?", ["All is well", "A dog ate the food", "yes"]
CLOSE = 1e-5

Serve = Callable[[Path], Any]


@pytest_asyncio.fixture
async def serve(
    listen: Callable[..., AbstractAsyncContextManager[str]],
    outer: Callable[[Replica], ASGIApp],
) -> AsyncIterator[Serve]:
    """Serve a folder; gives a client of it."""
    async with AsyncExitStack() as stack:

        async def serve(folder: Path) -> httpx.AsyncClient:
            settings = Settings(model=str(folder), device="cpu", threads=1)
            replica = await Replica.start(settings, "modules-1")
            stack.push_async_callback(replica.close)
            url = await stack.enter_async_context(listen(outer(replica)))
            return await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))

        yield serve


async def post(client: httpx.AsyncClient, path: str, status: int = 200, **body: Any) -> Any:
    """An answer of this status."""
    return await posted(client, path, body, status=status)


async def test_a_cross_encoder_of_layers_ranks_as_the_library(serve: Serve, tmp_path: Path) -> None:
    """Transformer, Pooling, Dense, LayerNorm, Dense."""
    checkpoint(tmp_path / "bert", "Model")
    last = Dense(11, 1, activation_function=nn.Identity(), module_output_name="scores")
    parts = [Pooling(WIDTH), Dense(WIDTH, 11), LayerNorm(11), last]
    bert = Transformer(str(tmp_path / "bert"))
    CrossEncoder(modules=[bert, *parts], device="cpu").save_pretrained(
        str(tmp_path / "chain"), create_model_card=False
    )
    peer = CrossEncoder(str(tmp_path / "chain"), device="cpu")
    expected = peer.predict([(QUERY, text) for text in TEXTS]).tolist()

    client = await serve(tmp_path / "chain")
    told = await post(client, "/v1/rerank", query=QUERY, documents=TEXTS)

    scores = {row["index"]: row["relevance_score"] for row in told["results"]}
    assert [scores[place] for place in range(len(TEXTS))] == pytest.approx(expected, abs=CLOSE)


def dense(sparse: dict[str, Any], size: int) -> torch.Tensor:
    """A sparse vector of an answer over the vocabulary."""
    weights = torch.zeros(size)
    return weights.index_copy(0, torch.tensor(sparse["indices"]), torch.tensor(sparse["values"]))


@pytest.fixture
def table(tmp_path: Path) -> tuple[SparseEncoder, Path]:
    """A model whose queries are in a table, as the library loads it, and its folder."""
    checkpoint(tmp_path / "masked", "ForMaskedLM")
    for name in ("modules.json", "1_SpladePooling/config.json"):
        (tmp_path / "masked" / name).unlink()
    return routed(tmp_path / "masked", tmp_path / "table"), tmp_path / "table"


async def test_documents_of_a_router_answer_as_in_the_library_and_queries_are_refused(
    serve: Serve, table: tuple[SparseEncoder, Path]
) -> None:
    """By the role that a request names; without one a text is a document."""
    peer, folder = table
    client = await serve(folder)

    for how in ({"role": "document"}, True):
        told = await post(client, "/v1/encode", inputs=TEXTS, pooled=False, sparse=how)
        expected = peer.encode_document(TEXTS, convert_to_sparse_tensor=False)
        for each, row in zip(told["data"], expected, strict=True):
            found = dense(each["sparse"], len(row))
            torch.testing.assert_close(found, row, rtol=0, atol=CLOSE)
    (first, *_) = await post(client, "/embed_sparse", inputs=TEXTS)
    found = {row["index"]: row["value"] for row in first}
    row = peer.encode(TEXTS[0], convert_to_sparse_tensor=False)
    assert found == pytest.approx(
        {i: float(row[i]) for i in row.nonzero()[:, 0].tolist()}, abs=CLOSE
    )
    query = {"pooled": False, "sparse": {"role": "query"}}
    told = await post(client, "/v1/encode", 422, inputs=TEXTS, **query)
    assert told["errors"] == [{"loc": ["sparse", "role"], "code": "out_of_range"}]
    assert "looks queries up in a table, which is not read" in told["detail"]
