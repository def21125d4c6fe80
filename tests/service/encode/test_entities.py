"""Entities of a request's own labels over HTTP, held to gliner: its formulas, and what it found."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from tests.gliner import CASES, LABELS, STORED, TEXTS, TOKENS, WIDTH, WORDS, Reference, save
from tests.served import Listen, Outer, Served, serve
from tests.task_heads import checkpoint

pytestmark = pytest.mark.asyncio(loop_scope="session")

CLOSE = 1e-5
KINDS: dict[str, dict[str, Any]] = {
    "marked": {},
    "without its marks": {"marked": False},
    "without an LSTM": {"num_rnn_layers": 0},
    "of the encoder's size": {"hidden_size": WIDTH},
    "of single words": {"max_width": 1},
}
LONG = "the dog ate the food " * 5
Row = tuple[int, int, str, float]


class Gliner:
    """A served model, and its formulas."""

    def __init__(self, served: Served, folder: Path) -> None:
        self.served, self.reference = served, Reference(folder)

    async def told(self, *inputs: str, **body: Any) -> list[dict[str, Any]]:
        """What POST /v1/entities answers to some texts."""
        asked = {"inputs": inputs, "labels": LABELS, **body}
        found: list[dict[str, Any]] = (await self.served.post("/v1/entities", **asked))["data"]
        return found

    async def found(self, *inputs: str, **body: Any) -> list[list[Row]]:
        """The entities of some texts."""
        return [rows(one) for one in await self.told(*inputs, **body)]


def rows(told: dict[str, Any]) -> list[Row]:
    """The entities of one text."""
    return [(*one["span"], one["label"], one["score"]) for one in told["entities"]]


def alike(found: list[Row], expected: list[Row]) -> None:
    """The same spans and labels in the same order, and scores as close as float32 allows."""
    assert [tuple(one[:3]) for one in found] == [tuple(one[:3]) for one in expected]
    assert [one[3] for one in found] == pytest.approx([one[3] for one in expected], abs=CLOSE)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def every(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[dict[str, Gliner]]:
    """One of each kind, each on a port of its own."""
    async with AsyncExitStack() as stack:
        found = {}
        for kind, choices in KINDS.items():
            folder = tmp_path_factory.mktemp("gliner")
            save(folder, **choices)
            served = await stack.enter_async_context(serve(folder, "gliner", listen, outer))
            found[kind] = Gliner(served, folder)
        yield found


@pytest.fixture
def gliner(every: dict[str, Gliner]) -> Gliner:
    """The first of them."""
    return every["marked"]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("threshold", "several"), CASES)
async def test_entities_are_those_of_gliners_formulas(
    every: dict[str, Gliner], kind: str, threshold: float, several: bool
) -> None:
    """Over the encoder of transformers, whether or not the tokenizer has the marks."""
    one = every[kind]
    found = await one.found(*TEXTS, threshold=threshold, multi_label=several)

    for text, own in zip(TEXTS, found, strict=True):
        alike(own, one.reference.entities(text, LABELS, threshold, several))


@pytest.mark.parametrize("kind", ["marked", "without its marks"])
async def test_entities_are_those_that_gliner_itself_found(
    every: dict[str, Gliner], kind: str
) -> None:
    """Numbers of gliner 0.2.29; tests/gliner.py wrote them."""
    stored, count = json.loads(STORED.read_text()), 0
    for (threshold, several), texts in zip(CASES, stored, strict=True):
        found = await every[kind].found(*TEXTS, threshold=threshold, multi_label=several)
        for own, expected in zip(found, texts, strict=True):
            alike(own, [tuple(row) for row in expected])
            count += len(own)

    assert count > 50


async def test_every_score_above_zero_is_that_of_the_formulas(gliner: Gliner) -> None:
    """A label alone, at a threshold that leaves all its spans in the race."""
    for label in LABELS:
        (found,) = await gliner.found(TEXTS[1], labels=[label], threshold=0)
        alike(found, gliner.reference.entities(TEXTS[1], [label], 0, False))


async def test_an_entity_is_what_stands_in_the_text(gliner: Gliner) -> None:
    """By characters, of more than one byte too."""
    for text, told in zip(TEXTS, await gliner.told(*TEXTS, threshold=0.3), strict=True):
        for one in told["entities"]:
            start, end = one["span"]
            assert one["text"] == text[start:end] == one["text"].strip()


async def test_no_two_entities_overlap(gliner: Gliner) -> None:
    """But a span comes with several labels where the request allows it."""
    (single,) = await gliner.found(TEXTS[-1], threshold=0)
    (several,) = await gliner.found(TEXTS[-1], threshold=0, multi_label=True)

    assert all(one[1] <= two[0] for one, two in zip(single, single[1:], strict=False))
    assert [*dict.fromkeys(row[:2] for row in several)] == [row[:2] for row in single]
    assert len(several) == len(LABELS) * len(single)


async def test_a_text_has_the_same_bits_in_any_batch(gliner: Gliner) -> None:
    """Alone, among others, and in another order."""
    together = await gliner.told(*TEXTS, threshold=0.3)
    turned = await gliner.told(*TEXTS[::-1], threshold=0.3)
    alone = [(await gliner.told(text, threshold=0.3))[0] for text in TEXTS]

    assert alone == together == turned[::-1]
    assert any(one["entities"] for one in alone)


@pytest.mark.parametrize("side", ["right", "left"])
async def test_a_text_of_too_many_words_loses_those_on_one_side(gliner: Gliner, side: str) -> None:
    """Where the request says so; else it is refused, with its words and the limit."""
    words = LONG.split()
    kept = words[:WORDS] if side == "right" else words[-WORDS:]
    (cut,) = await gliner.told(LONG.strip(), truncate=side, threshold=0)
    (own,) = await gliner.found(" ".join(kept), threshold=0)
    refused = await gliner.served.post("/v1/entities", 422, inputs=["a", LONG], labels=LABELS)

    shift = 0 if side == "right" else len(" ".join(words)) - len(" ".join(kept))
    assert len(words) > WORDS and cut["truncated"] is True and cut["length"] > 0
    assert rows(cut) == [(start + shift, end + shift, *rest) for start, end, *rest in own]
    assert refused["code"] == "sequence_too_long"
    assert refused["errors"][0]["loc"] == ["inputs", 1]
    assert (refused["length"], refused["limit"]) == (len(words), WORDS)
    assert f"it has {len(words)} words, and the model takes at most {WORDS}" in refused["detail"]


@pytest.mark.parametrize("side", ["right", "left"])
async def test_a_text_of_too_many_tokens_loses_whole_words(gliner: Gliner, side: str) -> None:
    """Each of these is read letter by letter."""
    text = " ".join(["zyxwvut"] * 12 + ["the"])
    (cut,) = await gliner.told(text, truncate=side, threshold=0)
    refused = await gliner.served.post("/v1/entities", 422, inputs=[text], labels=LABELS)

    assert cut["truncated"] is True and cut["length"] == refused["length"] > TOKENS
    assert refused["limit"] == TOKENS
    covered = {cut["entities"][0]["span"][0], cut["entities"][-1]["span"][1]}
    assert (0 in covered, len(text) in covered) == (side == "right", side == "left")


async def test_labels_that_leave_no_room_are_refused_whatever_is_cut(gliner: Gliner) -> None:
    """Labels are never cut."""
    body = {"inputs": ["the dog"], "labels": ["zyxwvut " * 20], "truncate": "right"}
    told = await gliner.served.post("/v1/entities", 422, **body)

    assert told["code"] == "sequence_too_long" and told["length"] > TOKENS


@pytest.mark.parametrize(
    ("label", "said"),
    [("a <<ENT>> b", "stands around labels"), ("<<SEP>>", "stands around"), (" ", "no token")],
)
async def test_a_label_that_cannot_be_searched_for_is_refused(
    gliner: Gliner, label: str, said: str
) -> None:
    """By its place: a mark in it would be another label."""
    body = {"inputs": ["the dog"], "labels": ["food", label]}
    told = await gliner.served.post("/v1/entities", 422, **body)

    assert told["code"] == "out_of_range" and told["errors"][0]["loc"] == ["labels", 1]
    assert said in told["detail"]


async def test_marks_in_a_text_are_read_as_any_text(gliner: Gliner) -> None:
    """Sign by sign, as gliner does."""
    text = "the <<ENT>> dog <<SEP>>"
    (found,) = await gliner.found(text, threshold=0.3)

    alike(found, gliner.reference.entities(text, LABELS, 0.3, False))


async def test_the_attention_is_that_between_labels_and_words(gliner: Gliner) -> None:
    """Which /v1/encode shows of the same ids; it changes no entity."""
    (told,) = await gliner.told(TEXTS[1], threshold=0.3, attention={"heads": "L1H2"})
    (plain,) = await gliner.told(TEXTS[1], threshold=0.3)
    ids = {"token_ids": told["token_ids"]}
    (expected,) = await gliner.served.encode(ids, pooled=False, attention={"heads": "L1H2"})

    assert told["entities"] == plain["entities"] and "tokens" not in plain
    assert told["tokens"].count("<<ENT>>") == len(LABELS)
    assert told["attention"]["maps"] == expected["attention"]["maps"]
    places = [told["words"].index(word) for word in (1, 2)]
    assert [TEXTS[1][slice(*told["offsets"][place])] for place in places] == ["dog", "ate"]
    assert all(told["special"][: told["words"].index(0)])


async def test_gates_change_what_is_found(gliner: Gliner) -> None:
    """As they change every pass."""
    gates = [{"layer": 0, "head": head, "scale": 0.0} for head in range(3)]
    (told,) = await gliner.found(TEXTS[1], threshold=0, gates=gates)
    (plain,) = await gliner.found(TEXTS[1], threshold=0)

    assert told != plain


async def test_a_dry_run_says_what_it_costs(gliner: Gliner) -> None:
    """In tokens of labels and texts, as the answer counts them, and never less than it weighs."""
    body = {"inputs": TEXTS, "labels": LABELS, "threshold": 0, "multi_label": True}
    priced = await gliner.served.post("/v1/entities?dry_run=true", **body)
    told = await gliner.served.post("/v1/entities", **body)

    assert priced["admitted"] is True and priced["flops"] > 0
    for name in ("tokens", "answer_bytes"):
        assert priced[name] == told["usage"][name] > 0
    found = [one for text in told["data"] for one in text["entities"]]
    weighed = sum(len((one["text"] + one["label"]).encode()) + 16 for one in found)
    assert told["usage"]["answer_bytes"] >= weighed


async def test_what_a_model_can_do_says_so(gliner: Gliner) -> None:
    """GET /info; its encoder encodes as any."""
    info = (await gliner.served.http.get("/info")).json()

    assert info["tasks"] == ["encode", "entities"]


async def test_a_model_without_the_head_is_refused(
    tmp_path: Path, listen: Listen, outer: Outer
) -> None:
    """By what it can do."""
    checkpoint(tmp_path, "ForTokenClassification")
    async with serve(tmp_path, "tags", listen, outer) as served:
        told = await served.post("/v1/entities", 404, inputs=["a"], labels=["b"])

    assert told["code"] == "task_not_found" and told["tasks"] == ["encode", "label_tokens"]
