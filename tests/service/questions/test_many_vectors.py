"""A checkpoint of many vectors over HTTP: vectors of tokens, and MaxSim."""

import base64
import json
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
from numpy.typing import NDArray
from safetensors.numpy import load

from headlight_client import AsyncClient
from service.proof import machine
from service.proof.machine import Unservable
from tests.late_interaction import DOCUMENT, QUERY, SIZES, Late, pylate
from tests.served_model import Listen, Outer, Served, serve

SIZE = SIZES[1]
CLOSE = 1e-5
ASKED = "Who ate the food?"
TEXTS = ["All is well.", "A dog ate the food, and slept.", "It was hungry!", "All is well."]
LONG = "the dog ate the food and then it slept until the evening came again and again and again"
COMMA = 1010  # what the vocabulary has for ","


@dataclass(frozen=True)
class ManyVectors(Served):
    """A model as PyLate's formulas run it, and as it is served."""

    late: Late

    async def vectors(self, role: str, *inputs: Any, **body: Any) -> list[dict[str, Any]]:
        """What POST /v1/encode answers to some inputs of one side."""
        how = {"pooled": False, "multi_vector": {"role": role}, **body}
        told: list[dict[str, Any]] = await self.encode(*inputs, **how)
        return told

    def score(self, query: str, text: str) -> tuple[float, list[int], NDArray[np.float64]]:
        """Brute force over the formulas' vectors, in float64: score, tokens matched, values."""
        rows, _ = self.late.encode(query, "query")
        columns, kept = self.late.encode(text, "document")
        products = rows.double().numpy() @ columns.double().numpy().T
        best = products.argmax(1)
        return float(products.max(1).sum()), [kept[place] for place in best], products.max(1)


@pytest_asyncio.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[ManyVectors]:
    """One, on a port of its own."""
    late = pylate(tmp_path_factory.mktemp("late"))
    async with serve(late.folder, "late", listen, outer) as one:
        yield ManyVectors(**vars(one), late=late)


async def test_vectors_are_pylates_of_the_tokens_kept(served: ManyVectors) -> None:
    """On either side; a document is what a text is where the request does not say."""
    documents = await served.vectors("document", *TEXTS)
    (query,) = await served.vectors("query", ASKED)
    plain = await served.post("/v1/encode", inputs=TEXTS, pooled=False, multi_vector=True)

    assert plain["data"] == documents
    for told, text, side in [(query, ASKED, "query"), (documents[1], TEXTS[1], "document")]:
        expected, kept = served.late.encode(text, side)
        assert told["kept"] == kept
        np.testing.assert_allclose(told["vectors"], expected, atol=CLOSE)
    assert query["tokens"][1] == "[Q] " and query["tokens"][-1] == "[MASK]"
    assert query["special"][1] is True and query["length"] == len(query["kept"]) == QUERY
    assert documents[0]["tokens"][1] == "[D] "
    assert documents[0]["kept"] == [0, 1, 2, 3, 4, 6]  # without the full stop


async def test_every_encoding_holds_the_same_numbers(served: ManyVectors) -> None:
    """JSON, base64, safetensors; float16 is theirs rounded."""
    body = {"inputs": TEXTS[:2], "pooled": False, "multi_vector": True}
    told = (await served.post("/v1/encode", **body))["data"]
    coded = (await served.post("/v1/encode", encoding="base64", **body))["data"]
    half = (await served.post("/v1/encode", dtype="float16", **body))["data"]
    accept = {"accept": "application/vnd.safetensors"}
    file = load((await served.http.post("/v1/encode", json=body, headers=accept)).content)

    for index, one in enumerate(told):
        expected = np.array(one["vectors"], np.float32)
        packed = coded[index]["vectors"]
        raw = np.frombuffer(base64.b64decode(packed["data"]), "<f4").reshape(packed["shape"])
        np.testing.assert_array_equal(raw, expected)
        np.testing.assert_array_equal(file[f"{index}.vectors"], expected)
        assert file[f"{index}.kept"].tolist() == one["kept"]
        rounded = np.array(half[index]["vectors"], np.float16)
        np.testing.assert_array_equal(rounded, expected.astype(np.float16))


