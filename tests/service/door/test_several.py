"""What a replica answers for all models of its address, as HAProxy tells it of them."""

from typing import Any

import httpx
import pytest

from service.cluster.choose_model import MODELS_HEADER
from service.pipeline.replica import Replica
from service.tables.refusals import Refused

OWN = "all-MiniLM-L6-v2 / encode 2026-11-29 1"
OTHER = "org%2Freranker /reranker encode+rerank 2026-09-15 "


@pytest.fixture
def lost(replica: Replica, monkeypatch: pytest.MonkeyPatch) -> None:
    """A replica that must not serve."""

    def refuse() -> None:
        raise Refused("not_ready", retry_after=1)

    monkeypatch.setattr(replica, "check_ready", refuse)


async def ask(client: httpx.AsyncClient, path: str, other: str) -> tuple[int, Any]:
    """Status and body of an answer, where HAProxy counts so many replicas of the other model."""
    told = {MODELS_HEADER: f"{OWN}, {OTHER}{other}"} if other else {}
    answer = await client.get(path, headers=told)
    return answer.status_code, answer.json() if answer.content else None


async def test_an_address_is_ready_and_names_the_models_that_are_not(
    client: httpx.AsyncClient,
) -> None:
    """None where all are, or where there is one model."""
    ready = {"status": "ready"}

    assert await ask(client, "/ready", "") == await ask(client, "/ready", "2") == (200, ready)
    assert await ask(client, "/ready", "0") == (200, {**ready, "not_ready": ["org/reranker"]})


@pytest.mark.usefixtures("lost")
@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/ready", {"status": "ready", "not_ready": ["all-MiniLM-L6-v2"]}),
        ("/health", None),
        ("/v2/health/ready", {"ready": True}),
    ],
)
async def test_an_address_is_ready_while_another_model_is(
    client: httpx.AsyncClient, path: str, body: Any
) -> None:
    """The replica that says so need not be; with no other, and for itself, it answers 503."""
    assert await ask(client, path, "1") == (200, body)
    assert [(await ask(client, path, other))[0] for other in ("0", "")] == [503, 503]


async def test_info_lists_the_models_of_an_address(client: httpx.AsyncClient) -> None:
    """Only where there are several."""
    info = (await ask(client, "/info", "1"))[1]

    assert info["model"] == "all-MiniLM-L6-v2"
    assert info["models"] == [
        {"name": "all-MiniLM-L6-v2", "tasks": ["encode"], "prefix": "/"},
        {"name": "org/reranker", "tasks": ["encode", "rerank"], "prefix": "/reranker"},
    ]
    assert "models" not in (await ask(client, "/info", ""))[1]
