"""Decoders over HTTP: an embedder and a reranker as sentence-transformers runs them."""

import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
import pytest_asyncio
from sentence_transformers import CrossEncoder, SentenceTransformer
from starlette.types import ASGIApp

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests import decoders
from tests.api_document import hold
from tests.decoders import TEMPLATE, WIDTH

CLOSE = 1e-5
NUMPY = orjson.OPT_SERIALIZE_NUMPY
LAYERS, HEADS = 4, 6
QUERY = "Which planet is known as the Red Planet?"
TEXTS = ["Mars, known for its reddish look.", "Venus", "The dog ate the food, and was hungry."]


class Served:
    """A model as sentence-transformers runs it, and a client of a service of it."""

    def __init__(self, theirs: Any, http: httpx.AsyncClient) -> None:
        self.theirs, self.http = theirs, http

    async def post(self, path: str, status: int = 200, **body: Any) -> Any:
        """An answer of this status."""
        answer = await self.http.post(path, json=body)
        assert answer.status_code == status, answer.text
        hold(path.partition("?")[0], answer)
        return answer.json()


Listen = Callable[..., AbstractAsyncContextManager[str]]


async def serving(
    folder: Path, theirs: Any, listen: Listen, outer: Callable[[Replica], ASGIApp]
) -> AsyncIterator[Served]:
    """A folder on a port of its own."""
    async with AsyncExitStack() as stack:
        settings = Settings(model=str(folder), threads=1, served_model_name="qwen")
        replica = await Replica.start(settings, "qwen-1")
        stack.push_async_callback(replica.close)
        url = await stack.enter_async_context(listen(outer(replica)))
        http = await stack.enter_async_context(httpx.AsyncClient(base_url=url, timeout=60))
        yield Served(theirs, http)


@pytest_asyncio.fixture(scope="module")
async def embedder(
    tmp_path_factory: pytest.TempPathFactory,
    listen: Listen,
    outer: Callable[[Replica], ASGIApp],
) -> AsyncIterator[Served]:
    """Pooled by its last token."""
    plain, folder = (tmp_path_factory.mktemp(name) for name in ("plain", "embedder"))
    theirs = SentenceTransformer(str(decoders.embedder(plain, folder)), device="cpu")
    async for served in serving(folder, theirs, listen, outer):
        yield served


@pytest_asyncio.fixture(scope="module")
async def reranker(
    tmp_path_factory: pytest.TempPathFactory,
    listen: Listen,
    outer: Callable[[Replica], ASGIApp],
) -> AsyncIterator[Served]:
    """Of yes and no."""
    plain, folder = (tmp_path_factory.mktemp(name) for name in ("plain", "reranker"))
    made = decoders.reranker(decoders.language_model(plain), folder)
    async for served in serving(folder, CrossEncoder(str(made), device="cpu"), listen, outer):
        yield served


@pytest_asyncio.fixture(scope="module")
async def gemma(
    tmp_path_factory: pytest.TempPathFactory,
    listen: Listen,
    outer: Callable[[Replica], ASGIApp],
) -> AsyncIterator[Served]:
    """Pooled by the mean and two Dense layers."""
    plain, folder = (tmp_path_factory.mktemp(name) for name in ("plain", "gemma"))
    made = decoders.embedding_gemma(plain, folder)
    async for served in serving(
        folder, SentenceTransformer(str(made), device="cpu"), listen, outer
    ):
        yield served


async def test_vectors_are_the_librarys_with_prompt_and_cut(embedder: Served) -> None:
    """On our wire, with the instruction of queries, and as OpenAI's clients cut them."""
    told = await embedder.post("/v1/encode", inputs=TEXTS, prompt_name="query")
    openai = await embedder.post("/v1/embeddings", model="qwen", input=TEXTS, dimensions=20)

    expected = embedder.theirs.encode(TEXTS, prompt_name="query")
    np.testing.assert_allclose([one["pooled"] for one in told["data"]], expected, atol=CLOSE)
    cut = embedder.theirs.encode(TEXTS)[:, :20]
    cut /= np.linalg.norm(cut, axis=1, keepdims=True)
    found = [one["embedding"] for one in openai["data"]]
    np.testing.assert_allclose(found, cut, rtol=0, atol=CLOSE)


