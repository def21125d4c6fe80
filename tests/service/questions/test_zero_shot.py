"""Labels of a request's own over HTTP, held to transformers' pipeline for zero-shot."""

import json
import os
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

os.environ["HF_HUB_OFFLINE"] = "1"  # read when transformers is imported; nothing may call out

import numpy as np
import pytest
import pytest_asyncio
import torch
import transformers
from tokenizers import Tokenizer, models, pre_tokenizers, trainers
from transformers import (
    AutoTokenizer,
    DebertaV2Config,
    DebertaV2ForSequenceClassification,
    DebertaV2Tokenizer,
)

from tests.served_model import Listen, Outer, Served, serve
from tests.task_heads import MOST, SIZES, checkpoint

TEXTS = ["Where does the train to Rome leave?", "A dog ate the food, and slept.", "It rains"]
LABELS = ["travel", "food", "the weather", "nothing of all this"]
TEMPLATE = "This text is about {}, or not."
LONG = "the dog ate the food and then it slept until the evening came again " * 12
NAMES: dict[str, list[str]] = {
    "bert": ["contradiction", "neutral", "ENTAILMENT"],
    "deberta": ["entailment", "not_entailment"],
}
PIECES = ["[PAD]", "[CLS]", "[SEP]", "[UNK]", "[MASK]"]
CLOSE = 1e-5
LIMITS = {"bert": MOST, "deberta": 101}  # tokens
MANY = 2049  # pairs, one more than a request may hold


def deberta(folder: Path) -> None:
    """A small DeBERTa-v3 of two classes, and a tokenizer of its kind, saved."""
    library = Tokenizer(models.Unigram())
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    trainer = trainers.UnigramTrainer(
        vocab_size=299, special_tokens=PIECES, unk_token="[UNK]", show_progress=False
    )
    library.train_from_iterator([*TEXTS, *LABELS, TEMPLATE, LONG], trainer)
    pieces = sorted(library.get_vocab(), key=library.token_to_id)
    tokenizer = DebertaV2Tokenizer(
        vocab=[
            (piece, -float(place) * (piece not in PIECES)) for place, piece in enumerate(pieces)
        ],
        unk_id=PIECES.index("[UNK]"),
        model_max_length=LIMITS["deberta"],
    )
    config = DebertaV2Config(
        **SIZES,
        **named("deberta"),
        vocab_size=len(tokenizer),
        intermediate_size=23,
        max_position_embeddings=LIMITS["deberta"],
        type_vocab_size=0,
        relative_attention=True,
        position_buckets=12,
        pos_att_type=["p2c", "c2p"],
        norm_rel_ebd="layer_norm",
        share_att_key=True,
        position_biased_input=False,
        initializer_range=0.5,
    )
    torch.manual_seed(0)
    DebertaV2ForSequenceClassification(config).eval().save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def bert(folder: Path) -> None:
    """A small BERT of three classes with the bundled tokenizer, saved."""
    checkpoint(folder, "ForSequenceClassification", **named("bert"))
    tokenizer = AutoTokenizer.from_pretrained(folder)
    tokenizer.model_max_length = MOST
    tokenizer.save_pretrained(folder)


def named(kind: str) -> dict[str, Any]:
    """The classes of a kind, as config.json names them."""
    names = dict(enumerate(NAMES[kind]))
    return {"id2label": names, "label2id": {name: place for place, name in names.items()}}


MAKERS = {"bert": bert, "deberta": deberta}