async def test_what_is_used_as_given_has_no_marker_and_no_filling(served: ManyVectors) -> None:
    """Token ids lose those of the skiplist as documents, embeddings nothing."""
    ids = {"token_ids": [101, COMMA, 2035, COMMA, 102]}
    embeddings = {"embeddings": [[0.1] * 15, [0.2] * 15, [0.3] * 15]}

    of_ids, of_embeddings, nothing = await served.vectors(
        "document", ids, embeddings, {"token_ids": [COMMA]}
    )
    (query,) = await served.vectors("query", ids)

    assert of_ids["kept"] == [0, 2, 4] and of_embeddings["kept"] == [0, 1, 2]
    assert (nothing["kept"], nothing["vectors"]) == ([], [])
    assert query["kept"] == [0, 1, 2, 3, 4] and query["tokens"][0] == "[CLS]"


async def test_a_text_is_cut_only_where_the_request_says_so(served: ManyVectors) -> None:
    """Its marker and its last token stay in place; the length counts what was there."""
    for role, most in (("query", QUERY), ("document", DOCUMENT)):
        how = {"multi_vector": {"role": role}}
        refused = await served.post("/v1/encode", 422, inputs=["a", LONG], **how)
        (right,) = await served.vectors(role, LONG, truncate="right")
        (left,) = await served.vectors(role, LONG, truncate="left")

        assert refused["code"] == "sequence_too_long"
        assert f"it has 21 tokens, and the model takes at most {most}" in refused["detail"]
        for cut in (right, left):
            assert len(cut["tokens"]) == most and cut["truncated"] and cut["length"] == 21
            assert [cut["tokens"][place] for place in (0, -1)] == ["[CLS]", "[SEP]"]
            assert cut["tokens"][1] in ("[Q] ", "[D] ")
        assert right["tokens"][2] == "the" and left["tokens"][-2] == "again"
        expected, _ = served.late.encode(LONG, role)
        np.testing.assert_allclose(right["vectors"], expected, atol=CLOSE)


async def test_attention_of_a_query_shows_that_nothing_looks_at_its_filling(
    served: ManyVectors,
) -> None:
    """Maps of all forms hold zeros there, and statistics are numbers."""
    full = {"form": "full", "layers": [1]}
    (query,) = await served.vectors("query", ASKED, attention=full)
    (stats,) = await served.vectors("query", ASKED, attention={"form": "stats"})
    (plain,) = await served.vectors("query", ASKED)

    real = query["tokens"].index("[MASK]")
    for rows in query["attention"]["maps"]["1"].values():
        probabilities = np.array(rows)
        assert probabilities.shape == (QUERY, QUERY)
        assert not probabilities[:, real:].any()
        np.testing.assert_allclose(probabilities.sum(1), 1, atol=CLOSE)
    numbers = [
        one for heads in stats["attention"]["stats"]["values"].values() for one in heads.values()
    ]
    assert np.isfinite(np.array(numbers, float)).all()
    assert query["vectors"] == plain["vectors"]


async def test_scores_are_brute_force_in_float64(served: ManyVectors) -> None:
    """Best first, of equal ones the first; each match names its tokens and its product."""
    told = await served.post("/v1/maxsim", query=ASKED, documents=TEXTS)

    results = told["results"]
    assert told["query"]["tokens"][1] == "[Q] " and told["usage"]["tokens"] > 0
    assert sorted(one["index"] for one in results) == [0, 1, 2, 3]
    assert [one["score"] for one in results] == sorted((o["score"] for o in results), reverse=True)
    assert results[[one["index"] for one in results].index(0) + 1]["index"] == 3
    for one in results:
        score, places, values = served.score(ASKED, TEXTS[one["index"]])
        assert one["score"] == pytest.approx(score, abs=CLOSE * QUERY)
        assert [row[:2] for row in one["matches"]] == [[i, at] for i, at in enumerate(places)]
        np.testing.assert_allclose([row[2] for row in one["matches"]], values, atol=CLOSE)