FORMS: list[dict[str, Any]] = [
    {"form": "full"},
    {"form": "rows", "rows": [0, 2]},
    {"form": "top", "k": 3},
    {"form": "blocks", "size": 2},
    {"form": "dominance"},
    {"form": "rollout"},
]


@pytest.mark.parametrize("form", FORMS, ids=lambda form: form["form"])
async def test_no_form_of_a_map_has_a_key_after_its_query(
    embedder: Served, form: dict[str, Any]
) -> None:
    """Of each head of queries, six on two heads of keys."""
    asked = await embedder.post("/v1/encode", inputs=[TEXTS[0]], attention=form)
    attention = asked["data"][0]["attention"]
    if form["form"] == "rollout":
        assert not np.triu(attention["map"], 1).any()
        return
    kept = {"top": "edges", "dominance": "dominance"}.get(form["form"], "maps")
    heads = [one for layer in attention[kept].values() for one in layer.values()]
    assert len(heads) == LAYERS * HEADS
    for head in heads:
        match form["form"]:
            case "full" | "blocks":
                assert not np.triu(head, 1).any() and np.tril(head).any()
            case "rows":
                assert not np.array(head)[0, 1:].any() and not np.array(head)[1, 3:].any()
            case "top":
                after = np.array(head["keys"]) > np.arange(len(head["keys"]))[:, None]
                assert not np.array(head["values"])[after].any()
            case "dominance":
                assert all(one["dominant"] <= place for place, one in enumerate(head))


async def test_a_likeness_of_last_tokens_has_scores_and_no_shares(embedder: Served) -> None:
    """With what to ask instead; each head's worth by a sweep, each word's by occlusion."""
    body = {"left": QUERY, "right": TEXTS}
    refused = await embedder.post("/v1/similarity", 422, **body)
    scored = await embedder.post("/v1/similarity", **body, form="score", sweep="heads")

    assert refused["code"] == "similarity_not_explainable"
    assert 'pooling "last"' in refused["detail"] and '"form": "occlusion"' in refused["detail"]
    left, right = embedder.theirs.encode(QUERY), embedder.theirs.encode(TEXTS)
    found = [one["score"] for one in scored["right"]]
    np.testing.assert_allclose(found, right @ left, rtol=0, atol=CLOSE)
    change = scored["right"][0]["sweep"]["change"]
    assert sum(map(len, change.values())) == LAYERS * HEADS


async def test_a_likeness_of_last_tokens_has_shares_of_what_they_read(embedder: Served) -> None:
    """Of every token of both texts; with what biases carry they sum to the score."""
    told = await embedder.post("/v1/similarity", left=QUERY, right=TEXTS, by="input")

    for one in told["right"]:
        biases = np.sum(one["left_bias"]) + np.sum(one["right_bias"])
        total = np.sum(one["matrix"]) + biases + one["rest"]
        assert total == pytest.approx(one["score"], abs=CLOSE)
        assert np.abs(one["matrix"][0]).max() > 0


async def test_the_heads_of_a_decoder_have_shares_of_its_likeness(
    embedder: Served, gemma: Served
) -> None:
    """In each layer they and its rest sum to the score; also behind Dense layers."""
    for served in (embedder, gemma):
        for one in (await served.post("/v1/similarity", left=QUERY, right=TEXTS, by="head"))[
            "right"
        ]:
            for side in ("left", "right"):
                sums = np.sum(one[f"{side}_heads"], 1) + one[f"{side}_rest"]
                np.testing.assert_allclose(sums, one["score"], rtol=0, atol=CLOSE)


async def test_a_word_is_worth_what_its_text_without_it_scores_less(embedder: Served) -> None:
    """To the bit of requests that leave its tokens out, on both sides, by token and by word."""
    for level in ("token", "word"):
        told = await embedder.post(
            "/v1/similarity", left=QUERY, right=TEXTS, form="occlusion", level=level
        )

        sides = [told["left"], *told["right"]]
        left, *rights = [one["token_ids"] for one in sides]
        for one, ids in zip(told["right"], rights, strict=True):
            (whole,) = await scores(embedder, left, [ids])
            without = [lacking(told["left"], span) for span in units(told["left"])]
            lost = [(await scores(embedder, each, [ids]))[0] for each in without]
            own = await scores(embedder, left, [lacking(one, span) for span in units(one)])
            assert one["score"] == whole and one["method"] == "occlusion"
            assert one["left_worth"] == exact([whole - score for score in lost])
            assert one["right_worth"] == exact([whole - score for score in own])


