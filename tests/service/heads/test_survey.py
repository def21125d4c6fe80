"""service/heads/survey.py: a corpus through a model, and what is said of its heads."""

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import Tokenizer as Library
from tokenizers import models

from model import kernels
from model.errors import SequenceTooLong
from model.loading import checkpoint
from model.loading.checkpoint import Model
from model.text.tokenizer import Tokenizer
from service.api.document import document
from service.heads import sentences, store, survey
from service.heads.survey import NO_HEAD, survey_heads
from service.pipeline.replica import Replica
from service.shapes.work import Result, Work
from tests.decoders import embedder

CATS = {"relation": "subject", "text": "Cats sleep.", "from": [5, 10], "to": [0, 4]}


@pytest.fixture(autouse=True)
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two sentences at most to measure mechanisms on, which takes most of the time."""
    monkeypatch.setattr(survey, "EXPLAINED_SENTENCES", 2)


@pytest.fixture
def model(replica: Replica) -> Model:
    """The bundled model; its tokenizer and its sizes matter here."""
    return replica.lanes.model


def shown(maps: torch.Tensor) -> Result:
    """What a work shows whose heads have these maps, dealt to layers of 12."""
    layers = maps.numpy().reshape(-1, 12, *maps.shape[1:])
    heads = {i: {"map": of} for i, of in enumerate(layers)}
    return Result(made={"attention": {"heads": heads}})


async def planted(works: Sequence[Work]) -> list[Result]:
    """72 heads that look everywhere alike, L3H1 at the first word a little more."""
    every = []
    for work in works:
        maps = torch.full((72, len(work), len(work)), 1 / len(work))
        maps[37, :, 1] += 0.1
        every.append(shown(maps))
    return every


def corpus(folder: Path, *lines: dict[str, Any]) -> sentences.Corpus:
    """A user's corpus."""
    path = folder / "mine.jsonl"
    path.write_text("\n".join(map(json.dumps, lines)))
    return sentences.read_corpus(path)


def animals(**more: Any) -> list[dict[str, Any]]:
    """Sentences about animals, the verb ever farther from the subject."""
    lines = []
    for number, animal in enumerate(["Cats", "Dogs", "Owls", "Cows", "Bats"]):
        text = f"{animal} {'very ' * number}often sleep."
        start = text.index("sleep")
        lines.append({**CATS, "text": text, "from": [start, start + 5], **more})
    return lines


async def test_a_planted_head_is_found_with_its_control(model: Model, tmp_path: Path) -> None:
    """The other 71 are not; the numbers stand at the head and at the relation."""
    chosen = corpus(tmp_path, *animals(), *animals(control=True))

    found = await survey_heads(model, "m", chosen, planted)

    told = found["relations"]["subject"]
    assert (told["found"], told["head"], told["kind"]) == ("L3H1", "L3H1", None)
    assert (told["score"], told["baseline"], told["threshold"]) == (1.0, 0.2, 0.3)
    labelled = [head for head in found["heads"] if head["role"] == "subject"]
    assert [(head["layer"], head["head"]) for head in labelled] == [(3, 1)]
    assert {head["role"] for head in found["heads"] if head not in labelled} == {"broad"}
    assert labelled[0]["score"] == 1.0 and labelled[0]["baseline"] == 0.2
    going = {(head["layer"], head["head"]) for head in found["heads"] if head["mechanism"]}
    assert (0, 2) in going and {layer for layer, _ in going} == {0}
    assert [role["role"] for role in labelled[0]["also"]] == ["broad"]


async def test_a_decoder_is_held_to_what_it_may_see(tmp_path: Path) -> None:
    """A sink on its first token, which is no special one, is found, and its baseline is causal."""
    plain, folder = tmp_path / "plain", tmp_path / "decoder"
    cpu, ways = torch.device("cpu"), kernels.choose_kernels(torch.device("cpu"), torch.float32)
    decoder = checkpoint.load_checkpoint(embedder(plain, folder), cpu, torch.float32, ways)

    async def attend(works: Sequence[Work]) -> list[Result]:
        every = []
        for work in works:
            heads = torch.ones(24, len(work), len(work)).tril()
            heads[7, :, 0] += 4 * len(work)
            every.append(shown(heads / heads.sum(2, keepdim=True)))
        return every

    found = await survey_heads(decoder, "d", corpus(tmp_path, *animals()), attend)

    told = {head["role"]: head for head in found["heads"]}
    sink, broad = told["delimiter sink"], told["broad"]
    assert {*told} == {"delimiter sink", "broad"} and (sink["layer"], sink["head"]) == (1, 1)
    assert sink["measures"]["next"] is None and sink["baseline"] == broad["measures"]["special"]
    assert (broad["score"], broad["baseline"]) == (1.0, 1.0)


