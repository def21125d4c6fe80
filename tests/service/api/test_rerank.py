"""Rerank as Jina's, Cohere's and TEI's clients ask, held to sentence-transformers' CrossEncoder."""

import json
import shutil
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import pytest
import pytest_asyncio
import torch
from sentence_transformers import CrossEncoder
from starlette.types import ASGIApp
from transformers import AutoTokenizer

from service.pipeline.replica import Replica
from service.tables.memory import Hold
from service.tables.settings import Settings
from tests.conftest import posted
from tests.task_heads import LONG, MOST, checkpoint, long_reranker

QUERY = "Why is the dog here?"
TEXTS = ["All is well", "A dog ate the food", "It was hungry", "All is well"]
UNBELIEVABLE = "Unbelievable headlights were unbelievably hungry for long documents of many words"
CLOSE = 1e-5
COHERES = 4096  # tokens of a document: what cohere-haystack always asks for
ROUTES = ["/v1/rerank", "/v2/rerank", "/rerank"]


class Ranker:
    """A reranker, a client of a service of it, and the library's own object for its folder."""

    def __init__(self, folder: Path, http: httpx.AsyncClient) -> None:
        self.http = http
        how = {"attn_implementation": "sdpa"}  # of 4,096 tokens in half of the time
        self.encoder = CrossEncoder(str(folder), device="cpu", model_kwargs=how)
        self.tokenizer = AutoTokenizer.from_pretrained(folder)

    async def post(self, path: str, **body: Any) -> Any:
        """An answer that must come."""
        return await posted(self.http, path, body)

    async def scores(self, path: str, documents: list[str], **body: Any) -> list[float]:
        """The documents' scores, in their own order."""
        told = await self.post(path, query=QUERY, documents=documents, **body)
        scores = {row["index"]: row["relevance_score"] for row in told["results"]}
        return [scores[index] for index in range(len(documents))]

    def predicted(self, *documents: str) -> list[float]:
        """What CrossEncoder makes of them."""
        found = self.encoder.predict([(QUERY, document) for document in documents])
        return [float(score) for score in found]

    def of_tokens(self, document: str, most: int) -> float:
        """What its model makes of the query and the first tokens of a document."""
        first = self.tokenizer(document, add_special_tokens=False).input_ids[:most]
        asked = self.tokenizer(QUERY).input_ids
        ids = [*asked, *first, self.tokenizer.sep_token_id]
        types = [0] * len(asked) + [1] * (len(first) + 1)
        given = {"input_ids": torch.tensor([ids])}
        if self.encoder.model.config.model_type == "bert":
            given["token_type_ids"] = torch.tensor([types])
        with torch.inference_mode():
            logit = self.encoder.model(**given).logits[0, 0]
            return float(self.encoder.activation_fn(logit))


