"""Ranks and labels, asked by both clients over real HTTP."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from typing import Any

import pytest
import pytest_asyncio

from headlight_client import Fit, NoAnswer, Rank, RequestRefused
from headlight_client.judged import read_classified, read_ranked
from tests.served_model import Listen, Outer, Served, serve
from tests.task_heads import checkpoint

QUERY = "Who ate?"
TEXTS, LABELS = ["A dog ate the food", "It rains"], ["food", "weather", "travel"]
NLI = {0: "contradiction", 1: "neutral", 2: "entailment"}


@pytest_asyncio.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[dict[str, Served]]:
    """A reranker and a model of natural language inference."""
    folders = {kind: tmp_path_factory.mktemp(kind) for kind in ("reranker", "nli")}
    checkpoint(folders["reranker"], "ForSequenceClassification", num_labels=1)
    labels = {"id2label": NLI, "label2id": {name: place for place, name in NLI.items()}}
    checkpoint(folders["nli"], "ForSequenceClassification", **labels)
    async with AsyncExitStack() as stack:
        yield {
            kind: await stack.enter_async_context(serve(folder, kind, listen, outer))
            for kind, folder in folders.items()
        }


async def test_ranks_come_typed(call: Any, served: dict[str, Served]) -> None:
    """Best first, as the JSON has them; the documents stay where they are."""
    one = served["reranker"]
    options = {"top_n": 1, "max_tokens_per_doc": 3, "truncate": False, "model": "reranker"}
    told = await call(one.url, "rerank", QUERY, TEXTS)
    first = await call(one.url, "rerank", QUERY, tuple(TEXTS), **options)
    expected = await one.post("/v1/rerank", query=QUERY, documents=TEXTS)
    cut = await one.post("/v1/rerank", query=QUERY, documents=TEXTS, **options)

    rows = [(row["index"], row["relevance_score"]) for row in expected["results"]]
    assert told.results == [Rank(*row) for row in rows]
    assert (told.model, told.tokens) == ("reranker", expected["usage"]["total_tokens"])
    assert [(rank.index, rank.score) for rank in first.results] == [
        (row["index"], row["relevance_score"]) for row in cut["results"]
    ]


async def test_labels_come_typed(call: Any, served: dict[str, Served]) -> None:
    """Of each text, best first, as the JSON has them."""
    one = served["nli"]
    gates = [{"layer": 0, "head": 1, "scale": 0.5}]
    options = {"hypothesis_template": "It is {}", "multi_label": True, "gates": gates}
    told = await call(one.url, "classify", TEXTS, LABELS, **options, model="nli", truncate="left")
    body = {"inputs": TEXTS, "labels": LABELS, **options}
    expected = await one.post("/v1/classify", **body)

    for text, row in zip(told.texts, expected["data"], strict=True):
        assert text.classes == [Fit(**fit) for fit in row["classes"]]
        assert (text.truncated, text.length) == (False, row["length"])
    assert told.usage.tokens == expected["usage"]["tokens"]
    assert told.origin == {name: expected[name] for name in ("model", "weights", "numerics")}


async def test_a_refusal_says_where(call: Any, served: dict[str, Served]) -> None:
    """In the shape of either route."""
    with pytest.raises(RequestRefused) as labels:
        await call(served["nli"].url, "classify", ["a", ""], LABELS)
    with pytest.raises(RequestRefused) as ranks:
        await call(served["nli"].url, "rerank", QUERY, TEXTS)

    assert labels.value.code == "sequence_empty" and labels.value.errors[0].loc == ("inputs", 1)
    assert (ranks.value.status, ranks.value.code) == (404, "task_not_found")


@pytest.mark.parametrize(
    ("method", "arguments", "options", "said"),
    [
        ("rerank", (QUERY, "a text"), {}, "documents must be a list"),
        ("rerank", (QUERY, ["a text"]), {"return_documents": True}, "option: return_documents"),
        ("classify", ("a text", LABELS), {}, "inputs must be a list"),
        ("classify", (["a text"], "a, b"), {}, "labels must be a list"),
        ("classify", (["a text"], LABELS), {"candidate_labels": LABELS}, "option: candidate"),
    ],
)
async def test_what_would_be_misread_is_refused_before_it_is_sent(
    call: Any, method: str, arguments: Any, options: dict[str, Any], said: str
) -> None:
    """A lone text, which is a list of letters too, and options that there are not."""
    with pytest.raises(TypeError, match=said):
        await call("http://127.0.0.1:9", method, *arguments, **options)


ODD: list[Any] = [None, [], {}, 7, {"model": "m", "results": [7]}, {"results": None}]
ODD += [
    {"data": [{}]},
    {"data": 7},
    {"data": [], "model": "m"},
]


@pytest.mark.parametrize("told", ODD)
async def test_another_answer_is_none(told: Any) -> None:
    """Of a service that is not Headlight's."""
    for read in (read_ranked, read_classified):
        with pytest.raises(NoAnswer):
            read(told)