async def test_a_score_is_the_sum_of_the_vectors_answered(served: ManyVectors) -> None:
    """To the bit those of POST /v1/encode, whatever else is asked; gates move both."""
    for gates in ([], [{"layer": 0, "head": 1, "scale": 0.0}]):
        told = await served.post("/v1/maxsim", query=ASKED, documents=TEXTS, gates=gates)
        (query,) = await served.vectors("query", ASKED, gates=gates)
        documents = await served.vectors("document", *TEXTS, gates=gates)
        rows = np.array(query["vectors"], np.float32).astype(np.float64)
        for one in told["results"]:
            vectors = np.array(documents[one["index"]]["vectors"], np.float32).astype(np.float64)
            assert one["score"] == pytest.approx((rows @ vectors.T).max(1).sum(), abs=1e-12)


async def test_a_document_takes_heads_from_the_query_or_a_document(served: ManyVectors) -> None:
    """The query is input 0; a patch of all heads of the first layer moves the score as gates do."""
    texts, heads = [TEXTS[0], "All is lost."], range(served.late.model.config.num_attention_heads)
    patch = [{"layer": 0, "head": head, "from": 1} for head in heads]
    gates = [{"layer": 0, "head": head, "scale": 0.0} for head in heads]
    first, second = {"text": texts[0], "gates": gates}, {"text": texts[1], "gates": gates}

    body = {"query": ASKED, "documents": [first, {"text": texts[1], "patch": patch}]}
    patched = (await served.post("/v1/maxsim", **body))["results"]
    gated = (await served.post("/v1/maxsim", query=ASKED, documents=[first, second]))["results"]
    apart = [{"layer": 0, "head": 0, "from": 0}]
    refused = await served.post(
        "/v1/maxsim", 422, query=ASKED, documents=[{"text": texts[1], "patch": apart}]
    )

    assert [one["score"] for one in patched] == [one["score"] for one in gated]
    assert refused["code"] == "patch_mismatch"
    assert refused["errors"][0]["loc"] == ["documents", 0, "patch"]


async def test_matches_come_in_every_encoding(served: ManyVectors) -> None:
    """Columns in base64, tensors by the document's number in safetensors."""
    body = {"query": ASKED, "documents": TEXTS}
    told = await served.post("/v1/maxsim", **body)
    coded = await served.post("/v1/maxsim", encoding="base64", **body)
    accept = {"accept": "application/vnd.safetensors"}
    file = load((await served.http.post("/v1/maxsim", json=body, headers=accept)).content)

    for one, other in zip(told["results"], coded["results"], strict=True):
        columns = [np.array(column) for column in zip(*one["matches"], strict=True)]
        for (name, kind), column in zip(
            {"query": "<i4", "document": "<i4", "values": "<f4"}.items(), columns, strict=True
        ):
            raw = np.frombuffer(base64.b64decode(other["matches"][name]["data"]), kind)
            np.testing.assert_array_equal(raw, column.astype(kind))
            np.testing.assert_array_equal(file[f"{one['index']}.matches.{name}"], raw)


async def test_dry_run_prices_many_vectors(served: ManyVectors) -> None:
    """The bytes of the arrays that come, in either number format, and of matches."""
    for dtype, number in (("float32", 4), ("float16", 2)):
        body = {"inputs": TEXTS, "pooled": False, "multi_vector": True, "dtype": dtype}
        priced = await served.post("/v1/encode?dry_run=true", **body)
        data = (await served.post("/v1/encode", **body))["data"]
        kept = sum(len(one["kept"]) for one in data)
        assert priced["answer_bytes"] == kept * (SIZE * number + 4)
        assert priced["admitted"] is True
    scored = await served.post("/v1/maxsim?dry_run=true", query=ASKED, documents=TEXTS)
    assert scored["answer_bytes"] == len(TEXTS) * QUERY * 12
    assert scored["flops"] > priced["flops"]


async def test_hundreds_of_documents_are_scored(served: ManyVectors) -> None:
    """Each as it is alone."""
    documents = [f"dog number {number} ate" for number in range(300)]
    told = await served.post("/v1/maxsim", query="a dog", documents=documents)
    alone = await served.post("/v1/maxsim", query="a dog", documents=[documents[217]])

    assert len(told["results"]) == 300
    (one,) = (each for each in told["results"] if each["index"] == 217)
    assert one["matches"] == alone["results"][0]["matches"]
    assert one["score"] == alone["results"][0]["score"]


