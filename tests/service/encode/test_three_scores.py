"""A checkpoint like BGE-M3 over HTTP: dense, sparse and many vectors of one pass; their scores."""

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load

from headlight_client import AsyncClient
from service.encode.request import Hybrid
from service.replica import Replica
from service.settings import Settings
from tests.bge_m3 import POSITIONS, SIZE, TEXTS, WIDTH, BgeM3, bge_m3
from tests.served import Listen, Outer, Served, serve

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLOSE = 1e-5
QUERY, DOCUMENTS = TEXTS[0], [*TEXTS[1:], TEXTS[1]]
WEIGHTS = {"dense": 0.4, "sparse": 0.2, "multi_vector": 0.4}
LONG = "the dog ate the food " * 40
WHOLE = {"pooled": True, "sparse": True, "multi_vector": True}


@dataclass(frozen=True)
class M3(Served):
    """A model as FlagEmbedding's formulas run it, and as it is served."""

    theirs: BgeM3

    async def ranks(self, **body: Any) -> list[dict[str, Any]]:
        """What POST /v1/rerank answers, best first."""
        given = {"query": QUERY, "documents": DOCUMENTS, **body}
        told: list[dict[str, Any]] = (await self.post("/v1/rerank", **given))["results"]
        return told


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[M3]:
    """The model on a port of its own."""
    theirs = bge_m3(tmp_path_factory.mktemp("m3"))
    async with serve(theirs.folder, "m3", listen, outer) as one:
        yield M3(**vars(one), theirs=theirs)


async def test_one_request_answers_all_three(served: M3) -> None:
    """FlagEmbedding's, of every text of a batch."""
    for told, text in zip(await served.encode(*TEXTS, **WHOLE), TEXTS, strict=True):
        expected = served.theirs.encode(text)
        np.testing.assert_allclose(told["pooled"], expected.dense, rtol=0, atol=CLOSE)
        weights = dict(zip(told["sparse"]["indices"], told["sparse"]["values"], strict=True))
        assert list(weights) == sorted(expected.sparse)
        assert weights == pytest.approx(expected.sparse, abs=CLOSE)
        assert told["kept"] == [*range(1, len(told["tokens"]))]
        np.testing.assert_allclose(told["vectors"], expected.colbert, rtol=0, atol=CLOSE)
        names = [served.theirs.tokenizer.convert_ids_to_tokens(id) for id in weights]
        assert told["sparse"]["tokens"] == names


async def test_each_alone_and_in_any_batch_has_the_same_bits(served: M3) -> None:
    """As from the request for all three."""
    together = await served.encode(*TEXTS, **WHOLE)
    nothing = {"pooled": False, "sparse": False, "multi_vector": False}
    for name, fields in {
        "pooled": ["pooled"],
        "sparse": ["sparse"],
        "multi_vector": ["vectors", "kept"],
    }.items():
        alone = [(await served.encode(text, **{**nothing, name: True}))[0] for text in TEXTS]
        for field in fields:
            assert [one[field] for one in alone] == [one[field] for one in together]


async def test_one_pass_makes_all_three(served: M3, monkeypatch: pytest.MonkeyPatch) -> None:
    """The encoder runs once, and its tokens are counted once."""
    passes: list[int] = []
    encoder = type(served.replica.lanes.model.encoder)
    run = encoder.__call__

    def counted(self: Any, packed: Any, **options: Any) -> Any:
        passes.append(len(packed.lengths))
        return run(self, packed, **options)

    monkeypatch.setattr(encoder, "__call__", counted)
    told = await served.post("/v1/encode", inputs=[QUERY], **WHOLE)

    assert passes == [1]
    assert told["usage"]["tokens"] == len(served.theirs.ids(QUERY))


async def test_sparse_weights_come_as_tei_answers_them(served: M3) -> None:
    """POST /embed_sparse; POST / stays what it is of a model with dense vectors."""
    told = await served.post("/embed_sparse", inputs=list(TEXTS))
    for weights, text in zip(told, TEXTS, strict=True):
        found = {one["index"]: one["value"] for one in weights}
        assert found == pytest.approx(served.theirs.encode(text).sparse, abs=CLOSE)

    (vector,) = await served.post("/", inputs=QUERY)
    np.testing.assert_allclose(vector, served.theirs.encode(QUERY).dense, atol=CLOSE)


