"""Checkpoints with a head over HTTP: classes, ranks, labels, sparse vectors."""

import asyncio
import json
import math
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
import pytest_asyncio
import torch
from huggingface_hub import InferenceClient
from safetensors.numpy import load
from sentence_transformers import CrossEncoder
from torch import Tensor
from transformers import AutoTokenizer, PreTrainedModel, pipeline

from headlight_client import AsyncClient
from tests.served_model import Listen, Outer, Served, serve
from tests.task_heads import MOST, checkpoint

QUERY, TEXTS = (
    "Why is the dog here?",
    ["All is well", "A dog ate the food", "It was hungry", "All is well"],
)
NAMES = {0: "anger", 1: "joy", 2: "neither"}
KINDS: dict[str, dict[str, Any]] = {
    "classifier": {"head": "ForSequenceClassification", "id2label": NAMES},
    "reranker": {"head": "ForSequenceClassification", "num_labels": 1}
    | {"sbert_ce_default_activation_function": "torch.nn.modules.linear.Identity"},
    "regression": {"head": "ForSequenceClassification", "num_labels": 1}
    | {"problem_type": "regression"},
    "tagger": {"head": "ForTokenClassification", "id2label": NAMES},
    "sparse": {"head": "ForMaskedLM"},
}
DENSE: dict[str, dict[str, Any]] = {  # requests for dense vectors, by route
    "/embed": {"inputs": "a"},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": ["b"]}},
    "/v1/embeddings": {"input": "a"},
    "/v2/embed": {"texts": ["a"], "input_type": "classification"},
}
CLOSE = 1e-5


class Kinds:
    """Each kind of model as transformers runs it, and as it is served."""

    def __init__(self) -> None:
        self.models: dict[str, PreTrainedModel] = {}
        self.of: dict[str, Served] = {}
        self.folders: dict[str, Path] = {}

    def logits(self, kind: str, *texts: str, **options: Any) -> Tensor:
        """What transformers makes of a text or pair."""
        tokenizer = AutoTokenizer.from_pretrained(self.folders[kind])
        how = {"return_tensors": "pt", "truncation": "longest_first", "max_length": MOST}
        with torch.inference_mode():
            found: Tensor = self.models[kind](**tokenizer(*texts, **how | options)).logits[0]
        return found

    async def post(self, kind: str, path: str, **body: Any) -> Any:
        """An answer that must come."""
        return await self.of[kind].post(path, **body)

    async def encode(self, kind: str, *inputs: Any, **body: Any) -> list[dict[str, Any]]:
        """What POST /v1/encode answers to some inputs, without vectors."""
        return await self.of[kind].encode(*inputs, **{"pooled": False, **body})


@pytest_asyncio.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Kinds]:
    """All of them, each on a port of its own."""
    served = Kinds()
    async with AsyncExitStack() as stack:
        for kind, choices in KINDS.items():
            folder = served.folders[kind] = tmp_path_factory.mktemp(kind)
            served.models[kind] = checkpoint(folder, **choices)
            serving = serve(folder, kind, listen, outer)
            served.of[kind] = await stack.enter_async_context(serving)
        yield served


async def test_info_says_what_a_model_can_do(served: Kinds) -> None:
    """Our word for it and TEI's."""
    told = {kind: (await one.http.get("/info")).json() for kind, one in served.of.items()}

    assert {kind: info["tasks"] for kind, info in told.items()} == {
        "classifier": ["encode", "classify"],
        "reranker": ["encode", "classify", "rerank"],
        "regression": ["encode", "classify", "rerank"],
        "tagger": ["encode", "label_tokens"],
        "sparse": ["encode", "sparse"],
    }
    names = {"id2label": {"0": "LABEL_0"}, "label2id": {"LABEL_0": 0}}
    assert told["reranker"]["model_type"] == {"reranker": names}
    assert told["classifier"]["model_type"]["classifier"]["label2id"]["joy"] == 1
    assert told["sparse"]["model_type"] == {"embedding": {"pooling": "splade"}}


