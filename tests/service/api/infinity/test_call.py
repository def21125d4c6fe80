"""Infinity's routes without a prefix, compared with the libraries that Infinity itself runs."""

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
from openai import OpenAI
from sentence_transformers import CrossEncoder
from starlette.types import ASGIApp
from torch import nn
from transformers import pipeline

from service.replica import Replica
from service.settings import Settings
from tests.described import hold
from tests.task_heads import checkpoint

pytestmark = pytest.mark.asyncio(loop_scope="session")

NAME, ANY = "all-MiniLM-L6-v2", "default/not-specified"
QUERY = "Why is the dog here?"
TEXTS = ["All is well", "A dog ate the food", "It was hungry", "All is well"]
NAMES = {0: "anger", 1: "joy", 2: "neither"}
CLOSE = 1e-5
KINDS: dict[str, dict[str, Any]] = {
    "reranker": {"num_labels": 1}
    | {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    "classifier": {"id2label": NAMES},
    "tagger": {"id2label": NAMES, "problem_type": "multi_label_classification"},
}


class Served:
    """A client of a service of each kind, and the folder of its model."""

    def __init__(self) -> None:
        self.clients: dict[str, httpx.AsyncClient] = {}
        self.folders: dict[str, Path] = {}

    async def post(self, kind: str, path: str, **body: Any) -> Any:
        """An answer that must come."""
        answer = await self.clients[kind].post(path, json=body)
        assert answer.status_code == 200, answer.text
        hold(path.partition("?")[0], answer)
        return answer.json()


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(
    tmp_path_factory: pytest.TempPathFactory,
    outer: Callable[[Replica], ASGIApp],
    replica: Replica,
) -> AsyncIterator[Served]:
    """Those with a head, and the bundled model."""
    served, replicas = Served(), {NAME: replica}
    for kind, choices in KINDS.items():
        folder = served.folders[kind] = tmp_path_factory.mktemp(kind)
        checkpoint(folder, "ForSequenceClassification", **choices)
        settings = Settings(model=str(folder), device="cpu", threads=1, served_model_name=kind)
        replicas[kind] = await Replica.start(settings, f"{kind}-1")
    for kind, one in replicas.items():
        transport = httpx.ASGITransport(outer(one))
        base = "http://headlight"
        served.clients[kind] = httpx.AsyncClient(transport=transport, base_url=base, timeout=60)
    yield served
    for kind in KINDS:
        await replicas[kind].close()


def stamped(told: dict[str, Any]) -> dict[str, Any]:
    """An answer without its id and its time, which are checked."""
    assert told.pop("id").startswith("infinity-")
    assert abs(told.pop("created") - time.time()) < 60
    return told


async def test_embeddings_are_those_of_openais_route(served: Served) -> None:
    """As numbers and as base64, of texts and of ids; 0 dimensions are all."""
    http = served.clients[NAME]
    openais = {"model": NAME, "input": TEXTS}
    expected = (await http.post("/v1/embeddings", json=openais)).json()
    asked: list[dict[str, Any]] = [
        {"input": TEXTS},
        {"input": TEXTS, "model": ANY, "dimensions": 0, "modality": "text", "user": "anna"},
        {"input": TEXTS, "model": NAME, "dimensions": None},
    ]
    for body in asked:
        assert stamped(await served.post(NAME, "/embeddings", **body)) == expected
    coded = await served.post(NAME, "/embeddings", input=TEXTS[0], encoding_format="base64")
    vector = np.frombuffer(base64.b64decode(coded["data"][0]["embedding"]), "<f4")
    np.testing.assert_array_equal(vector, np.float32(expected["data"][0]["embedding"]))
    ids = await served.post(NAME, "/embeddings", input=[[101, 102]], dimensions=7)
    assert np.linalg.norm(ids["data"][0]["embedding"]) == pytest.approx(1, abs=1e-6)


async def test_what_is_too_long_is_cut_on_the_right(served: Served) -> None:
    """As Infinity and TEI do; OpenAI's route refuses it."""
    long = "well " * 600
    told = await served.post(NAME, "/embeddings", input=long)
    native = {"inputs": [long], "truncate": "right"}
    answer = (await served.clients[NAME].post("/v1/encode", json=native)).json()

    assert told["data"][0]["embedding"] == answer["data"][0]["pooled"]
    assert told["usage"]["total_tokens"] == 256


@pytest.mark.client("openai", "Infinity's /embeddings")
async def test_openais_client_works_without_a_prefix(address: str) -> None:
    """As Infinity's own docs have it."""

    def ask() -> Any:
        with OpenAI(base_url=address, api_key="none") as client:
            vector = client.embeddings.create(model=NAME, input=TEXTS[0]).data[0].embedding
            return vector, [model.id for model in client.models.list()]

    vector, names = await asyncio.to_thread(ask)

    assert len(vector) == 384 and names == [NAME]


async def test_models_say_what_they_can(served: Served) -> None:
    """And what waits."""
    told = {kind: (await http.get("/models")).json() for kind, http in served.clients.items()}

    capabilities = {kind: one["data"][0].pop("capabilities") for kind, one in told.items()}
    assert capabilities[NAME] == ["embed"]
    assert capabilities["reranker"] == ["embed", "rerank", "classify"]
    assert capabilities["classifier"] == ["embed", "classify"]
    (model,) = told[NAME]["data"]
    assert model.pop("stats").keys() == {
        *("queue_fraction", "queue_absolute", "results_pending", "batch_size")
    }
    assert model == {
        **{"id": NAME, "object": "model", "owned_by": "infinity", "created": 0},
        "backend": "torch",
    }


async def test_documents_are_ranked_by_the_sigmoid_or_the_logit(served: Served) -> None:
    """Whatever the checkpoint's own activation, here none; `texts` are TEI's."""
    given = {"query": QUERY, "documents": TEXTS}
    told = stamped(await served.post("reranker", "/rerank", **given))
    raw = await served.post(
        "reranker", "/rerank", **given, raw_scores=True, top_n=2, return_documents=True, model=ANY
    )
    tei = await served.post("reranker", "/rerank", query=QUERY, texts=TEXTS)

    encoder = CrossEncoder(str(served.folders["reranker"]), device="cpu")
    pairs = [(QUERY, text) for text in TEXTS]
    sigmoids = encoder.predict(pairs, activation_fn=nn.Sigmoid())
    logits = encoder.predict(pairs, activation_fn=nn.Identity())
    for row in told["results"]:
        expected = float(sigmoids[row["index"]])
        assert row == {"relevance_score": pytest.approx(expected, abs=CLOSE)} | {
            "index": row["index"],
            "document": None,
        }
    for row in raw["results"]:
        assert row["relevance_score"] == pytest.approx(float(logits[row["index"]]), abs=CLOSE)
        assert row["document"] == TEXTS[row["index"]]
    assert [row["index"] for row in told["results"]] == [row["index"] for row in tei]
    assert len(raw["results"]) == 2 and told["object"] == "rerank" and told["model"] == "reranker"
    assert told["usage"]["prompt_tokens"] == told["usage"]["total_tokens"] > 40


@pytest.mark.parametrize("kind", ["classifier", "tagger"])
async def test_classes_are_those_of_transformers_pipeline(served: Served, kind: str) -> None:
    """Best first, by the activation that the problem has; or the logits."""
    told = stamped(await served.post(kind, "/classify", input=TEXTS))
    raw = await served.post(kind, "/classify", input=TEXTS, raw_scores=True)

    classify = pipeline("text-classification", str(served.folders[kind]), top_k=None, device="cpu")
    plain = classify(TEXTS)
    logits = classify(TEXTS, function_to_apply="none")
    for rows, expected in [*zip(told["data"], plain, strict=True)] + [
        *zip(raw["data"], logits, strict=True)
    ]:
        assert [row["label"] for row in rows] == [row["label"] for row in expected]
        scores = [row["score"] for row in expected]
        assert [row["score"] for row in rows] == pytest.approx(scores, abs=CLOSE)
    assert told.keys() == {"object", "data", "model", "usage"} and told["object"] == "classify"


REFUSED = {
    "another model": (
        NAME,
        "/embeddings",
        {"input": "a", "model": "b"},
        400,
        "model: this service",
    ),
    "an image": (NAME, "/embeddings", {"input": "a", "modality": "image"}, 422, "modality: "),
    "an unknown field": (NAME, "/embeddings", {"input": "a", "colour": 1}, 422, "(6 characters)"),
    "an empty text": (NAME, "/embeddings", {"input": ["a", ""]}, 422, "input[1]"),
    "too many dimensions": (NAME, "/embeddings", {"input": "a", "dimensions": 999}, 422, "dimens"),
    "no texts": ("classifier", "/classify", {"input": []}, 422, "input: "),
    "no classes": (NAME, "/classify", {"input": ["a"]}, 400, '"classify" was requested'),
    "no reranker": (NAME, "/rerank", {"query": "a", "documents": ["b"]}, 400, '"rerank" was'),
    "no documents": ("reranker", "/rerank", {"query": "a", "documents": []}, 422, "documents: "),
    "no document": ("reranker", "/rerank", {"query": "a", "documents": ["b", 7]}, 422, "ments[1]"),
    "an empty query": ("reranker", "/rerank", {"query": "", "documents": ["b"]}, 422, "query: "),
    "both": (
        *("reranker", "/rerank", {"query": "a", "documents": ["b"], "texts": ["b"]}),
        *(422, "unknown field (5 characters)"),
    ),
}


@pytest.mark.parametrize(
    ("kind", "path", "body", "status", "says"), REFUSED.values(), ids=REFUSED.keys()
)
async def test_a_refusal_has_infinitys_shape(
    served: Served, kind: str, path: str, body: dict[str, Any], status: int, says: str
) -> None:
    """With the status as its code, and by the names of its own fields."""
    answer = await served.clients[kind].post(path, json=body)

    fault = answer.json()["error"]
    assert answer.status_code == fault["code"] == status, answer.text
    assert fault.keys() == {"message", "type", "param", "code"} and says in fault["message"]


@pytest.mark.parametrize(
    ("headers", "query", "body"),
    [
        ({"content-type": "text/plain"}, "", '{"query": "a", "documents": ["b"]}'),
        ({}, "?top=1", '{"query": "a", "documents": ["b"]}'),
        ({"x-headlight-deadline-ms": "soon"}, "", '{"query": "a", "documents": ["b"]}'),
        ({}, "", '{"query": "a", "documents": ["b"], "documents": ["c"]}'),
        ({}, "", '{"query": "a", "documents": ' + "[" * 9 + "]" * 9 + "}"),
    ],
    ids=["media type", "query parameter", "deadline", "duplicate key", "nesting"],
)
async def test_before_the_body_is_parsed_a_refusal_has_teis_shape(
    served: Served, headers: dict[str, str], query: str, body: str
) -> None:
    """Whose request it is stands in the body alone; docs/api.md says so."""
    headers = {"content-type": "application/json", **headers}
    answer = await served.clients["reranker"].post(f"/rerank{query}", content=body, headers=headers)

    assert answer.status_code >= 400
    assert answer.json().keys() == {"error", "error_type"}


async def test_what_is_no_key_makes_no_request_infinitys(served: Served) -> None:
    """A text that says documents, quoted or not, is TEI's still, and is refused in its words."""
    texts = ["documents", '"documents": []', "documents:"]
    told = await served.post("reranker", "/rerank", query="documents", texts=texts)
    refused = await served.clients["reranker"].post("/rerank", json={"query": "documents"})

    assert len(told) == 3 and told[0].keys() == {"index", "score"}
    assert refused.json().keys() == {"error", "error_type"}
