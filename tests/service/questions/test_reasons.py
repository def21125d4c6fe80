"""What scores rest on, over HTTP, held to transformers' modules with their gates kept."""

from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from transformers import AutoTokenizer, PreTrainedModel

from service.questions import reasons
from tests.model.probes.test_readout import frozen_gradients
from tests.served_model import Listen, Outer, Served, serve
from tests.task_heads import checkpoint

NAMES = {0: "anger", 1: "joy", 2: "neither"}
KINDS: dict[str, dict[str, Any]] = {
    "classifier": {"head": "ForSequenceClassification", "id2label": NAMES},
    "reranker": {"head": "ForSequenceClassification", "num_labels": 1},
    "tagger": {"head": "ForTokenClassification", "id2label": NAMES},
}
TEXT, PAIR = "Unbelievable  headlamps were hungry", {"text": "Is it well?", "pair": " All is well"}
CLOSE = 1e-5


class Told:
    """Each kind of model as transformers has it, and as it is served."""

    def __init__(self) -> None:
        self.models: dict[str, PreTrainedModel] = {}
        self.of: dict[str, Served] = {}
        self.folder = Path()

    async def encode(self, kind: str, *inputs: Any, **body: Any) -> list[dict[str, Any]]:
        """What POST /v1/encode answers, without vectors."""
        task = "label_tokens" if kind == "tagger" else "classify"
        asked = {"pooled": False, task: True, "reason": {}, **body}
        return await self.of[kind].encode(*inputs, **asked)

    def logits(self, kind: str, *texts: str) -> torch.Tensor:
        """Of a text or a pair, by transformers."""
        tokenizer = AutoTokenizer.from_pretrained(self.folder)
        with torch.inference_mode():
            found: torch.Tensor = self.models[kind](**tokenizer(*texts, return_tensors="pt")).logits
        return found[0]


@pytest_asyncio.fixture(scope="module")
async def told(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Told]:
    """All of them, each on a port of its own."""
    told = Told()
    async with AsyncExitStack() as stack:
        for kind, choices in KINDS.items():
            folder = told.folder = tmp_path_factory.mktemp(kind)
            told.models[kind] = checkpoint(folder, **choices)
            serving = serve(folder, kind, listen, outer)
            told.of[kind] = await stack.enter_async_context(serving)
        yield told


def total(reason: dict[str, Any]) -> float:
    """The sum of all shares and the rest."""
    return sum(unit["share"] for unit in reason["units"]) + float(reason["rest"])


async def test_shares_of_words_and_the_rest_sum_to_the_margin(told: Told) -> None:
    """That of the best class over the next, as transformers has the logits; of texts and pairs."""
    for given in (TEXT, PAIR):
        texts = [given] if isinstance(given, str) else [*given.values()]
        logits = told.logits("classifier", *texts)
        (answer,) = await told.encode("classifier", given)
        reason = answer["reason"]

        best, second, _ = logits.argsort(descending=True).tolist()
        assert (reason["target"], reason["against"]) == (NAMES[best], NAMES[second])
        margin = float(logits[best] - logits[second])
        assert reason["margin"] == pytest.approx(margin, abs=CLOSE)
        assert total(reason) == pytest.approx(margin, abs=CLOSE)
        assert max(abs(unit["share"]) for unit in reason["units"]) > 1e-2


async def test_a_word_stands_where_it_was_sent(told: Told) -> None:
    """Of a pair in its own text; special tokens stand nowhere, and have a share too."""
    (one,) = await told.encode("classifier", TEXT)
    (two,) = await told.encode("classifier", PAIR)

    words = [(unit["text"], unit["characters"]) for unit in one["reason"]["units"]]
    assert words == [
        ("[CLS]", None),
        ("Unbelievable", [0, 12]),
        ("headlamps", [14, 23]),
        ("were", [24, 28]),
        ("hungry", [29, 35]),
        ("[SEP]", None),
    ]
    places = [(unit["text"], unit["segment"]) for unit in two["reason"]["units"]]
    assert places == [
        *(("[CLS]", None), ("Is", 0), ("it", 0), ("well", 0), ("?", 0), ("[SEP]", None)),
        *(("All", 1), ("is", 1), ("well", 1), ("[SEP]", None)),
    ]
    assert two["reason"]["units"][6]["characters"] == [1, 4]