REFUSED: dict[str, tuple[dict[str, Any], str, str]] = {
    "no document": ({"documents": []}, "batch_empty", "documents"),
    "an empty one": ({"documents": ["a", ""]}, "sequence_empty", "documents, 1, text"),
    "nothing kept": ({"documents": ["a", {"token_ids": [COMMA]}]}, "nothing_left", "documents, 1"),
    "a long query": ({"query": LONG}, "sequence_too_long", "query"),
    "a pair": ({"query": {"text": "a", "pair": "b"}}, "unknown_field", "query"),
    "too many": ({"documents": ["a"] * 2048}, "batch_too_large", ""),
    "a prompt": ({"prompt_name": {"query": "x"}}, "prompt_not_found", "prompt_name"),
    "a field": ({"k": 3}, "unknown_field", "k"),
}


@pytest.mark.parametrize("name", REFUSED)
async def test_what_cannot_be_scored_is_refused_at_its_place(
    served: ManyVectors, name: str
) -> None:
    """By the names of this route, before any work."""
    change, code, place = REFUSED[name]
    told = await served.post("/v1/maxsim", 422, **{"query": ASKED, "documents": TEXTS, **change})

    assert told["code"] == code, told
    where = [", ".join(map(str, error["loc"])) for error in told.get("errors", [])]
    assert not place or any(place in one for one in where), told


async def test_the_client_takes_many_vectors(served: ManyVectors) -> None:
    """As arrays, with the tokens that they are of."""
    async with AsyncClient(served.url) as client:
        told = await client.encode(TEXTS, pooled=False, multi_vector={"role": "document"})
        scored = await client.maxsim(ASKED, TEXTS)

    expected, kept = served.late.encode(TEXTS[1], "document")
    vectors = told.items[1].vectors
    assert vectors is not None and vectors.kept.tolist() == kept
    np.testing.assert_allclose(vectors.vectors, expected, atol=CLOSE)
    score, places, values = served.score(ASKED, TEXTS[1])
    (one,) = (each for each in scored.results if each.index == 1)
    assert one.score == pytest.approx(score, abs=CLOSE * QUERY)
    assert one.document.tolist() == places and one.query.tolist() == list(range(QUERY))
    np.testing.assert_allclose(one.values, values, atol=CLOSE)
    assert scored.query.tokens is not None and scored.query.tokens[1] == "[Q] "
    assert one.text.tokens is not None and one.text.tokens[1] == "[D] "


async def test_queries_longer_than_a_sequence_may_be_are_refused_at_the_start(
    served: ManyVectors,
) -> None:
    """They could not be filled up; as short as they are they can."""
    settings, model = served.replica.settings, served.replica.lanes.model
    config, heads = model.config, model.task_heads
    with pytest.raises(Unservable, match=f"less than the {QUERY} tokens of each query"):
        machine.check_lengths(settings.model_copy(update={"max_tokens": QUERY - 1}), config, heads)
    machine.check_lengths(settings.model_copy(update={"max_tokens": QUERY}), config, heads)


async def test_info_names_the_task(served: ManyVectors) -> None:
    """And another task is refused with those it has."""
    told = (await served.http.get("/info")).json()
    refused = await served.post("/v1/encode", 404, inputs=["a"], sparse=True)

    assert told["tasks"] == ["encode", "multi_vector"]
    assert told["max_tokens"] == DOCUMENT
    assert refused["code"] == "task_not_found" and "multi_vector" in json.dumps(refused)


@pytest.mark.parametrize(
    ("path", "body"), [("/embed", {"inputs": "a"}), ("/v1/embeddings", {"input": "a"})]
)
async def test_it_is_not_asked_for_one_vector_of_a_text(
    served: ManyVectors, path: str, body: dict[str, Any]
) -> None:
    """The mean of what its encoder makes is none; the routes that answer are named."""
    answer = await served.http.post(path, json=body)

    assert answer.status_code == 404 and "ask POST /v1/maxsim for scores" in answer.text
