"""Several models at one address, for all tests of them."""

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.several_models import (
    EMBEDDER,
    FIRST,
    RERANKER,
    Address,
    one_address,
    save_embedder,
    save_reranker,
)


@pytest_asyncio.fixture(scope="package")
async def address(
    replica: Replica, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Address]:
    """The bundled model, a small embedder and a reranker."""
    folder = tmp_path_factory.mktemp("several")
    models = {FIRST: replica}
    for save in (save_embedder, save_reranker):
        model = save(folder)
        settings = Settings(model=str(model), threads=1, device="cpu")
        models[model.name] = await Replica.start(settings, f"{model.name}-1")
    async with one_address(models, folder) as served:
        yield served
    for name in (EMBEDDER, RERANKER):
        await models[name].close()