async def test_classes_come_in_the_checkpoints_order(served: Kinds) -> None:
    """Logits of a text and of a pair, and scores by each activation."""
    pair = {"text": QUERY, "pair": TEXTS[1]}
    told = await served.encode("classifier", TEXTS[0], pair, classify=True)
    by = {
        how: (await served.encode("classifier", pair, classify={"activation": how}))[0]["classes"]
        for how in ("default", "softmax", "sigmoid", "none")
    }

    for item, texts in zip(told, [(TEXTS[0],), (QUERY, TEXTS[1])], strict=True):
        expected = served.logits("classifier", *texts)
        assert [row["label"] for row in item["classes"]] == [*NAMES.values()]
        np.testing.assert_allclose([row["logit"] for row in item["classes"]], expected, atol=CLOSE)
        scores = [row["score"] for row in item["classes"]]
        np.testing.assert_allclose(scores, expected.softmax(0), atol=CLOSE)
    assert by["default"] == by["softmax"] == told[1]["classes"]
    logits = torch.tensor([row["logit"] for row in told[1]["classes"]])
    sigmoids = [row["score"] for row in by["sigmoid"]]
    np.testing.assert_allclose(sigmoids, logits.sigmoid(), atol=CLOSE)
    assert all(row["score"] == row["logit"] for row in by["none"])


async def test_a_class_has_the_same_bits_in_any_company(served: Kinds) -> None:
    """Alone, among others of a request, and next to other requests."""
    pairs = [{"text": QUERY, "pair": text} for text in TEXTS]
    alone = [(await served.encode("reranker", pair, classify=True))[0] for pair in pairs]
    together = await served.encode("reranker", *pairs, classify=True)
    crowd = await asyncio.gather(
        *(served.encode("reranker", *pairs[i:], classify=True, tokens=i == 1) for i in range(4))
    )

    classes = [item["classes"] for item in alone]
    assert [item["classes"] for item in together] == classes
    for i, told in enumerate(crowd):
        assert [item["classes"] for item in told] == classes[i:]


async def test_attention_gates_and_a_dry_run_go_with_classes(served: Kinds) -> None:
    """A reranker shows what it looked at, and which head moved the score."""
    pair, gate = {"text": QUERY, "pair": TEXTS[1]}, {"layer": 1, "head": 2, "scale": 0.0}
    asked = {"attention": {"form": "stats"}, "classify": True}
    (plain,) = await served.encode("reranker", pair, classify=True)
    (shown,) = await served.encode("reranker", pair, **asked)
    (gated,) = await served.encode("reranker", pair, gates=[gate], classify=True)
    prices = [
        await served.post("reranker", "/v1/encode?dry_run=true", inputs=[pair], **more)
        for more in ({"pooled": False}, {"pooled": False, "classify": True})
    ]

    assert shown["classes"] == plain["classes"] != gated["classes"]
    assert shown["attention"]["stats"]["values"].keys() == {"0", "1"} and shown["segments"][-1] == 1
    assert prices[1]["flops"] - prices[0]["flops"] == 2 * (15 * 15 + 15)
    assert prices[1]["answer_bytes"] - prices[0]["answer_bytes"] == 8 + len("LABEL_0")
    assert prices[1]["admitted"] is True


async def test_what_is_asked_by_ids_and_embeddings_is_classified_too(served: Kinds) -> None:
    """Every form of input."""
    ids = {"token_ids": [101, 2035, 2003, 2092, 102]}
    table = served.models["classifier"].get_input_embeddings()
    vectors = table(torch.tensor(ids["token_ids"])).tolist()

    told = await served.encode("classifier", TEXTS[0], ids, {"embeddings": vectors}, classify=True)

    assert told[0]["classes"] == told[1]["classes"]
    logits = [[row["logit"] for row in item["classes"]] for item in told]
    np.testing.assert_allclose(logits[2], logits[0], atol=CLOSE)