@pytest_asyncio.fixture(scope="module")
async def rankers(
    tmp_path_factory: pytest.TempPathFactory, outer: Callable[[Replica], ASGIApp]
) -> AsyncIterator[dict[str, Ranker]]:
    """A short BERT, and a ModernBERT of 8,192 tokens."""
    short, long = tmp_path_factory.mktemp("short"), tmp_path_factory.mktemp("long")
    checkpoint(short, "ForSequenceClassification", num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(short)
    tokenizer.model_max_length = MOST
    tokenizer.save_pretrained(short)
    long_reranker(long)
    raw = tmp_path_factory.mktemp("raw")
    shutil.copytree(short, raw, dirs_exist_ok=True)
    config = json.loads((raw / "config.json").read_text())
    config["sentence_transformers"] = {"activation_fn": "torch.nn.modules.linear.Identity"}
    (raw / "config.json").write_text(json.dumps(config))
    rankers, replicas = {}, []
    for name, folder in (("short", short), ("long", long), ("raw", raw)):
        settings = Settings(model=str(folder), device="cpu", threads=1, served_model_name=name)
        replicas.append(await Replica.start(settings, f"{name}-1"))
        transport = httpx.ASGITransport(outer(replicas[-1]))
        http = httpx.AsyncClient(transport=transport, base_url="http://headlight", timeout=60)
        rankers[name] = Ranker(folder, http)
    yield rankers
    for replica in replicas:
        await replica.close()


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("name", ["short", "long"])
async def test_documents_are_ranked_as_the_library_scores_them(
    rankers: dict[str, Ranker], name: str, path: str
) -> None:
    """By the checkpoint's activation, best first, of equal ones the first."""
    ranker = rankers[name]
    told = await ranker.post(
        path, model=name, query=QUERY, documents=[{"text": TEXTS[0]}, *TEXTS[1:]]
    )
    best = await ranker.post(path, query=QUERY, documents=TEXTS, top_n=2)
    same = await ranker.post(path, query=QUERY, documents=TEXTS, top_k=2, return_len="true")

    predicted = ranker.predicted(*TEXTS)
    order = sorted(range(len(TEXTS)), key=lambda i: (-round(predicted[i], 5), i))
    assert [row["index"] for row in told["results"]] == order
    for row in told["results"]:
        assert row["relevance_score"] == pytest.approx(predicted[row["index"]], abs=CLOSE)
    assert best["results"] == same["results"] == told["results"][:2]
    assert told["model"] == name and told["usage"]["total_tokens"] > 40
    assert "truncated" not in told["usage"]
    if path != "/v2/rerank":  # of which Cohere's clients alone ask
        fields = ("index", "relevance_score")
        assert told["data"] == [{name: row[name] for name in fields} for row in told["results"]]


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("name", ["short", "long"])
@pytest.mark.parametrize("most", [1, 2, 7, 64, COHERES])
async def test_each_document_is_cut_to_so_many_tokens_of_its_own(
    rankers: dict[str, Ranker], name: str, path: str, most: int
) -> None:
    """Those of the query and special ones are not counted; words are cut where tokens end."""
    ranker = rankers[name]
    documents = ["dog", UNBELIEVABLE, TEXTS[1]]
    told = await ranker.scores(path, documents, max_tokens_per_doc=most)

    expected = [ranker.of_tokens(document, most) for document in documents]
    assert told == pytest.approx(expected, abs=CLOSE)
    if most >= 64:
        assert told == pytest.approx(ranker.predicted(*documents), abs=CLOSE)


async def test_a_document_of_8k_is_cut_to_coheres_4096(rankers: dict[str, Ranker]) -> None:
    """As cohere-haystack always asks; without it all is read."""
    ranker, long = rankers["long"], "dog food " * 2060
    cut = await ranker.scores("/v2/rerank", [long], max_tokens_per_doc=COHERES)
    whole = await ranker.scores("/v2/rerank", [long])

    assert len(ranker.tokenizer(long).input_ids) > COHERES < LONG
    assert cut == pytest.approx([ranker.of_tokens(long, COHERES)], abs=CLOSE)
    assert whole == pytest.approx(ranker.predicted(long), abs=CLOSE) != cut


async def test_what_is_cut_first_may_fit_and_is_then_not_refused(
    rankers: dict[str, Ranker],
) -> None:
    """A document's own bound comes before the model's."""
    given = {"query": QUERY, "documents": ["dog " * 99], "truncate": False}
    refused = await rankers["short"].http.post("/v2/rerank", json=given)
    told = await rankers["short"].post("/v2/rerank", **given, max_tokens_per_doc=5)

    assert refused.status_code == 422 and "documents[0]" in refused.json()["message"]
    assert told["usage"]["truncated"] == 1
    expected = rankers["short"].of_tokens("dog " * 99, 5)
    assert told["results"][0]["relevance_score"] == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("name", ["short", "long"])
async def test_an_empty_document_scores_as_the_library_scores_it(
    rankers: dict[str, Ranker], name: str
) -> None:
    """By every route, bounded or not; it refuses no batch."""
    ranker, documents = rankers[name], [TEXTS[1], "", TEXTS[2]]
    expected = ranker.predicted(*documents)

    for path in ROUTES:
        assert await ranker.scores(path, documents) == pytest.approx(expected, abs=CLOSE)
        told = await ranker.scores(path, documents, max_tokens_per_doc=COHERES)
        assert told == pytest.approx(expected, abs=CLOSE)
    ranks = await ranker.post("/rerank", query=QUERY, texts=documents)
    ranks = sorted(ranks, key=lambda rank: rank["index"])
    assert [rank["score"] for rank in ranks] == pytest.approx(expected, abs=CLOSE)


@pytest.mark.parametrize("path", ROUTES)
async def test_scores_are_logits_where_they_are_asked_for(
    rankers: dict[str, Ranker], path: str
) -> None:
    """As Infinity's clients do."""
    told = await rankers["short"].scores(path, TEXTS, raw_scores=True)
    ranks = await rankers["short"].post("/rerank", query=QUERY, texts=TEXTS, raw_scores=True)

    assert told == [rank["score"] for rank in sorted(ranks, key=lambda rank: rank["index"])]
    assert told != await rankers["short"].scores(path, TEXTS)


@pytest.mark.parametrize("path", ROUTES)
async def test_scores_of_logits_are_made_such_of_0_to_1_where_they_are_asked_for(
    rankers: dict[str, Ranker], path: str
) -> None:
    """`use_activation` of vLLM; the checkpoint whose activation is the identity has the logits."""
    raw, short = rankers["raw"], rankers["short"]
    logits = await raw.scores(path, TEXTS)

    assert logits == await raw.scores(path, TEXTS, raw_scores=True)
    assert logits == await raw.scores(path, TEXTS, use_activation=False)
    assert logits == await short.scores(path, TEXTS, use_activation=False)
    expected = short.predicted(*TEXTS)  # by the sigmoid
    scores = await raw.scores(path, TEXTS, use_activation=True)
    assert scores == pytest.approx(expected, abs=CLOSE) and scores != logits
    own = await short.scores(path, TEXTS)
    assert own == await short.scores(path, TEXTS, use_activation=True)
    assert own == await short.scores(path, TEXTS, use_activation=None)
    asked = {"query": QUERY, "documents": TEXTS, "raw_scores": True, "use_activation": True}
    refused = (await raw.http.post(path, json=asked)).json()
    assert "use_activation: it goes without `raw_scores`" in refused["message"]


async def test_teis_scores_are_logits_where_no_activation_is_asked_for(
    rankers: dict[str, Ranker],
) -> None:
    """Else their sigmoid, of each checkpoint."""

    async def ask(**more: Any) -> Any:
        return await rankers["raw"].post("/rerank", query=QUERY, texts=TEXTS, **more)

    assert await ask(use_activation=True) == await ask()
    assert await ask(use_activation=False) == await ask(raw_scores=True) != await ask()


@pytest.mark.parametrize("path", ROUTES)
async def test_a_query_and_a_document_are_read_to_truncate_prompt_tokens_together(
    rankers: dict[str, Ranker], path: str
) -> None:
    """Special tokens included, the longer text cut first."""
    ranker, most = rankers["short"], 20
    document = " ".join(TEXTS * 2)
    told = await ranker.scores(path, [document], truncate_prompt_tokens=most)
    question = len(ranker.tokenizer(QUERY).input_ids)

    expected = ranker.of_tokens(document, most - question - 1)
    assert told == pytest.approx([expected], abs=CLOSE)


async def test_an_instruction_is_refused_by_name_where_there_is_no_place_for_it(
    rankers: dict[str, Ranker],
) -> None:
    """Also one that would be read too often."""
    given = {"query": QUERY, "documents": ["a"] * 2000}
    for instruction in ("Find the dog", "a" * 9999):
        body = {**given, "instruction": instruction}
        answer = await rankers["short"].http.post("/v2/rerank", json=body)
        assert answer.status_code == 422 and answer.json()["message"].startswith("instruction: ")


async def test_an_empty_query_is_refused(rankers: dict[str, Ranker]) -> None:
    """At its place."""
    answer = await rankers["short"].http.post("/v2/rerank", json={"query": "", "documents": ["a"]})

    assert answer.status_code == 422 and answer.json()["message"].startswith("query: ")


@pytest.mark.parametrize(("path", "default"), [("/v1/rerank", True), ("/v2/rerank", False)])
async def test_documents_come_back_on_jinas_route_unless_they_are_not_wanted(
    rankers: dict[str, Ranker], path: str, default: bool
) -> None:
    """On Cohere's they come where they are asked for."""
    given = {"query": QUERY, "documents": TEXTS}
    for asked in ({}, *({"return_documents": value} for value in (None, True, "true"))):
        results = (await rankers["short"].post(path, **given, **asked))["results"]
        shown = default or asked.get("return_documents") is not None
        rows = [{"text": TEXTS[row["index"]]} if shown else None for row in results]
        assert [row.get("document") for row in results] == rows
    plain = await rankers["short"].post(path, **given, return_documents=False)
    assert all("document" not in row for row in plain["results"])


async def test_documents_of_the_route_without_a_version_are_those_of_the_first(
    rankers: dict[str, Ranker],
) -> None:
    """The whole answer, and the refusal's words; `texts` are TEI's."""
    given = {"query": QUERY, "documents": [*TEXTS, {"text": "It rains"}], "top_n": 2}
    ranker = rankers["short"]
    told, expected = await ranker.post("/rerank", **given), await ranker.post("/v1/rerank", **given)
    tei = await ranker.post("/rerank", query=QUERY, texts=TEXTS)
    refused = await ranker.http.post("/rerank", json={"query": "", "documents": ["b"]})
    both = await ranker.http.post("/rerank", json={**given, "texts": TEXTS})

    assert told.pop("id") != expected.pop("id")
    assert told == expected and tei[0].keys() == {"index", "score"}
    assert refused.status_code == both.status_code == 422
    assert refused.json().keys() == both.json().keys() == {*("message", "detail", "error", "code")}
    assert refused.json()["detail"].startswith("query: ")


@pytest.mark.parametrize(
    ("headers", "query", "body"),
    [
        ({"content-type": "text/plain"}, "", '{"query": "a", "documents": ["b"]}'),
        ({}, "?top=1", '{"query": "a", "documents": ["b"]}'),
        ({"x-headlight-deadline-ms": "soon"}, "", '{"query": "a", "documents": ["b"]}'),
        ({}, "", '{"query": "a", "documents": ["b"], "documents": ["c"]}'),
    ],
    ids=["media type", "query parameter", "deadline", "duplicate key"],
)
async def test_before_the_body_is_parsed_a_refusal_has_teis_shape(
    rankers: dict[str, Ranker], headers: dict[str, str], query: str, body: str
) -> None:
    """Whose request it is stands in the body alone; docs/api.md says so."""
    headers = {"content-type": "application/json", **headers}
    answer = await rankers["short"].http.post(f"/rerank{query}", content=body, headers=headers)

    assert answer.status_code >= 400
    assert answer.json().keys() == {"error", "error_type"}


async def test_a_text_that_says_documents_is_teis(rankers: dict[str, Ranker]) -> None:
    """Quoted or not: only the key makes it another's."""
    texts = ["documents", '"documents": []', "documents:"]
    told = await rankers["short"].post("/rerank", query="documents", texts=texts)
    refused = await rankers["short"].http.post("/rerank", json={"query": "documents"})

    assert len(told) == 3 and told[0].keys() == {"index", "score"}
    assert refused.json().keys() == {"error", "error_type"}


@pytest.mark.parametrize("most", [None, 20])
@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_the_documents_that_come_back_are_in_the_price(
    rankers: dict[str, Ranker], monkeypatch: pytest.MonkeyPatch, path: str, most: int | None
) -> None:
    """Nearly all of the answer; not the query, which does not come back."""
    take, priced = Hold.take, list[int]()

    def noted(self: Hold, bodies: int = 0, arrays: int = 0, answers: int = 0) -> None:
        priced.append(answers)
        take(self, bodies=bodies, arrays=arrays, answers=answers)

    texts = ['All is "well" here.\n' * 40] * 40
    asked: dict[str, Any] = {"query": UNBELIEVABLE * 10, "top_n": most, "truncate": True}
    shown = {"texts": texts, "return_text": True}
    if path != "/rerank":
        shown = {"documents": texts, "return_documents": True}
    monkeypatch.setattr(Hold, "take", noted)
    answer = await rankers["short"].http.post(path, json={**asked, **shown})

    assert answer.status_code == 200, answer.text
    assert 0.9 <= max(priced) / len(answer.content) <= 1.1
