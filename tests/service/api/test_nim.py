"""NIM's POST /v1/ranking, held to the logits of our own route."""

from collections.abc import AsyncIterator, Callable
from typing import Any

import httpx
import pytest
import pytest_asyncio
from starlette.types import ASGIApp

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.task_heads import MOST, checkpoint

QUERY = "Why is the dog here?"
TEXTS = ["All is well", "A dog ate the food", "", "All is well"]
LONG = "well " * MOST


@pytest_asyncio.fixture(scope="module")
async def ranker(
    tmp_path_factory: pytest.TempPathFactory, outer: Callable[[Replica], ASGIApp]
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a reranker that reads few tokens."""
    folder = tmp_path_factory.mktemp("ranker")
    checkpoint(folder, "ForSequenceClassification", num_labels=1)
    settings = Settings(
        model=str(folder), device="cpu", threads=1, served_model_name="ranker", max_tokens=MOST
    )
    replica = await Replica.start(settings, "ranker-1")
    transport = httpx.ASGITransport(outer(replica))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        yield client
    await replica.close()


def asked(*texts: str, **more: Any) -> dict[str, Any]:
    """A request to rank texts."""
    return {"query": {"text": QUERY}, "passages": [{"text": text} for text in texts], **more}


async def test_passages_are_ranked_by_their_logits(ranker: httpx.AsyncClient) -> None:
    """Best first, of equal ones the first; the tokens are counted."""
    told = (await ranker.post("/v1/ranking", json=asked(*TEXTS, model="ranker"))).json()
    rerank = {"query": QUERY, "documents": TEXTS, "raw_scores": True}
    expected = (await ranker.post("/v1/rerank", json=rerank)).json()

    rows = [{"index": row["index"], "logit": row["relevance_score"]} for row in expected["results"]]
    assert told == {"rankings": rows, "usage": expected["usage"]}


@pytest.mark.parametrize(("truncate", "side"), [("END", "right"), ("START", "left")])
async def test_a_passage_that_is_too_long_is_cut_where_it_says(
    ranker: httpx.AsyncClient, truncate: str, side: str
) -> None:
    """On the side that TEI's route names in its own words."""
    passage = f"It begins {LONG} so it ends"
    told = await ranker.post("/v1/ranking", json=asked(passage, truncate=truncate))
    body = {"query": QUERY, "texts": [passage], "raw_scores": True, "truncation_direction": side}
    (rank,) = (await ranker.post("/rerank", json=body)).json()

    assert told.json()["rankings"] == [{"index": 0, "logit": rank["score"]}]
    assert told.headers["x-headlight-truncated"] == "1"


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        (asked("a", LONG, truncate="NONE"), 422, "passages[1]: it has "),
        (asked(), 422, "passages: expected one text or more"),
        ({**asked("a"), "query": {"text": ""}}, 422, "query: expected one character"),
        ({**asked("a"), "passages": [{"text": "a", "image": "data:"}]}, 422, "passages[0].image: "),
        ({**asked("a"), "query": "a"}, 422, "query: expected an object"),
        ({**asked("a"), "model": "another"}, 404, "model: "),
    ],
    ids=["too long", "no passage", "no query", "a picture", "a query as text", "another model"],
)
async def test_a_refusal_says_where_and_what(
    ranker: httpx.AsyncClient, body: dict[str, Any], status: int, said: str
) -> None:
    """By NIM's own names, where its clients look."""
    answer = await ranker.post("/v1/ranking", json=body)

    told = answer.json()
    assert (answer.status_code, told["object"]) == (status, "error")
    assert told["message"].startswith(said) and told["detail"] == told["message"]