async def test_another_task_is_refused_with_those_there_are(
    served: Kinds, client: httpx.AsyncClient
) -> None:
    """404, by every route; the bundled model can encode and no more."""
    native = {"inputs": ["a"], "sparse": True}
    answer = await served.of["classifier"].http.post("/v1/encode", json=native)
    told = answer.json()

    assert (answer.status_code, told["code"], told["tasks"]) == (
        404,
        "task_not_found",
        ["encode", "classify"],
    )
    assert told["detail"].endswith(
        '"sparse" was requested, and this model has "encode" and "classify".'
    )
    ranking = {"query": "a", "texts": ["b"]}
    for http, path, body in (
        (client, "/rerank", ranking),
        (served.of["classifier"].http, "/rerank", ranking),
        (client, "/predict", {"inputs": "a"}),
        (client, "/embed_sparse", {"inputs": "a"}),
        (client, "/v1/rerank", {"query": "a", "documents": ["b"]}),
        (client, "/v2/rerank", {"query": "a", "documents": ["b"]}),
    ):
        answer = await http.post(path, json=body)
        assert answer.status_code == 404 and '"encode"' in words(answer), path
    highlight = {"query": "a", "documents": ["b"]}
    answer = await served.of["sparse"].http.post("/v1/highlight", json=highlight)
    assert (answer.status_code, answer.json()["code"]) == (404, "task_not_found")


async def test_tei_ranks_texts_best_first(served: Kinds) -> None:
    """By the sigmoid of the logit whatever the checkpoint says, or the logit itself."""
    ranks = await served.post("reranker", "/rerank", query=QUERY, texts=TEXTS)
    raw = await served.post(
        "reranker", "/rerank", query=QUERY, texts=TEXTS, raw_scores=True, return_text=True
    )

    logits = [float(served.logits("reranker", QUERY, text)) for text in TEXTS]
    order = sorted(range(len(TEXTS)), key=lambda i: (-round(logits[i], 4), i))
    assert [rank["index"] for rank in ranks] == [rank["index"] for rank in raw] == order
    assert all(rank.keys() == {"index", "score"} for rank in ranks)
    assert [rank["text"] for rank in raw] == [TEXTS[i] for i in order]
    for rank, own in zip(ranks, raw, strict=True):
        assert own["score"] == pytest.approx(logits[rank["index"]], abs=CLOSE)
        assert rank["score"] == pytest.approx(1 / (1 + math.exp(-own["score"])), abs=1e-6)


async def test_a_long_pair_is_cut_unless_it_must_not_be(served: Kinds) -> None:
    """The longer text first, on either side."""
    long = " ".join(["word"] * 30 + ["dog"] * 30)
    right = await served.post("reranker", "/rerank", query=QUERY, texts=[long], raw_scores=True)
    left = await served.post(
        *("reranker", "/rerank"),
        **{"query": QUERY, "texts": [long], "raw_scores": True, "truncation_direction": "left"},
    )
    refused = await served.of["reranker"].http.post(
        "/rerank", json={"query": QUERY, "texts": ["a", long], "truncate": False}
    )

    expected = float(served.logits("reranker", QUERY, long))
    assert right[0]["score"] == pytest.approx(expected, abs=CLOSE) != left[0]["score"]
    assert (refused.status_code, refused.json()["error_type"]) == (422, "Validation")
    assert "texts[1]" in refused.json()["error"]


async def test_a_regression_ranks_as_cross_encoder_and_is_classified_as_by_the_pipeline(
    served: Kinds,
) -> None:
    """One label and no stored activation: a sigmoid of the one, the logit of the other."""
    folder = str(served.folders["regression"])
    texts = TEXTS[:3]
    told = await served.post("regression", "/v1/rerank", query=QUERY, documents=texts)
    classes = await served.encode("regression", *texts, classify=True)

    scores = {row["index"]: row["relevance_score"] for row in told["results"]}
    theirs = CrossEncoder(folder, device="cpu").predict([(QUERY, text) for text in texts])
    np.testing.assert_allclose([scores[i] for i in range(3)], theirs, rtol=0, atol=CLOSE)
    piped = pipeline("text-classification", folder, device="cpu")(texts)
    ours = [item["classes"][0]["score"] for item in classes]
    np.testing.assert_allclose(ours, [one["score"] for one in piped], rtol=0, atol=CLOSE)
    assert max(ours) > 1  # no probability


async def test_teis_ranks_may_be_only_the_best(served: Kinds) -> None:
    """LiteLLM's client asks for so many."""
    given = {"query": QUERY, "texts": TEXTS}
    ranks = await served.post("reranker", "/rerank", **given)

    assert await served.post("reranker", "/rerank", **given, top_n=2) == ranks[:2]
    assert await served.post("reranker", "/rerank", **given, top_n=7) == ranks