class Zero:
    """A served model, and the pipeline of its folder."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.folder = served, folder
        self.pipeline = transformers.pipeline("zero-shot-classification", str(folder), device="cpu")

    async def told(self, *inputs: str, **body: Any) -> list[dict[str, Any]]:
        """What POST /v1/classify answers to some texts."""
        asked = {"inputs": inputs, "labels": LABELS, **body}
        found: list[dict[str, Any]] = (await self.served.post("/v1/classify", **asked))["data"]
        return found

    def logits(self, text: str, label: str) -> tuple[float, float]:
        """The pipeline's logits of contradiction and entailment."""
        tokens = self.pipeline.tokenizer(text, f"This example is {label}.", return_tensors="pt")
        with torch.inference_mode():
            logits = self.pipeline.model(**tokens).logits[0].tolist()
        entailment = self.pipeline.entailment_id
        return logits[0 if entailment else -1], logits[entailment]

    def expected(self, text: str, labels: list[str] = LABELS, **how: Any) -> dict[str, float]:
        """The pipeline's scores by label."""
        made = self.pipeline(text, candidate_labels=labels, **how)
        return dict(zip(made["labels"], made["scores"], strict=True))


@pytest_asyncio.fixture(scope="module")
async def models_served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[dict[str, Zero]]:
    """Both kinds, each on a port of its own."""
    async with AsyncExitStack() as stack:
        zeros = {}
        for kind, make in MAKERS.items():
            folder = tmp_path_factory.mktemp(kind)
            make(folder)
            served = await stack.enter_async_context(serve(folder, kind, listen, outer))
            zeros[kind] = Zero(served, folder)
        yield zeros


@pytest.fixture(params=MAKERS)
def zero(models_served: dict[str, Zero], request: pytest.FixtureRequest) -> Zero:
    """One of them."""
    return models_served[request.param]


def scores(classes: list[dict[str, Any]]) -> dict[str, float]:
    """The scores of an answer by label, in its order."""
    return {one["label"]: one["score"] for one in classes}


ORDERS = {"plain": LABELS, "turned": LABELS[::-1], "one": LABELS[:1]}
TEMPLATES = ["This example is {}.", TEMPLATE, "{}"]
WAYS = [(kind, multi_label) for kind in MAKERS for multi_label in (False, True)]
# labels and templates in one way each, so that any two choices meet; `make prove` tries them all
ASKED = [
    pytest.param(
        *(kind, ORDERS[order], template, multi_label),
        id=f"{kind}-{order}-{place}-{multi_label}",
        marks=() if way == (3 * row + place) % len(WAYS) else pytest.mark.prove,
    )
    for row, order in enumerate(ORDERS)
    for place, template in enumerate(TEMPLATES)
    for way, (kind, multi_label) in enumerate(WAYS)
]


@pytest.mark.parametrize(("kind", "labels", "template", "multi_label"), ASKED)
async def test_labels_are_scored_as_by_transformers(
    models_served: dict[str, Zero], kind: str, labels: list[str], template: str, multi_label: bool
) -> None:
    """Best first, of a first class that entails too; one label is scored by itself."""
    zero = models_served[kind]
    how = {"hypothesis_template": template, "multi_label": multi_label}
    told = await zero.told(*TEXTS, labels=labels, **how)

    for text, one in zip(TEXTS, told, strict=True):
        expected = zero.expected(text, labels, **how)
        assert scores(one["classes"]) == pytest.approx(expected, abs=CLOSE)
        assert [row["label"] for row in one["classes"]] == [*expected]
        assert one["truncated"] is False
    if not multi_label and len(labels) > 1:
        assert sum(scores(told[0]["classes"]).values()) == pytest.approx(1, abs=CLOSE)


async def test_the_template_is_the_pipelines_where_none_is_sent(zero: Zero) -> None:
    """And a text has one label where the request does not say."""
    (told,) = await zero.told(TEXTS[0])

    assert scores(told["classes"]) == pytest.approx(zero.expected(TEXTS[0]), abs=CLOSE)


async def test_braces_in_a_label_and_in_a_text_are_read_as_they_are(zero: Zero) -> None:
    """Nothing but the template is formatted."""
    labels, text = ["a {}", "{0}", "a}b"], "It {rains} {}"
    (told,) = await zero.told(text, labels=labels)

    assert scores(told["classes"]) == pytest.approx(zero.expected(text, labels), abs=CLOSE)