async def test_tokens_have_the_shares_of_decompx(told: Told) -> None:
    """As transformers' own modules give them with their gates detached; a word is their sum."""
    (answer,) = await told.encode("classifier", TEXT, reason={"level": "token"})
    (by_word,) = await told.encode("classifier", TEXT)
    each, logits = frozen_gradients(told.models["classifier"], answer["token_ids"])  # type: ignore[arg-type]
    best, second, _ = logits.argsort(descending=True).tolist()

    expected = (each[best] - each[second]).numpy()

    shares = [unit["share"] for unit in answer["reason"]["units"]]
    np.testing.assert_allclose(shares, expected, rtol=0, atol=CLOSE)
    texts = [unit["text"] for unit in answer["reason"]["units"]]
    assert texts[0] == "[CLS]" and len(texts) > len(by_word["reason"]["units"])
    pieces = [token.removeprefix("##") for token in answer["tokens"]]
    assert [text.lower() for text in texts[1:-1]] == pieces[1:-1]
    word = [unit["share"] for unit in by_word["reason"]["units"]]
    spans = [answer["words"].index(number) for number in range(4)]
    sums = np.add.reduceat(expected, [0, *spans, len(expected) - 1])
    np.testing.assert_allclose(word, sums, rtol=0, atol=CLOSE)


async def test_a_single_class_has_a_logit_and_no_margin(told: Told) -> None:
    """So a reranker's pair says what its logit rests on."""
    (answer,) = await told.encode("reranker", PAIR)
    reason, logit = answer["reason"], float(told.logits("reranker", *PAIR.values())[0])

    assert "margin" not in reason and "against" not in reason
    assert reason["logit"] == pytest.approx(logit, abs=CLOSE)
    assert total(reason) == pytest.approx(logit, abs=CLOSE)


async def test_each_result_of_a_ranking_has_what_its_logit_rests_on(told: Told) -> None:
    """By words of the query and of its own document, whatever makes the score of the logit."""
    query, documents = "Is it well?", ["All is well", "Unbelievable", "It is hungry"]
    asked = {"query": query, "documents": documents, "reason": {}}
    for path in ("/v1/rerank", "/v2/rerank"):
        plain = await told.of["reranker"].http.post(path, json={**asked, "reason": None})
        answer = await told.of["reranker"].http.post(path, json=asked)

        for row, other in zip(answer.json()["results"], plain.json()["results"], strict=True):
            logit = float(told.logits("reranker", query, documents[row["index"]])[0])
            reason = row.pop("reason")
            assert row == other
            assert reason["logit"] == pytest.approx(logit, abs=CLOSE)
            assert total(reason) == pytest.approx(logit, abs=CLOSE)
            read = [unit["text"] for unit in reason["units"] if unit["segment"] == 1]
            assert read == documents[row["index"]].split()


async def test_each_label_has_its_strongest_units(told: Told) -> None:
    """Of tokens or of words; special tokens have no label."""
    logits = told.logits("tagger", TEXT)
    (tokens,) = await told.encode("tagger", TEXT)
    (words,) = await told.encode("tagger", TEXT, label_tokens={"level": "word"})

    assert [row is None for row in tokens["reason"]] == tokens["special"]
    for token, reason in enumerate(tokens["reason"]):
        if reason is None:
            continue
        best = int(logits[token].argmax())
        assert reason["target"] == NAMES[best] == tokens["labels"][token]["label"]
        assert reason["logit"] == pytest.approx(float(logits[token, best]), abs=CLOSE)
        assert total(reason) == pytest.approx(float(logits[token, best]), abs=CLOSE)
        sizes = [abs(unit["share"]) for unit in reason["units"]]
        assert sizes == sorted(sizes, reverse=True) and len(sizes) == 5
    firsts = [words["words"].index(number) for number in range(4)]
    assert [row["logit"] for row in words["reason"]] == pytest.approx(
        [tokens["reason"][first]["logit"] for first in firsts], abs=CLOSE
    )