async def test_tei_predicts_texts_pairs_and_lists_of_them(served: Kinds) -> None:
    """Best class first; a list around it where a list of lists was sent."""
    one = await served.post("classifier", "/predict", inputs=TEXTS[0])
    same = await served.post("classifier", "/predict", inputs=[TEXTS[0]])
    pair = await served.post("classifier", "/predict", inputs=[QUERY, TEXTS[1]])
    several = await served.post(
        "classifier", "/predict", inputs=[[TEXTS[0]], [QUERY, TEXTS[1]]], raw_scores=False
    )
    raw = await served.post("classifier", "/predict", inputs=TEXTS[0], raw_scores=True)

    logits = served.logits("classifier", TEXTS[0])
    order = logits.argsort(descending=True).tolist()
    assert one == same and several == [one, pair]
    assert [row["label"] for row in one] == [NAMES[i] for i in order]
    np.testing.assert_allclose([row["score"] for row in one], logits.softmax(0)[order], atol=CLOSE)
    np.testing.assert_allclose([row["score"] for row in raw], logits[order], atol=CLOSE)


async def test_the_root_does_what_the_model_is_for(served: Kinds) -> None:
    """As TEI's does."""
    predicted = await served.post("classifier", "/", inputs=TEXTS[0])
    ranks = await served.post("reranker", "/", query=QUERY, texts=TEXTS)
    sparse = await served.post("sparse", "/", inputs=TEXTS[0])

    assert predicted == await served.post("classifier", "/predict", inputs=TEXTS[0])
    assert ranks == await served.post("reranker", "/rerank", query=QUERY, texts=TEXTS)
    assert sparse == await served.post("sparse", "/embed_sparse", inputs=TEXTS[0])


@pytest.mark.parametrize(
    ("kind", "detail"),
    [
        ("sparse", "This model makes sparse vectors: ask POST /embed_sparse"),
        ("reranker", "This model ranks texts: ask POST /rerank or /v1/rerank"),
    ],
)
@pytest.mark.parametrize(("path", "body"), DENSE.items(), ids=DENSE)
async def test_a_model_made_for_something_else_is_not_asked_for_dense_vectors(
    served: Kinds, kind: str, detail: str, path: str, body: Any
) -> None:
    """What it makes on the way is no vector of a text; the route for it is named."""
    answer = await served.of[kind].http.post(path, json=body)

    assert answer.status_code == 404
    assert detail in words(answer)


async def test_tokens_and_words_are_labelled(served: Kinds) -> None:
    """The first token of a word speaks for it; a special token has no label."""
    text = "Unbelievable headlights, unbelievable"
    (tokens,) = await served.encode("tagger", text, label_tokens=True)
    (words,) = await served.encode("tagger", text, label_tokens={"level": "word"})

    best = served.logits("tagger", text).softmax(-1).max(-1)
    rows = [(NAMES[int(label)], float(score)) for label, score in zip(*best[::-1], strict=True)]
    assert tokens["labels"][0] is tokens["labels"][-1] is None
    for told, (label, score) in zip(tokens["labels"][1:-1], rows[1:-1], strict=True):
        assert told == {"label": label, "score": pytest.approx(score, abs=CLOSE)}
    firsts = [
        tokens["words"].index(word) for word in range(max(w or 0 for w in tokens["words"]) + 1)
    ]
    assert words["labels"] == [tokens["labels"][place] for place in firsts] and len(firsts) == 4


async def test_words_of_a_pair_are_labelled_in_order_and_ids_have_none(served: Kinds) -> None:
    """Those of the second text after those of the first."""
    pair = {"text": "a dog", "pair": "a bone"}
    (told,) = await served.encode("tagger", pair, label_tokens={"level": "word"})
    ids = {"inputs": [{"token_ids": [101, 102]}], "label_tokens": {"level": "word"}}
    refused = await served.of["tagger"].http.post("/v1/encode", json=ids)

    assert len(told["labels"]) == 4 and told["words"] == [None, 0, 1, None, 0, 1, None]
    assert (refused.status_code, refused.json()["code"]) == (422, "words_unknown")