@pytest.mark.parametrize("side", ["right", "left"])
async def test_a_long_text_is_cut_and_its_label_is_not(zero: Zero, side: str) -> None:
    """As the pipeline cuts; it is refused where the request does not ask for a cut."""
    zero.pipeline.tokenizer.truncation_side = side
    long, short = await zero.told(LONG, TEXTS[0], truncate=side)
    zeros = zero.expected(LONG)
    zero.pipeline.tokenizer.truncation_side = "right"
    refused = await zero.served.post("/v1/classify", 422, inputs=["It", LONG], labels=LABELS)

    assert scores(long["classes"]) == pytest.approx(zeros, abs=CLOSE)
    assert scores(short["classes"]) == pytest.approx(zero.expected(TEXTS[0]), abs=CLOSE)
    assert (long["truncated"], short["truncated"]) == (True, False)
    asked = {"inputs": [LONG, TEXTS[0], LONG], "labels": LABELS, "truncate": side}
    usage = (await zero.served.post("/v1/classify", **asked))["usage"]
    assert usage["truncated"] == 2  # of texts, not of their labels
    pairs = [(LONG, f"This example is {label}.") for label in LABELS]
    longest = max(len(ids) for ids in zero.pipeline.tokenizer(pairs, verbose=False).input_ids)
    assert long["length"] == longest > LIMITS[zero.served.replica.name]
    assert refused["code"] == "sequence_too_long"
    assert refused["errors"][0]["loc"] == ["inputs", 1]


async def test_a_template_that_leaves_no_room_for_the_text_is_refused(zero: Zero) -> None:
    """It is never cut, so that no text is read without it, and no label without the text."""
    body = {"inputs": ["It", TEXTS[0]], "labels": LABELS[:2], "truncate": "right"}
    fits = await zero.served.post("/v1/classify", **body, hypothesis_template="{}" + " it" * 3)
    told = await zero.served.post("/v1/classify", 422, **body, hypothesis_template="{}" + LONG)

    assert len(fits["data"]) == 2
    assert told["code"] == "sequence_too_long" and told["errors"][0]["loc"] == ["inputs", 0]


async def test_a_text_has_the_same_bits_in_any_batch(zero: Zero) -> None:
    """Alone, among others, and with the labels in another order."""
    together = await zero.told(*TEXTS, multi_label=True)
    turned = await zero.told(*TEXTS[::-1], labels=LABELS[::-1], multi_label=True)
    alone = [(await zero.told(text, multi_label=True))[0] for text in TEXTS]

    assert alone == together
    assert [scores(one["classes"]) for one in turned[::-1]] == [
        scores(one["classes"]) for one in together
    ]


async def test_of_equal_scores_the_first_label_stays_first(models_served: dict[str, Zero]) -> None:
    """Labels that the tokenizer reads alike."""
    labels = ["food", " food", "food "]
    (told,) = await models_served["bert"].told(TEXTS[1], labels=labels)

    assert [one["label"] for one in told["classes"]] == labels
    assert len({one["score"] for one in told["classes"]}) == 1


async def test_scores_are_those_of_the_pairs_classes(zero: Zero) -> None:
    """What /v1/encode says of them, whose maps and sweeps show why; gates are in both alike."""
    gates = [{"layer": 1, "head": 2, "scale": 0.0}]
    (told,) = await zero.told(TEXTS[0], gates=gates)
    (plain,) = await zero.told(TEXTS[0])
    pairs = [{"text": TEXTS[0], "pair": f"This example is {label}."} for label in LABELS]
    every = await zero.served.encode(*pairs, pooled=False, classify=True, gates=gates)

    names = [name.lower() for name in NAMES[zero.served.replica.name]]
    logits = [one["classes"][names.index("entailment")]["logit"] for one in every]
    powers = np.exp(logits)
    expected = dict(zip(LABELS, powers / powers.sum(), strict=True))
    assert scores(told["classes"]) == pytest.approx(expected, abs=CLOSE)
    assert scores(plain["classes"]) != pytest.approx(expected, abs=CLOSE)


