"""Every bad input of tests/bad_inputs.py, in process."""

from collections import Counter
from typing import TYPE_CHECKING, Any

import httpx
import orjson
import pytest
import pytest_asyncio

from service.pipeline.replica import Replica
from service.tables.refusals import MOST_BYTES, REFUSALS

if TYPE_CHECKING:
    from tests.bad_inputs import Row

GOLDEN = {"inputs": ["All is well"], "encoding": "base64"}


@pytest.fixture(
    params=[
        pytest.param("", id="at the root"),
        pytest.param("/minilm", id="below a prefix", marks=pytest.mark.prove),
    ]
)
def prefix(request: pytest.FixtureRequest) -> str:
    """Where Ray has put the routes."""
    return str(request.param)


@pytest_asyncio.fixture(scope="module")
async def golden(address: str) -> Any:
    """The answer from before the first of them."""
    async with httpx.AsyncClient(base_url=address) as client:
        return (await client.post("/v1/encode", json=GOLDEN)).json()["data"]


async def test_each_is_answered_as_listed_and_leaves_the_replica_as_it_was(
    client: httpx.AsyncClient, replica: Replica, golden: Any, bad_group: "list[Row]"
) -> None:
    """Status and code, nothing waits; after each group ready, and the same bits as before."""
    for row in bad_group:
        answer = await client.request(
            row.method, row.path, content=row.body(), headers=list(row.headers)
        )

        assert (answer.status_code, code(answer)) == (row.status, row.code), row.name
        assert row.code is None or len(answer.content) <= MOST_BYTES, row.name
        assert answer.headers["x-request-id"].isascii(), row.name
        batcher = replica.batcher
        assert batcher.waiting_requests == batcher.waiting_tokens == 0, row.name

    assert (await client.get("/ready")).status_code == 200
    assert (await client.post("/v1/encode", json=GOLDEN)).json()["data"] == golden


def code(answer: httpx.Response) -> Any:
    """The code of a refusal; None of any other answer."""
    if answer.headers.get("content-type") != "application/problem+json":
        return None
    problem = orjson.loads(answer.content)
    assert problem["request_id"] == answer.headers["x-request-id"]
    assert problem["title"] == REFUSALS[problem["code"]].title
    return problem["code"]


async def test_there_are_enough_of_them_and_no_two_have_one_name(
    rows: "dict[str, list[Row]]",
) -> None:
    """And every refusal that a request alone can cause is among them."""
    names = Counter(row.name for group in rows.values() for row in group)
    codes = {row.code for group in rows.values() for row in group}

    assert max(names.values()) == 1 and len(names) >= 150
    of_requests = {name for name, kind in REFUSALS.items() if kind.status < 429}
    elsewhere = {"unauthorized", "model_forbidden", "bad_host"}  # by setting
    elsewhere |= {"request_timeout"}  # by silence
    # tests/service/questions/encode/test_attention.py, tests/service/api/test_prompts.py
    others = {"specials_unknown", "prompt_without_text"}
    others |= {"similarity_not_explainable"}  # by the checkpoint: questions/test_similarity.py
    assert of_requests - codes == elsewhere | others