async def test_a_sparse_vector_weighs_the_vocabulary(served: Kinds) -> None:
    """In all dialects the same; the largest so many, or those above a threshold."""
    (whole,) = await served.encode("sparse", TEXTS[0], sparse=True)
    tei = await served.post("sparse", "/embed_sparse", inputs=[TEXTS[0], TEXTS[1]])
    (few,) = await served.encode("sparse", TEXTS[0], sparse={"k": 7, "threshold": 1.5})
    answer = await served.of["sparse"].http.post(
        "/v1/encode",
        json={"inputs": [TEXTS[0]], "pooled": False, "sparse": {"k": 7}},
        headers={"accept": "application/vnd.safetensors"},
    )

    weights = served.logits("sparse", TEXTS[0]).relu().log1p().amax(0)
    vector = np.zeros(len(weights), dtype=np.float32)
    vector[whole["sparse"]["indices"]] = whole["sparse"]["values"]
    np.testing.assert_allclose(vector, weights, atol=CLOSE)
    assert whole["sparse"]["indices"] == sorted(whole["sparse"]["indices"])
    assert [row["index"] for row in tei[0]] == whole["sparse"]["indices"]
    assert [row["value"] for row in tei[0]] == whole["sparse"]["values"]
    largest = np.argsort(-vector, kind="stable")[:7]
    assert few["sparse"]["indices"] == sorted(i for i in largest.tolist() if vector[i] > 1.5)
    arrays = load(answer.content)
    assert arrays["0.sparse.indices"].tolist() == sorted(largest.tolist())
    header = json.loads(answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")])
    (item,) = json.loads(header["__metadata__"]["headlight"])["data"]
    tokens = AutoTokenizer.from_pretrained(served.folders["sparse"]).convert_ids_to_tokens(
        arrays["0.sparse.indices"].tolist()
    )
    assert item["sparse"] == {"tokens": tokens}


async def test_a_vocabulary_counts_in_the_price_and_in_the_limits(served: Kinds) -> None:
    """What it may hold at most, and what it computes, before any of it is."""
    inputs = ["a"] * 40
    price = await served.post(
        "sparse", "/v1/encode?dry_run=true", inputs=inputs, pooled=False, sparse={"k": 5}
    )
    answer = await served.of["sparse"].http.post("/embed_sparse", json={"inputs": inputs})

    assert price["answer_bytes"] == 40 * 8 * 5
    assert price["flops"] > 2 * 30522 * 15 * 3 * 40
    assert (answer.status_code, answer.json()["error_type"]) == (413, "Validation")
    assert "9,767,040 bytes" in answer.json()["error"]


@pytest.mark.parametrize("encoding", ["json", "base64"])
async def test_classes_and_labels_are_no_arrays(served: Kinds, encoding: str) -> None:
    """They are the same in every encoding, and in a file's metadata."""
    (told,) = await served.encode("classifier", TEXTS[0], classify=True, encoding=encoding)
    answer = await served.of["classifier"].http.post(
        "/v1/encode",
        json={"inputs": [TEXTS[0]], "classify": True},
        headers={"accept": "application/vnd.safetensors"},
    )

    header = json.loads(answer.content[8 : 8 + int.from_bytes(answer.content[:8], "little")])
    (item,) = json.loads(header["__metadata__"]["headlight"])["data"]
    assert item["classes"] == told["classes"] and header.keys() == {"__metadata__", "0.pooled"}


def words(answer: httpx.Response) -> str:
    """What a refusal says, whatever its shape."""
    return " ".join(map(str, answer.json().values()))


REFUSED = {
    "no texts": ("reranker", "/rerank", {"query": "a", "texts": []}, 400, "texts"),
    "no documents": ("reranker", "/v1/rerank", {"query": "a", "documents": []}, 422, "documents"),
    "an empty query": ("reranker", "/rerank", {"query": "", "texts": ["b"]}, 422, "query"),
    "no text": ("reranker", "/rerank", {"query": "a", "texts": ["b", 7]}, 422, "texts[1]"),
    "no document": (
        *("reranker", "/v1/rerank", {"query": "a", "documents": ["b", {"text": 7}]}),
        *(422, "documents[1]"),
    ),
    "a query too often": (
        *("reranker", "/v2/rerank", {"query": "a" * 2049, "documents": ["b"] * 1024}),
        *(422, "it has 2,049 characters, and the limit is 2,048"),
    ),
    "another model": (
        *("reranker", "/v1/rerank", {"model": "x", "query": "a", "documents": ["b"]}),
        *(404, 'this service has "reranker"'),
    ),
    "no result": (
        *("reranker", "/v1/rerank", {"query": "a", "documents": ["b"], "top_n": 0}),
        *(422, "top_n"),
    ),
    "three texts": ("classifier", "/predict", {"inputs": [["a", "b", "c"]]}, 422, "received 3"),
    "no input": ("classifier", "/predict", {"inputs": []}, 400, "inputs"),
    "an empty pair": ("classifier", "/predict", {"inputs": [["a"], []]}, 400, "inputs[1]"),
    "a number": ("classifier", "/predict", {"inputs": [["a"], 7]}, 422, "inputs[1]"),
    "no weight": ("sparse", "/v1/encode", {"inputs": ["a"], "sparse": {"k": 0}}, 422, "sparse.k"),
    "a bound below 0": (
        *("sparse", "/v1/encode", {"inputs": ["a"], "sparse": {"threshold": -1}}),
        *(422, "sparse.threshold"),
    ),
    "an unknown activation": (
        *("classifier", "/v1/encode", {"inputs": ["a"], "classify": {"activation": "tanh"}}),
        *(422, "classify.activation"),
    ),
}


@pytest.mark.parametrize(
    ("kind", "path", "body", "status", "says"), REFUSED.values(), ids=REFUSED.keys()
)
async def test_a_bad_request_is_refused_at_its_place(
    served: Kinds, kind: str, path: str, body: dict[str, Any], status: int, says: str
) -> None:
    """In the words of its API, by the names of its own fields."""
    answer = await served.of[kind].http.post(path, json=body)

    assert (answer.status_code, says in words(answer)) == (status, True), answer.text
    shapes = {"/v1/encode": {"code", "detail"}, "/v1/rerank": {"message", "detail", "code"}}
    shapes["/v2/rerank"] = shapes["/v1/rerank"]
    assert answer.json().keys() >= shapes.get(path, {"error", "error_type"})


@pytest.mark.client("huggingface-hub", "text_classification")
async def test_hugging_faces_client_classifies(
    served: Kinds, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the root of TEI's routes; the best class of so many."""
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", False)
    client = InferenceClient(served.of["classifier"].url)

    plain = await asyncio.to_thread(client.text_classification, TEXTS[0])
    sigmoid = await asyncio.to_thread(
        partial(client.text_classification, TEXTS[0], function_to_apply="sigmoid", top_k=1)
    )

    logits = served.logits("classifier", TEXTS[0])
    best = int(logits.argmax())
    for told, scores in ((plain, logits.softmax(0)), (sigmoid, logits.sigmoid())):
        assert told.label == NAMES[best]  # type: ignore[attr-defined]
        assert told.score == pytest.approx(float(scores[best]), abs=CLOSE)  # type: ignore[attr-defined]


async def test_our_client_answers_what_heads_make(served: Kinds) -> None:
    """Classes and labels as they are, sparse vectors as arrays."""
    told = {}
    options = {"classifier": {"classify": True}, "tagger": {"label_tokens": True}}
    options["sparse"] = {"sparse": True}
    for kind, option in options.items():
        async with AsyncClient(served.of[kind].url) as client:
            told[kind] = (await client.encode([TEXTS[0]], pooled=False, **option)).items[0]

    native = {
        kind: (await served.encode(kind, TEXTS[0], **option))[0] for kind, option in options.items()
    }
    assert told["classifier"].classes == native["classifier"]["classes"]
    assert told["tagger"].labels == native["tagger"]["labels"]
    assert told["sparse"].sparse.indices.tolist() == native["sparse"]["sparse"]["indices"]
    assert told["sparse"].sparse.tokens == native["sparse"]["sparse"]["tokens"]
    values = np.array(native["sparse"]["sparse"]["values"], dtype=np.float32)
    np.testing.assert_array_equal(told["sparse"].sparse.values, values)