async def test_a_dry_run_says_what_it_costs(zero: Zero) -> None:
    """In tokens of all pairs, as the answer counts them."""
    body = {"inputs": TEXTS, "labels": LABELS}
    priced = await zero.served.post("/v1/classify?dry_run=true", **body)
    told = await zero.served.post("/v1/classify", **body)

    assert priced["admitted"] is True
    for name in ("tokens", "answer_bytes"):
        assert priced[name] == told["usage"][name] > 0


async def test_what_a_model_can_do_says_so(zero: Zero) -> None:
    """GET /info, and the answer's own words on the model."""
    info = (await zero.served.http.get("/info")).json()
    told = await zero.served.post("/v1/classify", inputs=["a"], labels=["b"])

    assert info["tasks"] == ["encode", "classify", "zero_shot"]
    assert told["model"] == info["model"] and told["weights"] == info["weights"]


def total(reason: dict[str, Any]) -> float:
    """The sum of all shares, special tokens' and biases'."""
    shares = sum(unit["share"] for unit in reason["units"])
    return float(shares + reason["special"] + reason["rest"])


@pytest.mark.parametrize("level", ["word", "token"])
async def test_shares_sum_to_the_best_labels_margin_over_the_next(zero: Zero, level: str) -> None:
    """Of entailments as transformers has them, and all else stays as it is without a reason."""
    plain = await zero.told(*TEXTS)
    told = await zero.told(*TEXTS, reason={"level": level})

    for text, one, other in zip(TEXTS, told, plain, strict=True):
        reason = one.pop("reason")
        assert one == other
        best, second = [row["label"] for row in one["classes"]][:2]
        assert (reason["target"], reason["against"]) == (best, second)
        margin = zero.logits(text, best)[1] - zero.logits(text, second)[1]
        assert reason["margin"] == pytest.approx(margin, abs=CLOSE)
        assert total(reason) == pytest.approx(margin, abs=CLOSE)
        assert max(abs(unit["share"]) for unit in reason["units"]) > 1e-2


@pytest.mark.parametrize("body", [{"multi_label": True}, {"labels": LABELS[:1]}])
async def test_a_label_that_fits_by_itself_stands_against_its_contradiction(
    zero: Zero, body: dict[str, Any]
) -> None:
    """Of several that may fit, and of one: the entailment less the contradiction of its pair."""
    for text, one in zip(TEXTS, await zero.told(*TEXTS, **body, reason={}), strict=True):
        reason, best = one["reason"], one["classes"][0]["label"]
        contradiction, entailment = zero.logits(text, best)

        names = NAMES[zero.served.replica.name]
        assert (reason["target"], reason["against"]) == (best, names[0 if len(names) > 2 else -1])
        assert reason["margin"] == pytest.approx(entailment - contradiction, abs=CLOSE)
        assert total(reason) == pytest.approx(entailment - contradiction, abs=CLOSE)


async def test_a_word_of_the_text_has_one_share_and_stands_where_it_was_sent(
    models_served: dict[str, Zero],
) -> None:
    """The text is a part of both pairs; hypotheses are told apart by `segment`."""
    (told,) = await models_served["bert"].told("It  rains", reason={})
    reason = told["reason"]

    rows = [(unit["text"], unit["segment"]) for unit in reason["units"]]
    said = [f"This example is {reason[name]} .".split() for name in ("target", "against")]
    assert rows == [
        *(("It", 0), ("rains", 0)),
        *((word, number) for number, words in enumerate(said, 1) for word in words),
    ]
    assert reason["units"][1]["characters"] == [4, 9]