async def test_without_a_control_no_head_is_named(model: Model, tmp_path: Path) -> None:
    """The answer says so in words, with the reason."""
    found = await survey_heads(model, "m", corpus(tmp_path, *animals()), planted)

    told = found["relations"]["subject"]
    assert (told["head"], told["found"]) == (None, NO_HEAD)
    assert told["reason"] == "no controls to judge it by"
    assert not [head for head in found["heads"] if head["role"] == "subject"]


async def test_a_head_that_fails_its_controls_is_told_and_not_named(
    model: Model, tmp_path: Path
) -> None:
    """The candidate and its score stand at the relation alone."""
    wrong = [{**line, "to": [5, 9]} for line in animals(control=True)[1:]]
    chosen = corpus(tmp_path, *animals(), *wrong)

    found = await survey_heads(model, "m", chosen, planted)

    told = found["relations"]["subject"]
    assert (told["found"], told["candidate"], told["score"]) == (NO_HEAD, "L3H1", 0.0)
    assert {head["role"] for head in found["heads"]} == {"broad"}


async def test_a_tokenizer_without_words_leaves_the_roles_by_position(
    model: Model, tmp_path: Path
) -> None:
    """A token that holds the whole text belongs to no word."""
    Library(models.WordLevel({"[UNK]": 0}, unk_token="[UNK]")).save(str(tmp_path / "t.json"))
    wordless = replace(model, tokenizer=Tokenizer(tmp_path / "t.json"))
    chosen = corpus(tmp_path, *animals(), *animals(control=True))

    async def attend(works: Sequence[Work]) -> list[Result]:
        return [shown(torch.ones(72, 1, 1)) for _ in works]

    found = await survey_heads(wordless, "m", chosen, attend)

    told = found["relations"]["subject"]
    assert (told["head"], told["reason"]) == (None, "the tokenizer gives no words")
    assert told["score"] is None and told["baseline"] is None
    assert {head["role"] for head in found["heads"]} == {"self"}


async def test_a_sentence_that_is_too_long_is_named_by_its_place(
    model: Model, tmp_path: Path
) -> None:
    """Nothing is cut in silence."""
    long = {**CATS, "text": "Cats sleep" + " well" * 300}

    with pytest.raises(SequenceTooLong) as refused:
        await survey_heads(model, "m", corpus(tmp_path, CATS, long), planted)

    assert refused.value.index == 1


async def test_the_document_names_every_field(model: Model, tmp_path: Path) -> None:
    """And no other."""
    found = await survey_heads(model, "m", corpus(tmp_path, *animals()), planted)

    def fields(schema: str) -> set[str]:
        return set(document()["components"]["schemas"][schema]["properties"])

    assert fields("Heads") == found.keys()
    assert fields("Corpus") == found["corpus"].keys()
    assert fields("MeasuredHead") == found["heads"][0].keys()
    assert fields("Mechanism") == found["heads"][2]["mechanism"].keys()
    assert fields("Relation") == found["relations"]["subject"].keys()


def test_the_bundled_model_has_the_heads_that_are_known_of_it() -> None:
    """One previous-token head, one next-token head, sinks; no coreference head on the swaps."""
    found = store.read_stored("sha256:5fc648cb18e4")
    assert found is not None
    by_place = {(head["layer"], head["head"]): head for head in found["heads"]}

    assert len(by_place) == 72
    assert by_place[0, 2]["role"] == "previous" and by_place[0, 2]["score"] > 0.99
    assert by_place[1, 8]["role"] == "next" and 0.55 < by_place[1, 8]["score"] < 0.65
    for place in ((4, 5), (2, 9), (2, 7)):
        assert by_place[place]["role"] == "delimiter sink"
        assert by_place[place]["measures"]["cls"] > 0.8
    assert found["relations"]["coreference"]["found"] == NO_HEAD
    assert by_place[5, 11]["role"] is None


def test_the_bundled_model_has_heads_that_go_by_position_and_by_words() -> None:
    """One tells the token before by position; no share is named that shuffled weights have too."""
    found = store.read_stored("sha256:5fc648cb18e4")
    assert found is not None
    by_place = {(head["layer"], head["head"]): head["mechanism"] for head in found["heads"]}

    told = {place: made for place, made in by_place.items() if made}
    pairs = {place: (made["query"], made["key"]) for place, made in told.items()}
    assert pairs == {(0, 2): ("position", "position"), (0, 9): ("rest", "word")}
    assert all(made["share"] > 0.85 > made["control"] > 0.6 for made in told.values())


def test_every_label_of_the_bundled_model_has_its_control() -> None:
    """Score, threshold and baseline; of a relation, as many points above as are promised."""
    found = store.read_stored("sha256:5fc648cb18e4")
    assert found is not None

    for head in found["heads"]:
        for role in [head, *head["also"]] if head["role"] else []:
            assert role["score"] >= role["threshold"] and role["baseline"] is not None
            if role["role"] in found["relations"]:
                told = found["relations"][role["role"]]
                assert told["head"] == f"L{head['layer']}H{head['head']}"
                assert role["score"] >= role["baseline"] + 0.1 and told["controls"] >= 20
