"""A checkpoint like BGE-M3 over HTTP: dense, sparse and many vectors of one pass."""

import base64
from collections.abc import AsyncIterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from safetensors.numpy import load

from headlight_client import AsyncClient
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.bge_m3 import POSITIONS, SIZE, TEXTS, WIDTH, BgeM3, bge_m3
from tests.served_model import Listen, Outer, Served, serve

CLOSE = 1e-5
QUERY, DOCUMENTS = TEXTS[0], [*TEXTS[1:], TEXTS[1]]
WHOLE = {"pooled": True, "sparse": True, "multi_vector": True}


@dataclass(frozen=True)
class M3(Served):
    """A model as FlagEmbedding's formulas run it, and as it is served."""

    theirs: BgeM3


@pytest_asyncio.fixture(scope="module")
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


async def test_the_scores_of_the_three_are_a_clients_to_make(served: M3) -> None:
    """FlagEmbedding's, of what one pass answers."""
    query, document = await served.encode(QUERY, DOCUMENTS[0], **WHOLE)
    maps = [
        dict(zip(one["sparse"]["indices"], one["sparse"]["values"], strict=True))
        for one in (query, document)
    ]
    products = np.array(query["vectors"]) @ np.array(document["vectors"]).T

    assert served.theirs.parts(QUERY, DOCUMENTS[0]) == pytest.approx(
        {
            "dense": np.array(query["pooled"]) @ np.array(document["pooled"]),
            "sparse": sum(maps[0][id] * maps[1][id] for id in maps[0].keys() & maps[1].keys()),
            "multi_vector": products.max(1).mean(),
        },
        abs=CLOSE,
    )


RANKED = {
    "Jina's": ("/v1/rerank", "documents", "message"),
    "Cohere's": ("/v2/rerank", "documents", "message"),
    "TEI's": ("/rerank", "texts", "error"),
    "Jina's by TEI's path": ("/rerank", "documents", "message"),
}


@pytest.mark.parametrize("name", RANKED)
async def test_ranks_are_refused_by_the_routes_that_have_what_makes_them(
    served: M3, name: str
) -> None:
    """It has no score of a pair."""
    path, texts, field = RANKED[name]
    told = await served.post(path, 404, query=QUERY, **{texts: DOCUMENTS})

    assert "POST /v1/encode" in told[field] and "POST /v1/maxsim" in told[field]
    assert told.get("code", "task_not_found") == "task_not_found"


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
    """From one request."""
    async with AsyncClient(served.url) as client:
        told = await client.encode(list(TEXTS), sparse=True, multi_vector=True)

    expected = served.theirs.encode(TEXTS[1])
    one = told.items[1]
    assert told.pooled is not None and one.vectors is not None and one.sparse is not None
    np.testing.assert_allclose(told.pooled[1], expected.dense, atol=CLOSE)
    np.testing.assert_allclose(one.vectors.vectors, expected.colbert, atol=CLOSE)
    weights = dict(zip(one.sparse.indices.tolist(), one.sparse.values.tolist(), strict=True))
    assert weights == pytest.approx(expected.sparse, abs=CLOSE)


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