async def test_a_reason_is_the_same_in_any_batch_and_follows_gates(zero: Zero) -> None:
    """To the bit, alone and among others."""
    gates = [{"layer": 1, "head": 2, "scale": 0.0}]
    together = await zero.told(*TEXTS, reason={}, gates=gates)
    alone = [(await zero.told(text, reason={}, gates=gates))[0] for text in TEXTS]
    (ungated,) = await zero.told(TEXTS[0], reason={})

    assert alone == together and ungated["reason"] != alone[0]["reason"]
    margin = alone[0]["reason"]["margin"]
    assert total(alone[0]["reason"]) == pytest.approx(margin, abs=CLOSE)


async def test_a_reason_is_priced_before(zero: Zero) -> None:
    """It counts as more work and a longer answer."""
    body = {"inputs": TEXTS, "labels": LABELS}
    plain = await zero.served.post("/v1/classify?dry_run=true", **body)
    dry = await zero.served.post("/v1/classify?dry_run=true", **body, reason={})
    told = await zero.served.post("/v1/classify", **body, reason={})

    assert dry["flops"] > 3 * plain["flops"]
    assert len(json.dumps(told)) - len(json.dumps(told["data"])) < dry["answer_bytes"]
    assert dry["answer_bytes"] > plain["answer_bytes"]


BAD: dict[str, tuple[dict[str, Any], str, list[Any]]] = {
    "an empty text": ({"inputs": ["a", ""]}, "sequence_empty", ["inputs", 1]),
    "no text": ({"inputs": []}, "batch_empty", ["inputs"]),
    "a label twice": ({"labels": ["a", "b", "a"]}, "out_of_range", ["labels"]),
    "an empty label": ({"labels": ["a", ""]}, "out_of_range", ["labels"]),
    "a template without a place": (
        {"hypothesis_template": "It is."},
        *("out_of_range", ["hypothesis_template"]),
    ),
    "a template with a field": (
        {"hypothesis_template": "{} {0}"},
        *("out_of_range", ["hypothesis_template"]),
    ),
    "a label that is too long": (
        {"labels": ["a", "b" * 1_000_001]},
        *("text_too_long", ["labels", 1]),
    ),
    "texts that are too long for so many labels": (
        {"inputs": ["a" * 1100] * 2, "labels": [str(n) for n in range(1000)]},
        *("text_too_long", ["inputs"]),
    ),
    "labels that are too long for so many texts": (
        {"inputs": ["a"] * 1000, "labels": ["a" * 1100, "b" * 1100]},
        *("text_too_long", ["labels"]),
    ),
    "too many pairs": (
        {"inputs": ["a"] * MANY, "labels": ["b"]},
        *("batch_too_large", []),
    ),
}


@pytest.mark.parametrize(("body", "code", "loc"), BAD.values(), ids=BAD)
async def test_what_cannot_be_read_is_refused_with_its_place(
    models_served: dict[str, Zero], body: dict[str, Any], code: str, loc: list[Any]
) -> None:
    """Before any work."""
    asked = {"inputs": ["a"], "labels": ["b"], **body}
    told = await models_served["bert"].served.post("/v1/classify", 422, **asked)

    assert told["code"] == code
    assert [fault["loc"] for fault in told.get("errors", [])] == ([loc] if loc else [])


async def test_a_model_without_entailment_is_refused_by_what_it_can_do(
    tmp_path: Path, listen: Listen, outer: Outer
) -> None:
    """Classes of other names are no answer to it."""
    checkpoint(tmp_path, "ForSequenceClassification", id2label={0: "anger", 1: "joy"})
    async with serve(tmp_path, "moods", listen, outer) as served:
        told = await served.post("/v1/classify", 404, inputs=["a"], labels=["b"])

    assert told["code"] == "task_not_found" and told["tasks"] == ["encode", "classify"]
    assert 'this model has "encode" and "classify"' in told["detail"]
