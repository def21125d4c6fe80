"""Decisions by a model of entailment, held to transformers' pipeline for zero-shot."""

import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio
import torch
import transformers
from transformers import AutoTokenizer

from service.pipeline.replica import Replica
from service.questions.decide import (
    DecideRequest,
    DecisionOption,
    DecisionQuestion,
    MarkerRows,
    Reason,
)
from service.shapes.record import Record
from service.tables.refusals import Refused
from service.tables.settings import Settings
from tests.task_heads import MOST, checkpoint

STATE = "The parcel arrived, and the box was broken."
CLASSES = {0: "contradiction", 1: "neutral", 2: "entailment"}
CLOSE = 1e-5


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small BERT of three classes."""
    made = tmp_path_factory.mktemp("entailment")
    names = {"id2label": CLASSES, "label2id": {name: id for id, name in CLASSES.items()}}
    checkpoint(made, "ForSequenceClassification", **names)
    tokenizer = AutoTokenizer.from_pretrained(made)
    tokenizer.model_max_length = MOST
    tokenizer.save_pretrained(made)
    return made


@pytest_asyncio.fixture(scope="module")
async def replica(folder: Path) -> AsyncIterator[Replica]:
    """The model, served."""
    replica = await Replica.start(Settings(model=str(folder), threads=1), "replica-1")
    yield replica
    await replica.close()


@pytest.fixture(scope="module")
def pipeline(folder: Path) -> Any:
    """The library's pipeline of it."""
    return transformers.pipeline("zero-shot-classification", str(folder), device="cpu")


def ask(name: str, instructions: str | None, *options: str, **more: Any) -> DecisionQuestion:
    """A question of one of several options, each a name and perhaps a description."""
    pairs = [one.partition("|") for one in options]
    made = [DecisionOption(name=name, description=text or None) for name, _, text in pairs]
    return DecisionQuestion(
        **{"name": name, "type": "choice", "instructions": instructions, "options": made, **more}
    )


def yes_or_no(instructions: str | None, yes: str = "") -> DecisionQuestion:
    """A question of yes or no."""
    return ask("", instructions, "false", f"true|{yes}", type="noul")


async def decide(
    replica: Replica, *questions: DecisionQuestion, state: str = STATE, **more: Any
) -> list[dict[str, Any]]:
    """The facts of each question of a state."""
    request = DecideRequest(state=state, questions=list(questions), **more)
    answer = await replica.gateway.encode(request, time.monotonic() + 60, Record("own"))
    return [dict(item.facts) for item in answer.items]


@pytest.mark.parametrize(
    ("instructions", "template"),
    [("This is about {}.", "This is about {}."), ("About", "About {}"), (None, None)],
)
async def test_options_are_scored_as_labels_by_the_pipeline(
    replica: Replica, pipeline: Any, instructions: str | None, template: str | None
) -> None:
    """A description goes with its name; without instructions the pipeline's own template holds."""
    told, level = await decide(
        replica,
        ask("a", instructions, "damage|something is broken", "delay", "praise"),
        ask("b", instructions, "0|calm", "1|urgent", type="score"),
    )

    how = {} if template is None else {"hypothesis_template": template}
    labels = ["damage: something is broken", "delay", "praise"]
    made = pipeline(STATE, candidate_labels=labels, **how)
    expected = dict(zip(made["labels"], made["scores"], strict=True))
    assert told["probabilities"] == pytest.approx([expected[label] for label in labels], abs=CLOSE)
    assert labels[told["winner"]] == made["labels"][0]
    levels = pipeline(STATE, candidate_labels=["calm", "urgent"], **how)
    urgent = dict(zip(levels["labels"], levels["scores"], strict=True))["urgent"]
    assert level["score"] == pytest.approx(urgent, abs=CLOSE)


@pytest.mark.parametrize(
    ("instructions", "yes", "hypothesis"),
    [
        ("The box is broken.", "", "The box is broken."),
        ("It is so:", "the box is broken", "It is so: the box is broken"),
        (None, "the box is broken", "the box is broken"),
    ],
)
async def test_yes_is_entailment_against_contradiction(
    replica: Replica, pipeline: Any, instructions: str | None, yes: str, hypothesis: str
) -> None:
    """Neutral does not count."""
    (told,) = await decide(replica, yes_or_no(instructions, yes))

    inputs = pipeline.tokenizer(STATE, hypothesis, return_tensors="pt")
    with torch.no_grad():
        logits = pipeline.model(**inputs).logits[0, [0, 2]]
    assert told["probabilities"] == pytest.approx(logits.softmax(0).tolist(), abs=CLOSE)


async def test_a_question_that_says_nothing_is_refused(replica: Replica) -> None:
    """Neither instructions nor what yes means."""
    with pytest.raises(Refused) as refused:
        await decide(replica, yes_or_no(None))

    assert refused.value.faults[0].loc == ("questions", "", "instructions")


async def test_a_state_that_is_too_long_is_refused_or_cut_and_told(replica: Replica) -> None:
    """A list of turns keeps its end."""
    long, question = "broken " + "fine " * MOST, ask("a", "It is {}.", "broken", "fine")
    with pytest.raises(Refused, match="sequence_too_long"):
        await decide(replica, question, state=long)
    (first,) = await decide(replica, question, state=long, truncate="right")
    (last,) = await decide(replica, question, state=long, truncate="right", turns=True)

    assert first["truncated"]["tokens_kept"] == MOST < first["truncated"]["tokens"]
    assert first["probabilities"] != last["probabilities"]


@pytest.mark.parametrize("method", ["alone", "input"])
async def test_a_reason_is_of_the_margin_of_entailments(
    replica: Replica, pipeline: Any, method: Any
) -> None:
    """Of the first option over the second, or of yes over no; the state is one part of both."""
    reason = Reason(method=method, control=True)
    choice = ask("a", "It is {}.", "broken", "fine", "late")
    told = await decide(replica, choice, yes_or_no("The box is broken."), reason=reason)

    for facts, classes in zip(told, ([2, 2], [2, 0]), strict=True):
        why = facts["reason"]
        firsts = [f"It is {why['first']}.", f"It is {why['second']}."]
        hypotheses = firsts if facts is told[0] else ["The box is broken."] * 2
        inputs = [pipeline.tokenizer(STATE, one, return_tensors="pt") for one in hypotheses]
        with torch.no_grad():
            logits = [pipeline.model(**each).logits[0] for each in inputs]
        first, second = (float(one[place]) for one, place in zip(logits, classes, strict=True))
        assert why["margin"] == pytest.approx(first - second, abs=CLOSE)
        state = next(part for part in why["parts"] if part["part"] == "state")
        assert [unit["text"] for unit in state["units"]][:2] == ["The", "parcel"]
        assert why["control"] is None or why["control"]["left_out"]
        if method == "input":
            total = sum(part["share"] for part in why["parts"]) + why["special"] + why["rest"]
            assert total == pytest.approx(why["margin"], abs=CLOSE)


async def test_attention_of_marks_is_refused_where_there_are_none(replica: Replica) -> None:
    """Each option is a pair of its own."""
    with pytest.raises(Refused, match="out_of_range"):
        await decide(replica, ask("a", "It is {}.", "b", "c"), attention=MarkerRows())