async def test_sparse_weights_may_be_few_or_large(served: M3) -> None:
    """The largest by number, those above a threshold."""
    (whole,) = await served.encode(DOCUMENTS[0], pooled=False, sparse=True)
    largest = sorted(whole["sparse"]["values"])[-2:]
    (few,) = await served.encode(DOCUMENTS[0], pooled=False, sparse={"k": 2})
    bound = {"threshold": largest[0]}
    (one,) = await served.encode(DOCUMENTS[0], pooled=False, sparse=bound)

    assert sorted(few["sparse"]["values"]) == largest
    assert one["sparse"]["values"] == largest[1:]


async def test_documents_are_matched_token_by_token(served: M3) -> None:
    """The score is the mean of the matches' values; the first token of either text has none."""
    told = await served.post("/v1/maxsim", query=QUERY, documents=DOCUMENTS)

    assert {one["index"] for one in told["results"]} == {*range(len(DOCUMENTS))}
    for one in told["results"]:
        expected = served.theirs.parts(QUERY, DOCUMENTS[one["index"]])["multi_vector"]
        assert one["score"] == pytest.approx(expected, abs=CLOSE)
        rows, columns, values = zip(*one["matches"], strict=True)
        assert one["score"] == pytest.approx(np.mean(values), abs=1e-6)
        assert rows == (*range(1, len(told["query"]["tokens"])),) and min(columns) >= 1


async def test_documents_are_ranked_by_three_scores(served: M3) -> None:
    """Each part is FlagEmbedding's, and the score their weighted mean; equal ones keep order."""
    ranks = await served.ranks()

    assert [one["relevance_score"] for one in ranks] == sorted(
        (one["relevance_score"] for one in ranks), reverse=True
    )
    places = [one["index"] for one in ranks]
    assert places[places.index(0) + 1] == len(DOCUMENTS) - 1  # the same text
    for one in ranks:
        text = DOCUMENTS[one["index"]]
        assert one["document"] == {"text": text}
        assert one["parts"] == pytest.approx(served.theirs.parts(QUERY, text), abs=CLOSE)
        expected = served.theirs.hybrid(QUERY, text, WEIGHTS)
        assert one["relevance_score"] == pytest.approx(expected, abs=CLOSE)
        exact = sum(WEIGHTS[name] * part for name, part in one["parts"].items())
        assert one["relevance_score"] == pytest.approx(exact, abs=1e-12)


async def test_parts_are_made_of_what_one_pass_answers(served: M3) -> None:
    """To the bit of the vectors and weights that POST /v1/encode gives."""
    query, document = await served.encode(QUERY, DOCUMENTS[0], **WHOLE)
    (one,) = await served.ranks(documents=DOCUMENTS[:1])

    def array(values: Any) -> Any:
        return np.array(values, np.float32).astype(np.float64)

    maps = [
        dict(zip(item["sparse"]["indices"], array(item["sparse"]["values"]), strict=True))
        for item in (query, document)
    ]
    shared = sum(maps[0][id] * maps[1][id] for id in maps[0].keys() & maps[1].keys())
    products = array(query["vectors"]) @ array(document["vectors"]).T
    assert maps[0].keys() & maps[1].keys()
    assert one["parts"] == pytest.approx(
        {
            "dense": array(query["pooled"]) @ array(document["pooled"]),
            "sparse": shared,
            "multi_vector": products.max(1).mean(),
        },
        abs=1e-12,
    )


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ({"dense": 1.0, "sparse": 0.0, "multi_vector": 0.0}, (1.0, 0.0, 0.0)),
        ({"dense": 0, "sparse": 3, "multi_vector": 0}, (0.0, 3.0, 0.0)),
        ({"sparse": 0.7}, (0.4, 0.7, 0.4)),
        ({}, (0.4, 0.2, 0.4)),
    ],
    ids=["dense alone", "sparse alone", "one of its own", "none of its own"],
)
async def test_a_request_weighs_the_parts(
    served: M3, given: dict[str, float], meant: tuple[float, ...]
) -> None:
    """All parts are answered, whatever their weights; what is left out has its default."""
    weights = dict(zip(WEIGHTS, meant, strict=True))
    plain = {one["index"]: one["parts"] for one in await served.ranks()}
    for one in await served.ranks(weights=given):
        assert one["parts"] == plain[one["index"]]
        expected = sum(weights[name] * part for name, part in one["parts"].items())
        assert one["relevance_score"] == pytest.approx(expected / sum(meant), abs=1e-12)


