"""The small trained decision model of examples/decisions: its files, its answers, its pairs."""

import hashlib
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import laya
import pytest
import torch
from laya.common import QTYPES, build_sequence

from model.packing import Sequence
from tests.model.loads import load

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / "examples" / "decisions"
sys.path.append(str(FOLDER))

import head  # noqa: E402  a script's neighbours
import make  # noqa: E402
import pairs  # noqa: E402
import sentences  # noqa: E402

README = (FOLDER / "README.md").read_text()
FEW, MARGIN = 15, 0.25  # held-out examples of each kind; of their share
STATE = "The lamp arrived broken. Please answer immediately."
QUESTIONS: dict[str, dict[str, Any]] = {
    "topic": {
        "type": "choice",
        "instructions": "What is the message about?",
        "criteria": {"billing": None, "delivery": None, "login": None},
    },
    "urgency": {
        "type": "score",
        "instructions": "How urgent is it?",
        "criteria": ["no hurry", "this week", "at once"],
    },
    "damaged": {"type": "noul", "instructions": "Is the item damaged?"},
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What make.py writes."""
    folder = tmp_path_factory.mktemp("decisions")
    make.write_folder(folder, head.read_head(), make.read_temperatures())
    return folder


@pytest.fixture(scope="module")
def agent(folder: Path) -> laya.Agent:
    """Laya's own agent of the folder."""
    return laya.load(str(folder), device="cpu")


def test_this_service_reads_the_folder_as_the_library_does(folder: Path, agent: laya.Agent) -> None:
    """The same logits for a question of each kind."""
    model = load(folder)
    (decider,) = model.task_heads
    assert decider.tasks == ("decide",)
    for kind, question in [(asked["type"], asked) for asked in QUESTIONS.values()]:
        internal = {"t": kind, "ins": question["instructions"], "crit": question.get("criteria")}
        ids, markers = build_sequence(agent.tok, STATE, internal)[:2]
        given, places = torch.tensor([ids]), torch.tensor([markers])
        with torch.inference_mode():
            encoded = model.encoder(model.encoder.pack([Sequence(ids)]))
            last = encoded.last[encoded.packed.rows(0)]
            ours = replace(decider, kind=kind, markers=markers)(last)["logits"]
            theirs, _ = agent.model(
                given, torch.ones_like(given), places, places >= 0, torch.tensor([QTYPES[kind]])
            )
        torch.testing.assert_close(ours, theirs[0], rtol=0, atol=1e-4)


@pytest.mark.parametrize(
    ("state", "topic", "urgency", "damaged"),
    [
        ("I forgot my password. Please answer immediately.", "login", 2, False),
        ("The parcel is late, and the lamp in it was broken.", "delivery", None, True),
        ("I was charged twice. There is no hurry at all.", "billing", 0, False),
    ],
)
def test_the_library_loads_the_folder_and_answers_plain_questions(
    agent: laya.Agent, state: str, topic: str, urgency: int | None, damaged: bool
) -> None:
    """One of each kind."""
    answers = agent.system_one(state, QUESTIONS)["answers"]

    assert answers["topic"]["choice"] == topic
    assert urgency is None or pairs.best(answers["urgency"]) == urgency
    assert (answers["damaged"]["noul"] > 0.5) == damaged


def test_the_readme_states_the_committed_head() -> None:
    """Its bytes and its digest."""
    weights = head.WEIGHTS.read_bytes()

    assert f"{len(weights):,} bytes" in README and len(weights) < 1_000_000
    assert hashlib.sha256(weights).hexdigest() in README


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param(kind, marks=() if kind == "noul" else pytest.mark.prove)
        for kind in sentences.SHARES
    ],
)
def test_held_out_answers_are_as_right_as_the_readme_says(agent: laya.Agent, kind: str) -> None:
    """Less a margin, since only a few are asked."""
    (stated,) = re.findall(rf"^\| {kind} \| [\d.]+ \| ([\d.]+) \|", README, re.MULTILINE)
    drawer = sentences.Drawer("held", seed=1)
    right = 0
    for _ in range(FEW):
        state, question, answer = drawer.draw_one(kind)
        asked = agent.system_one(state, {"asked": question})["answers"]["asked"]
        right += pairs.best(asked) == answer

    assert right / FEW >= float(stated) - MARGIN


def test_the_two_parts_of_the_sentences_share_no_template() -> None:
    """Nor an instruction or a sentence."""
    texts = {part: set[str]() for part in sentences.PARTS}
    for group in sentences.read_data()["groups"].values():
        for part in sentences.PARTS:
            texts[part] |= {*group["frames"][part], *group["ask"][part]}
            for members in group["classes"].values():
                texts[part] |= {*members["sentences"][part]}

    assert len(texts["train"]) > 200 and len(texts["held"]) > 100
    assert texts["train"] & texts["held"] == set()


def test_each_pair_is_of_the_pool_and_one_word_tells_its_states_apart() -> None:
    """The word stands where the pair says."""
    pool = [pair._asdict() for pair in pairs.make_pool()]
    kept = pairs.read_pairs()

    assert len(pool) == pairs.POOL and len(kept) == pairs.KEPT
    for pair in kept:
        assert pair in map(plain, pool)
        one, other = pair["states"]
        (first, end), (_, other_end) = pair["characters"]
        assert one[:first] == other[:first] and one[end:] == other[other_end:]
        assert one[first:end] != other[first:other_end] and " " not in one[first:end]


@pytest.mark.parametrize("step", [8, pytest.param(1, marks=pytest.mark.prove)])
def test_the_library_answers_both_states_of_every_pair_rightly(
    agent: laya.Agent, step: int
) -> None:
    """With the committed head; here of some pairs."""
    for pair in pairs.read_pairs()[::step]:
        for state, answer in zip(pair["states"], pair["answers"], strict=True):
            asked = agent.system_one(state, {"asked": pair["question"]})["answers"]["asked"]
            assert pairs.best(asked) == answer, pair


def plain(pair: dict[str, Any]) -> dict[str, Any]:
    """Return a pair with lists in place of tuples, as JSON has them."""
    return {
        **pair,
        "states": list(pair["states"]),
        "answers": list(pair["answers"]),
        "characters": [list(span) for span in pair["characters"]],
    }