def units(told: dict[str, Any]) -> list[list[int]]:
    """The tokens of each unit shown of a text."""
    spans = told.get("spans", [[place, place + 1] for place in range(len(told["tokens"]))])
    return [spans[place] for place in told.get("axis", range(len(spans)))]


def lacking(told: dict[str, Any], span: list[int]) -> list[int]:
    """The token ids of a text without some."""
    return [*told["token_ids"][: span[0]], *told["token_ids"][span[1] :]]


def exact(numbers: list[float]) -> list[float]:
    """Numbers as they come through float32 and JSON."""
    told: list[float] = json.loads(orjson.dumps(np.float32(numbers), option=NUMPY))
    return told


async def scores(served: Served, left: list[int], rights: list[list[int]]) -> list[float]:
    """The cosines of token ids."""
    sides = {"left": {"token_ids": left}, "right": [{"token_ids": ids} for ids in rights]}
    told = await served.post("/v1/similarity", **sides, form="score")
    return [one["score"] for one in told["right"]]


async def test_a_sweep_is_one_gate_at_a_time(embedder: Served) -> None:
    """Of heads whose mixed values are wider than the model."""
    told = await embedder.post("/v1/encode", inputs=[TEXTS[0]], sweep="heads")
    swept = told["data"][0]["sweep"]["cosine"]
    gates = [{"layer": 1, "head": 5, "scale": 0.0}]
    gated = await embedder.post("/v1/encode", inputs=[TEXTS[0]], gates=gates)

    whole, cut = (np.array(one["data"][0]["pooled"]) for one in (told, gated))
    assert swept["1"]["5"] == pytest.approx(whole @ cut, abs=1e-6) and whole @ cut < 0.9999


async def test_a_layer_is_explained_from_its_weights(embedder: Served) -> None:
    """Recomputed: six heads' scores from the keys that three of them share."""
    told = await embedder.post("/v1/explain", text=TEXTS[0], layer=2, weights=True)
    steps = {name: np.array(told[name], float) for name in ("entered", "q", "k", "v", "z")}
    named = told["parameters"]

    assert steps["q"].shape == steps["k"].shape == (HEADS, len(told["tokens"]), 14)
    assert told["shapes"]["concat"] == [len(told["tokens"]), HEADS * 14]
    assert len(named["q_norm"]["weight"]) == len(named["k_norm"]["weight"]) == 14
    v = steps["entered"] @ np.array(named["v"]["weight"])
    np.testing.assert_allclose(steps["v"], v, rtol=0, atol=CLOSE)
    shares = np.array(told["probabilities"])
    assert not np.triu(shares, 1).any()
    np.testing.assert_allclose(steps["z"], shares @ steps["v"], rtol=0, atol=CLOSE)
    assert told["scores"][0][0][1] is None


async def test_embeddings_stand_in_for_the_look_up(embedder: Served) -> None:
    """The table's rows give the text's own vector."""
    text = (await embedder.post("/v1/encode", inputs=TEXTS[:1], tokens=True))["data"][0]
    table = embedder.theirs[0].model.get_input_embeddings().weight.detach()
    rows = table[text["token_ids"]].tolist()
    told = await embedder.post("/v1/encode", inputs=[{"embeddings": rows}])

    assert len(rows[0]) == WIDTH
    np.testing.assert_allclose(told["data"][0]["pooled"], text["pooled"], rtol=0, atol=1e-6)


async def test_documents_are_ranked_as_the_library_ranks_them(reranker: Served) -> None:
    """By the sigmoid of yes over no; each alone and with the others to the same bits."""
    told = await reranker.post("/v1/rerank", query=QUERY, documents=TEXTS)
    alone = [await reranker.post("/v2/rerank", query=QUERY, documents=[text]) for text in TEXTS]

    expected = reranker.theirs.predict([(QUERY, text) for text in TEXTS])
    found = {one["index"]: one["relevance_score"] for one in told["results"]}
    np.testing.assert_allclose([found[i] for i in range(3)], expected, rtol=0, atol=CLOSE)
    order = [one["index"] for one in told["results"]]
    assert order == np.argsort(-expected, kind="stable").tolist()
    assert [one["results"][0]["relevance_score"] for one in alone] == [found[i] for i in range(3)]