async def test_a_rank_is_the_same_in_any_company(served: M3) -> None:
    """To the bit, alone or among others; of the best, as many as asked for."""
    every = {one["index"]: one for one in await served.ranks()}
    for place, text in enumerate(DOCUMENTS):
        (alone,) = await served.ranks(documents=[{"text": text}])
        assert {**alone, "index": place} == every[place]
    few = await served.ranks(top_n=2, return_documents=False)

    best = sorted(every.values(), key=lambda one: (-one["relevance_score"], one["index"]))[:2]
    assert few == [{k: v for k, v in one.items() if k != "document"} for one in best]


async def test_coheres_route_ranks_alike(served: M3) -> None:
    """Without the documents; each cut to so many tokens of its own, as its clients ask."""
    ranks = await served.ranks(return_documents=False)
    body = {"query": QUERY, "documents": DOCUMENTS}
    told = await served.post("/v2/rerank", **body, max_tokens_per_doc=4096)
    cut = await served.post("/v2/rerank", **body, max_tokens_per_doc=3, truncate=False)

    assert told["results"] == ranks
    first = served.theirs.tokenizer(DOCUMENTS[0], add_special_tokens=False)["input_ids"][:3]
    (one,) = [one for one in cut["results"] if one["index"] == 0]
    asked, ids = served.theirs.encode(QUERY), served.theirs.encode_ids([0, *first, 2])
    assert one["parts"]["dense"] == pytest.approx(float(asked.dense @ ids.dense), abs=CLOSE)


async def test_an_empty_or_long_document_refuses_no_others(served: M3) -> None:
    """It is scored as FlagEmbedding scores it: by its special tokens, or cut."""
    documents = ["", LONG, DOCUMENTS[0]]
    for one in await served.ranks(documents=documents):
        expected = served.theirs.parts(QUERY, documents[one["index"]])
        assert one["parts"] == pytest.approx(expected, abs=CLOSE)
    cut = await served.ranks(query=LONG, documents=["a"])
    assert cut[0]["parts"] == pytest.approx(served.theirs.parts(LONG, "a"), abs=CLOSE)