async def test_what_is_asked_in_company_is_answered_as_alone(told: Told) -> None:
    """To the bit, with gates and among others; and scores are those without a reason."""
    gates = [{"layer": 1, "head": 2, "scale": 0.0}]
    (plain,) = await told.encode("classifier", TEXT, reason=None)
    (alone,) = await told.encode("classifier", TEXT, gates=gates)

    _, among, _ = await told.encode("classifier", PAIR, TEXT, "All is well", gates=gates)
    _, ungated = await told.encode("classifier", PAIR, TEXT)

    assert among == alone and alone["reason"] != ungated["reason"]
    assert ungated["classes"] == plain["classes"] and "reason" not in plain
    margin = alone["reason"]["margin"]
    assert total(alone["reason"]) == pytest.approx(margin, abs=CLOSE)


async def test_ids_and_embeddings_have_shares_of_tokens(told: Told) -> None:
    """Words they have none: these are refused."""
    ids = {"token_ids": [101, 2035, 2003, 102]}
    vectors = {"embeddings": [[0.1 * n for n in range(15)], [0.2] * 15]}

    by_id, by_vector = await told.encode("classifier", ids, vectors, reason={"level": "token"})
    refused = await told.of["classifier"].post(
        "/v1/encode", 422, inputs=[ids], pooled=False, classify=True, reason={}
    )

    assert [unit["text"] for unit in by_id["reason"]["units"]] == by_id["tokens"]
    assert [unit["text"] for unit in by_vector["reason"]["units"]] == [None, None]
    for answer in (by_id, by_vector):
        assert total(answer["reason"]) == pytest.approx(answer["reason"]["margin"], abs=CLOSE)
    assert refused["code"] == "words_unknown"


@pytest.mark.parametrize(
    ("body", "code"),
    [
        ({"classify": False}, "out_of_range"),
        ({"sweep": "heads"}, "out_of_range"),
        ({"reason": {"method": "alone"}}, "out_of_range"),
    ],
    ids=["nothing to explain", "a sweep", "leaving words out"],
)
async def test_what_has_no_reason_is_refused(told: Told, body: Any, code: str) -> None:
    """Before any work, with the field."""
    asked = {"inputs": [TEXT], "pooled": False, "classify": True, "reason": {}, **body}

    refused = await told.of["classifier"].post("/v1/encode", 422, **asked)

    assert (refused["code"], refused["errors"][0]["loc"][0]) == (code, "reason")


async def test_its_price_is_known_before(
    told: Told, tmp_path: Path, listen: Listen, outer: Outer
) -> None:
    """Each score counts as the work of its text, twice; too much is refused."""
    checkpoint(tmp_path, **KINDS["tagger"])
    asked = {"inputs": [TEXT] * 3, "pooled": False, "label_tokens": True}
    served = told.of["tagger"]
    plain = await served.post("/v1/encode?dry_run=true", **asked)
    dry = await served.post("/v1/encode?dry_run=true", **asked, reason={})
    async with serve(tmp_path, "few", listen, outer, max_request_tokens=150) as few:
        refused = await few.post("/v1/encode", 413, **asked, reason={})

    assert dry["flops"] > 8 * plain["flops"]
    assert dry["answer_bytes"] > plain["answer_bytes"]
    assert refused["code"] == "too_many_tokens"
    assert reasons.SHARING_TAKES[1:] in refused["detail"]