@pytest.mark.parametrize("path", ["/v1/rerank", "/v2/rerank", "/rerank"])
async def test_a_request_to_rank_may_bring_its_instruction(reranker: Served, path: str) -> None:
    """In words or by the name of a prompt, as the library takes both; and not both."""
    pairs = [(QUERY, text) for text in TEXTS]
    texts = "texts" if path == "/rerank" else "documents"
    for asked, how in (
        ({"prompt_name": "query"}, {"prompt_name": "query"}),
        ({"instruction": "Find the dog"}, {"prompt": "Find the dog"}),
    ):
        told = await reranker.post(path, query=QUERY, **{texts: TEXTS}, **asked)
        rows = told if path == "/rerank" else told["results"]
        found = {row["index"]: row.get("score", row.get("relevance_score")) for row in rows}
        expected = reranker.theirs.predict(pairs, **how)
        np.testing.assert_allclose([found[i] for i in range(3)], expected, rtol=0, atol=CLOSE)
    both = {"prompt_name": "query", "instruction": "Find the dog"}
    await reranker.post(path, 422, query=QUERY, **{texts: TEXTS}, **both)
    await reranker.post(path, 422, query=QUERY, **{texts: TEXTS}, prompt_name="none")


async def test_a_pair_shows_its_template_as_special_tokens(reranker: Served) -> None:
    """And which head moved the score, with a prompt as the instruction."""
    pair = {"text": QUERY, "pair": TEXTS[0]}
    told = await reranker.post(
        "/v1/encode",
        inputs=[pair],
        pooled=False,
        tokens=True,
        classify=True,
        sweep="heads",
        prompt_name="query",
        attention={"form": "stats", "specials": "drop"},
    )
    (one,) = told["data"]
    expected = reranker.theirs.predict([(QUERY, TEXTS[0])], prompt_name="query")

    assert one["classes"][0]["score"] == pytest.approx(expected[0], abs=CLOSE)
    own = [at for at, special in enumerate(one["special"]) if not special]
    assert {one["segments"][at] for at in own} == {0, 1}
    texts = (QUERY, TEXTS[0])
    words = [texts[one["segments"][at]][slice(*one["offsets"][at])] for at in own]
    assert "".join(words).replace(" ", "") == "".join(texts).replace(" ", "")
    assert one["special"][0] and one["special"][-1] and TEMPLATE.startswith(one["tokens"][0])
    assert sum(map(len, one["sweep"]["logits"].values())) == LAYERS * HEADS


async def test_a_document_too_long_loses_its_end_and_not_the_template(reranker: Served) -> None:
    """Or is refused where the request says so."""
    long = "It rained and the dog was hungry. " * 60
    body = {"query": QUERY, "documents": [long]}
    told = await reranker.post("/v1/rerank", **body)
    refused = await reranker.post("/v1/rerank", 422, **body, truncate=False)

    expected = reranker.theirs.predict([(QUERY, long)])
    assert told["results"][0]["relevance_score"] == pytest.approx(expected[0], abs=CLOSE)
    assert refused["code"] == "sequence_too_long"


async def test_a_likeness_of_gemmas_has_shares(gemma: Served) -> None:
    """Which add up to the library's own score."""
    names = {"left": "query", "right": "document"}
    told = await gemma.post("/v1/similarity", left=QUERY, right=TEXTS, prompt_name=names)

    left = gemma.theirs.encode(QUERY, prompt_name="query")
    for one, text in zip(told["right"], TEXTS, strict=True):
        score = float(left @ gemma.theirs.encode(text, prompt_name="document"))
        assert one["score"] == pytest.approx(score, abs=CLOSE)
        assert np.sum(one["matrix"]) + one["rest"] == pytest.approx(one["score"], abs=1e-6)


async def test_gemmas_blocks_are_explained_with_their_norms(gemma: Served) -> None:
    """What is added is what W^O makes, normalised."""
    told = await gemma.post("/v1/explain", text=TEXTS[0], layer=1, weights=True)
    named = told["parameters"]
    made = np.array(told["concat"]) @ np.array(named["projected"]["weight"])
    unit = made / np.sqrt((made**2).mean(1, keepdims=True) + named["eps"])

    expected = unit * np.array(named["projected_norm"]["weight"])
    np.testing.assert_allclose(told["projected"], expected, rtol=0, atol=CLOSE)