REFUSED: dict[str, tuple[str, dict[str, Any], int, str, str]] = {
    "no document": ("/v1/rerank", {"documents": []}, 422, "batch_empty", "documents: "),
    "no query": ("/v1/rerank", {"query": ""}, 422, "sequence_empty", "query: "),
    "a long one": (
        "/v1/rerank",
        {"documents": ["a", LONG], "truncate": False},
        422,
        "sequence_too_long",
        "documents[1]: ",
    ),
    "a long query": (
        "/v1/rerank",
        {"query": LONG, "truncate": False},
        422,
        "sequence_too_long",
        "query: ",
    ),
    "no weight": (
        "/v1/rerank",
        {"weights": dict.fromkeys(WEIGHTS, 0)},
        422,
        "out_of_range",
        "weights: ",
    ),
    "below 0": ("/v1/rerank", {"weights": {"dense": -0.1}}, 422, "out_of_range", "weights.dense: "),
    "too large a sum": (
        "/v1/rerank",
        {"weights": {"dense": 1.7e308, "sparse": 1.7e308}},
        422,
        "out_of_range",
        "weights: ",
    ),
    "another weight": (
        "/v1/rerank",
        {"weights": {"colbert": 1.0}},
        422,
        "unknown_field",
        "weights: ",
    ),
    "another model": ("/v1/rerank", {"model": "m4"}, 404, "model_not_found", ""),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_ranked_is_refused_at_its_place(served: M3, name: str) -> None:
    """By the names of this route, before any work."""
    path, change, status, code, place = REFUSED[name]
    body = {"query": QUERY, "documents": DOCUMENTS, **change}
    told = await served.post(path, status, **body)

    assert told["code"] == code and told["message"].startswith(place), told


async def test_what_has_no_ids_has_no_weights(served: M3) -> None:
    """Embeddings are refused where weights are asked; they have vectors, and ids have both."""
    rows = [[0.1 * (i + j) for j in range(WIDTH)] for i in range(4)]
    refused = await served.post("/v1/encode", 422, inputs=[{"embeddings": rows}], sparse=True)
    (given,) = await served.encode({"embeddings": rows}, multi_vector=True)
    ids = served.theirs.ids(QUERY)
    (of_ids,) = await served.encode({"token_ids": ids}, **WHOLE)
    (of_text,) = await served.encode(QUERY, **WHOLE)

    assert refused["code"] == "shape_mismatch" and "text or token ids" in refused["detail"]
    assert given["kept"] == [1, 2, 3] and len(given["vectors"][0]) == SIZE
    assert [of_ids[k] for k in ("pooled", "sparse", "vectors")] == [
        of_text[k] for k in ("pooled", "sparse", "vectors")
    ]
    body = {"query": {"token_ids": [7]}, "documents": [QUERY]}
    alone = await served.post("/v1/maxsim", 422, **body)
    assert alone["code"] == "nothing_left" and "first one" in alone["detail"]


async def test_every_encoding_holds_the_same_numbers(served: M3) -> None:
    """JSON, base64, safetensors; float16 is theirs rounded."""
    body = {"inputs": TEXTS[:2], **WHOLE}
    told = (await served.post("/v1/encode", **body))["data"]
    coded = (await served.post("/v1/encode", encoding="base64", **body))["data"]
    half = (await served.post("/v1/encode", dtype="float16", **body))["data"]
    accept = {"accept": "application/vnd.safetensors"}
    file = load((await served.http.post("/v1/encode", json=body, headers=accept)).content)

    for index, one in enumerate(told):
        flat = {"pooled": one["pooled"], "vectors": one["vectors"]}
        flat["sparse.values"] = one["sparse"]["values"]
        for name, values in flat.items():
            expected = np.array(values, np.float32)
            np.testing.assert_array_equal(file[f"{index}.{name}"], expected)
            short = half[index]
            packed = coded[index]
            for key in name.split("."):
                short, packed = short[key], packed[key]
            raw = np.frombuffer(base64.b64decode(packed["data"]), "<f4")
            np.testing.assert_array_equal(raw.reshape(packed["shape"]), expected)
            np.testing.assert_array_equal(np.array(short, np.float16), expected.astype(np.float16))
        assert file[f"{index}.sparse.indices"].tolist() == one["sparse"]["indices"]


async def test_dry_run_prices_all_three(served: M3) -> None:
    """The bytes of the arrays that come; of weights as many as there may be."""
    tokens = [len(served.theirs.ids(text)) for text in TEXTS]
    priced = await served.post("/v1/encode?dry_run=true", inputs=TEXTS, **WHOLE)
    plain = await served.post("/v1/encode?dry_run=true", inputs=TEXTS)

    dense, sparse = 4 * WIDTH * len(TEXTS), sum(8 * count for count in tokens)
    vectors = sum((count - 1) * (4 * SIZE + 4) for count in tokens)
    assert priced["answer_bytes"] == dense + sparse + vectors and plain["answer_bytes"] == dense
    heads = sum(2 * WIDTH * count + 2 * WIDTH * SIZE * (count - 1) for count in tokens)
    assert priced["flops"] == plain["flops"] + heads


async def test_what_a_ranking_holds_is_admitted_first(
    served: M3, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The vectors of all documents, until they are scored, count as memory."""
    made: list[int] = []
    ending = served.replica.gateway.endings[Hybrid]
    price = ending.price

    def weighed(request: Any, plan: Any) -> Any:
        found = price(request, plan)
        made.append(found.made)
        return found

    monkeypatch.setattr(ending, "price", weighed)
    await served.ranks()
    await served.ranks(documents=DOCUMENTS * 2)

    query, *documents = (len(served.theirs.ids(text)) for text in [QUERY, *DOCUMENTS])
    longest = max(documents)
    work = 8 * (SIZE * (query - 1 + longest - 1) + (query - 1) * (longest - 1))
    answer = 4 * 8  # three parts and a score

    def kept(tokens: int) -> int:
        return (tokens - 1) * (4 * SIZE + 4) + 8 * tokens + 4 * WIDTH

    each = sum(answer + kept(tokens) for tokens in documents)
    assert made == [work + kept(query) + each, work + kept(query) + 2 * each]


async def test_heads_can_be_scaled_shown_and_swept(served: M3) -> None:
    """Maps, statistics, gates, sweeps and likeness are the encoder's, as without the linears."""
    gates = [{"layer": 0, "head": 1, "scale": 0.0}]
    asked = {"layers": [1], "heads": [2]}
    plain, (gated,) = (
        await served.encode(QUERY, attention=asked, sweep={"heads": [0], "layers": [1]}, **WHOLE),
        await served.encode(QUERY, gates=gates, **WHOLE),
    )
    stats = await served.encode(QUERY, attention={**asked, "form": "stats"}, multi_vector=True)
    alike = await served.post("/v1/similarity", left=QUERY, right=[TEXTS[1]], form="score")

    tokens = len(served.theirs.ids(QUERY))
    np.testing.assert_allclose(
        np.array(plain[0]["attention"]["maps"]["1"]["2"]).sum(1), np.ones(tokens), atol=CLOSE
    )
    assert plain[0]["sweep"]["cosine"]["1"]["0"] < 1
    assert stats[0]["attention"]["stats"]["values"]["1"]["2"]
    assert gated["sparse"]["values"] != plain[0]["sparse"]["values"]
    assert gated["vectors"] != plain[0]["vectors"] and gated["pooled"] != plain[0]["pooled"]
    expected = served.theirs.parts(QUERY, TEXTS[1])["dense"]
    assert alike["right"][0]["score"] == pytest.approx(expected, abs=CLOSE)


async def test_the_client_takes_all_three(served: M3) -> None:
    """From one request, and the ranks."""
    async with AsyncClient(served.url) as client:
        told = await client.encode(list(TEXTS), sparse=True, multi_vector=True)
        body = {"query": QUERY, "documents": DOCUMENTS, "weights": {"dense": 1, "sparse": 0}}
        ranks = await client.ask("/v1/rerank", body)

    expected = served.theirs.encode(TEXTS[1])
    one = told.items[1]
    assert told.pooled is not None and one.vectors is not None and one.sparse is not None
    np.testing.assert_allclose(told.pooled[1], expected.dense, atol=CLOSE)
    np.testing.assert_allclose(one.vectors.vectors, expected.colbert, atol=CLOSE)
    weights = dict(zip(one.sparse.indices.tolist(), one.sparse.values.tolist(), strict=True))
    assert weights == pytest.approx(expected.sparse, abs=CLOSE)
    assert {*ranks["results"][0]["parts"]} == {*WEIGHTS}


@pytest.mark.parametrize("raw", [False, True])
async def test_tei_ranks_by_the_default_mean(served: M3, raw: bool) -> None:
    """In its own shape, the query as long as any text; a mean has no logit to ask for."""
    ranks = await served.ranks()
    more = {"raw_scores": raw, "query": QUERY}
    tei = await served.post("/rerank", texts=DOCUMENTS, return_text=True, **more)

    best = [(row["index"], row["relevance_score"]) for row in ranks]
    assert [(row["index"], row["score"]) for row in tei] == best
    assert [row["text"] for row in tei] == [DOCUMENTS[place] for place, _ in best]


async def test_tei_refuses_a_text_at_its_place(served: M3) -> None:
    """As of a cross-encoder, in their own words."""
    long = "a" * 1_000_001
    tei = await served.post("/rerank", 422, query="a", texts=["b", long])
    none = await served.post("/rerank", 400, query="a", texts=[])

    assert tei["error"].startswith("texts[1]: ")
    assert none["error"].startswith("texts: ")


async def test_what_a_model_can_do_is_told(served: M3) -> None:
    """By GET /info and TEI's fields; what it has no head for is refused."""
    told = (await served.http.get("/info")).json()

    assert told["tasks"] == ["encode", "sparse", "multi_vector"]
    assert (told["pooling"], told["normalize"], told["pooling_from"]) == ("cls", True, "checkpoint")
    assert told["model_type"] == {"embedding": {"pooling": "cls"}}
    assert told["max_tokens"] == POSITIONS
    assert (await served.http.get("/ready")).status_code == 200
    for body in ({"classify": True}, {"label_tokens": True}, {**WHOLE, "classify": True}):
        refused = await served.post("/v1/encode", 404, inputs=["a"], **body)
        assert refused["tasks"] == told["tasks"]


async def test_linears_that_are_still_pickles_are_told_of(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The model serves its dense vectors, and says so."""
    folder = bge_m3(tmp_path).folder
    names = ["sparse_linear", "colbert_linear"]
    for name in names:
        (folder / f"{name}.safetensors").rename(folder / f"{name}.pt")

    replica = await Replica.start(Settings(model=str(folder), threads=1), "pickled-1")
    await replica.close()

    told = [record.getMessage() for record in caplog.records if "pickles" in record.getMessage()]
    assert replica.info()["tasks"] == ("encode",)
    assert len(told) == 1 and all(f"{name}.pt" in told[0] for name in names)


async def test_weights_are_refused_by_a_model_of_one_score(client: httpx.AsyncClient) -> None:
    """Which names the tasks that it has."""
    body = {"query": QUERY, "documents": DOCUMENTS, "weights": WEIGHTS}
    refused = await client.post("/v1/rerank", json=body)

    assert refused.status_code == 404
    assert '"sparse" was requested' in refused.json()["message"]
