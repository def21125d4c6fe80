"""Each answer has what the published schema of its API requires, and not what one client reads."""

from collections.abc import AsyncIterator, Callable

import httpx
import jsonschema
import pytest
import pytest_asyncio
from starlette.types import ASGIApp

from service.api import ROUTES
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.published_schemas import PUBLISHED, Published
from tests.task_heads import checkpoint

# answered as another path is; or of heads that neither model has: Hugging Face's client reads them
# held to clients instead, whose own classes read them: test_systemone.py and test_decisions.py
ELSEWHERE = {"/", "/embeddings", "/predict", "/embed_sparse", "/v1/systemone", "/v1/decisions"}


@pytest_asyncio.fixture(scope="module")
async def ranker(
    tmp_path_factory: pytest.TempPathFactory, outer: Callable[[Replica], ASGIApp]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a reranker."""
    folder = tmp_path_factory.mktemp("ranker")
    checkpoint(folder, "ForSequenceClassification", num_labels=1)
    settings = Settings(model=str(folder), device="cpu", threads=1, served_model_name="my-reranker")
    replica = await Replica.start(settings, "ranker-1")
    transport = httpx.ASGITransport(outer(replica))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        yield client
    await replica.close()


@pytest.mark.parametrize("published", PUBLISHED.values(), ids=PUBLISHED)
async def test_an_answer_has_all_that_its_api_requires(
    client: httpx.AsyncClient, ranker: httpx.AsyncClient, published: Published
) -> None:
    """Names, types and words; a refusal has what errors have."""
    http = ranker if published.ranks else client
    method = "GET" if published.body is None else "POST"
    answer = await http.request(method, published.path, json=published.body)

    jsonschema.validate(answer.json(), published.schema)
    assert answer.is_error == ("error" in published.schema.get("required", ()))


async def test_every_route_of_another_api_is_held_to_one() -> None:
    """But the Open Inference Protocol's, which Triton's client holds to it."""
    foreign = {row.path for row in ROUTES if row.foreign and "/infer" not in row.path}

    assert foreign - ELSEWHERE <= {published.path for published in PUBLISHED.values()}
