"""Decisions by Laya checkpoints of random weights, held to the laya library."""

import asyncio
import gc
import json
import math
import random
import time
import tracemalloc
from collections.abc import AsyncIterator
from typing import Any

import numpy as np
import pytest
import pytest_asyncio
import torch
from laya import Agent
from laya.common import build_sequence, collate_items, temp_bucket

from model.decisions import KINDS
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
from tests.laya_models import make_laya, open_library
from tests.replica_internals import stalled

CLOSE = 1e-5
STATE = "The refund was refused, and the customer is angry. Answer him today, caf\u00e9 [MASK]!"
TALK = [{"role": "user", "content": "Where is my parcel?"}, {"role": "agent", "content": "Lost"}]
QUESTIONS: dict[str, dict[str, Any]] = {
    "team": {
        "type": "choice",
        "instructions": "Which team answers?",
        "criteria": {
            "billing": "refunds and money",
            "delivery": None,
            "sales": {"new": ["a", 1.5]},
        },
    },
    "two": {"type": "choice", "instructions": {"ask": "Is it \u00e9?"}, "criteria": ["a", "b"]},
    "urgent": {
        "type": "score",
        "instructions": "How urgent is it?",
        "criteria": ["not at all", "soon", {"text": "now"}],
    },
    "level": {"type": "score", "instructions": "How?", "criteria": ["only"]},
    "refund": {"type": "noul", "instructions": "Does he want money?"},
    "lost": {
        "type": "noul",
        "instructions": "Is it lost?",
        "criteria": {"true": "it is lost", "false": None},
        "labels": {"true": "lost", "false": "here"},
        "option_order": [1, 0],
    },
    "many": {
        "type": "choice",
        "instructions": "Which of these?",
        "criteria": {f"option {place}": "x" * place for place in range(12)},
        "option_order": [5, 3, 0, 1, 2, 4, 11, 10, 9, 8, 7, 6],
    },
}


def written(value: Any) -> str:
    """A text, or one line of JSON."""
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def make_question(name: str, of: dict[str, Any]) -> DecisionQuestion:
    """A question of TypeSafe's API in our own form."""
    criteria, labels = of.get("criteria"), of.get("labels")
    if of["type"] == "noul":
        criteria = {key: (criteria or {}).get(key) for key in ("false", "true")}
    elif isinstance(criteria, list):
        pairs = enumerate(criteria) if of["type"] == "score" else ((one, None) for one in criteria)
        criteria = {str(key): value for key, value in pairs}
    options = [
        DecisionOption(name=key, description=None if value in (None, "") else written(value))
        for key, value in (criteria or {}).items()
    ]
    return DecisionQuestion(
        name=name,
        type=of["type"],
        instructions=written(of["instructions"]),
        options=options,
        labels=(labels["false"], labels["true"]) if labels else None,
        order=of.get("option_order"),
    )


def make_request(
    state: Any, questions: dict[str, dict[str, Any]] = QUESTIONS, **more: Any
) -> DecideRequest:
    """A request of some questions of a state."""
    made = [make_question(name, of) for name, of in questions.items()]
    return DecideRequest(
        state=written(state), turns=isinstance(state, list), questions=made, **more
    )


async def decide(replica: Replica, request: DecideRequest) -> list[dict[str, Any]]:
    """The facts of each question."""
    answer = await replica.gateway.encode(request, time.monotonic() + 60, Record("own"))
    return [dict(item.facts) for item in answer.items]


def internal(of: dict[str, Any]) -> dict[str, Any]:
    """A question as the library builds sequences of it."""
    criteria = of.get("criteria")
    if of["type"] == "choice" and isinstance(criteria, list):
        criteria = dict.fromkeys(criteria)
    made = {"t": of["type"], "ins": written(of["instructions"]), "crit": criteria}
    return {**made, **({"labels": of["labels"]} if "labels" in of else {})}


def build(agent: Agent, state: Any, of: dict[str, Any]) -> dict[str, Any]:
    """The sequence of a question, as the library builds and cuts it."""
    window = agent.cfg["max_len"], agent.cfg["head_max_len"]
    order, turns = of.get("option_order"), isinstance(state, list)
    ids, markers = build_sequence(
        agent.tok, state, internal(of), *window, option_order=order, truncate_left=turns
    )
    return {"ids": ids, "markers": markers, "qtype": KINDS.index(of["type"])}


def run(agent: Agent, *items: dict[str, Any]) -> list[list[float]]:
    """The library's logits of some sequences, in the order of their options."""
    batch = collate_items([items], agent.tok.pad_token_id)
    names = ("input_ids", "attention_mask", "marker_pos", "marker_mask", "qtype")
    with torch.no_grad():
        logits, _ = agent.model(*(batch[name] for name in names))
    return [row[: len(item["markers"])].tolist() for row, item in zip(logits, items, strict=True)]


def by_library(
    agent: Agent, state: Any, questions: dict[str, dict[str, Any]] = QUESTIONS
) -> list[list[float]]:
    """The library's probabilities before it rounds them, in each question's own order."""
    items = [build(agent, state, of) for of in questions.values()]
    found = []
    for item, row, of in zip(items, run(agent, *items), questions.values(), strict=True):
        scores = np.array(row) / temperature(agent, item["qtype"], len(row))
        powers = np.exp(scores - scores.max())
        own = np.empty(len(row))
        own[of.get("option_order", [*range(len(row))])] = powers / powers.sum()
        found.append(own.tolist())
    return found


def temperature(agent: Agent, kind: int, options: int) -> float:
    """What the library divides by."""
    found = agent.temperature_by_options.get(temp_bucket(kind, options), agent.temperature[kind])
    return float(found)


@pytest_asyncio.fixture(scope="module", params=[("modernbert", 2), ("mmbert", 1), ("bert", 0)])
async def pair(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[tuple[Replica, Agent]]:
    """A model served, and the same in the library."""
    kind, layers = request.param
    folder = tmp_path_factory.mktemp("laya") / kind
    make_laya(folder, kind=kind, head_layers=layers)
    replica = await Replica.start(Settings(model=str(folder), threads=1), "replica-1")
    yield replica, open_library(folder)
    await replica.close()


@pytest.mark.parametrize("state", [STATE, TALK, {"text": "Stra\u00dfe", "n": 1.0}, ""])
async def test_probabilities_are_the_librarys(pair: tuple[Replica, Agent], state: Any) -> None:
    """Of every kind of question, in the order that it asks for, at its temperature."""
    replica, agent = pair
    told = await decide(replica, make_request(state))

    for facts, expected in zip(told, by_library(agent, state), strict=True):
        assert facts["probabilities"] == pytest.approx(expected, abs=CLOSE), facts["name"]
        assert facts["winner"] == int(np.argmax(expected))


@pytest.mark.parametrize("turns", [False, True])
async def test_what_does_not_fit_is_cut_as_by_the_library_and_told(
    pair: tuple[Replica, Agent], turns: bool
) -> None:
    """A text keeps its beginning, a list its end; long options and instructions are cut too."""
    replica, agent = pair
    chance = random.Random(7)
    words = [chance.choice(STATE.split()) for _ in range(700)]
    state: Any = [{"content": word} for word in words] if turns else " ".join(words)
    options = {f"{place} is {' '.join(words[place::40])}": None for place in range(30)}
    questions = {
        "long": {"type": "choice", "instructions": " ".join(words[:99]), "criteria": options},
        "short": QUESTIONS["refund"],
    }
    told = await decide(replica, make_request(state, questions, truncate="right"))

    for facts, expected in zip(told, by_library(agent, state, questions), strict=True):
        assert facts["probabilities"] == pytest.approx(expected, abs=CLOSE)
    long, short = (facts["truncated"] for facts in told)
    assert long["options_cut"] > 0
    assert long["instructions_tokens_kept"] < long["instructions_tokens"]
    assert long["state_tokens_kept"] < short["state_tokens_kept"] < short["state_tokens"]


async def test_what_does_not_fit_is_refused_with_its_tokens_and_the_room(
    pair: tuple[Replica, Agent],
) -> None:
    """Of an option, of the instructions, of the state: in this order."""
    replica, _ = pair
    long = " ".join(STATE.split() * 90)
    asked = {"type": "choice", "instructions": "Which?", "criteria": {"a": long, "b": None}}
    parts = {
        ("questions", "a", "options", 0): (STATE, {"a": asked}),
        ("questions", "a", "instructions"): (STATE, {"a": {**asked, "instructions": long}}),
        ("state",): (long, QUESTIONS),
    }
    parts["questions", "a", "instructions"][1]["a"]["criteria"] = ["a", "b"]
    for loc, (state, questions) in parts.items():
        with pytest.raises(Refused, match="sequence_too_long") as refused:
            await decide(replica, make_request(state, questions))
        assert refused.value.faults[0].loc == loc
        assert 0 < refused.value.facts["limit"] < refused.value.facts["length"]


async def test_options_that_a_cut_makes_equal_are_refused(pair: tuple[Replica, Agent]) -> None:
    """Even where cuts are allowed: no answer could tell them apart."""
    replica, _ = pair
    long = "the customer is angry " * 30
    asked = {"type": "choice", "instructions": "Which?", "criteria": [long + "a", long + "b"]}
    for truncate in ("right", "refuse"):
        with pytest.raises(Refused) as refused:
            await decide(replica, make_request(STATE, {"a": asked}, truncate=truncate))
        assert refused.value.faults[0].loc[:3] == ("questions", "a", "options")


async def test_markers_beyond_the_window_are_refused(pair: tuple[Replica, Agent]) -> None:
    """255 options in a window of 512, of which the library drops some."""
    replica, agent = pair
    asked = {"type": "choice", "instructions": "Which?", "criteria": [f"n{i}" for i in range(255)]}
    assert len(build(agent, STATE, asked)["markers"]) < 255
    for truncate in ("right", "refuse"):
        with pytest.raises(Refused, match="out_of_range"):
            await decide(replica, make_request(STATE, {"a": asked}, truncate=truncate))


async def test_a_question_has_the_same_bits_alone_and_among_others(
    pair: tuple[Replica, Agent],
) -> None:
    """Whatever else is asked of the state."""
    replica, _ = pair
    together = await decide(replica, make_request(STATE))
    alone = [
        await decide(replica, make_request(STATE, {name: of})) for name, of in QUESTIONS.items()
    ]

    assert [facts for (facts,) in alone] == together


async def test_other_orders_are_those_of_a_request_that_asks_for_them(
    pair: tuple[Replica, Agent],
) -> None:
    """And the answer says how far the furthest is away."""
    replica, _ = pair
    asked = {name: QUESTIONS[name] for name in ("team", "lost", "level", "many")}
    told = await decide(replica, make_request(STATE, asked, orders=5))

    assert [len(facts["orders"]["tried"]) for facts in told] == [5, 1, 0, 5]
    for facts, (name, of) in zip(told, asked.items(), strict=True):
        moved = [0.0]
        for tried in facts["orders"]["tried"]:
            again = {name: {**of, "option_order": tried["order"]}}
            (other,) = await decide(replica, make_request(STATE, again))
            assert other["probabilities"] == tried["probabilities"] != facts["probabilities"]
            pairs = zip(other["probabilities"], facts["probabilities"], strict=True)
            moved.append(max(abs(one - two) for one, two in pairs))
        assert facts["orders"]["largest"] == pytest.approx(max(moved), abs=1e-6)


async def test_rows_of_marks_are_the_attention_of_the_librarys_layers(
    pair: tuple[Replica, Agent],
) -> None:
    """Of its head by torch's own weights; of the encoder by transformers' maps."""
    replica, agent = pair
    request = make_request(STATE, {"many": QUESTIONS["many"]}, attention=MarkerRows())
    answer = await replica.gateway.encode(request, time.monotonic() + 60, Record("own"))
    (item,) = answer.items
    asked, order = build(agent, STATE, QUESTIONS["many"]), QUESTIONS["many"]["option_order"]
    markers = [asked["markers"][order.index(place)] for place in range(12)]
    encoder = agent.model.encoder
    encoder.set_attn_implementation("eager")
    with torch.no_grad():
        made = encoder(input_ids=torch.tensor([asked["ids"]]), output_attentions=True)
        maps = [one[0] for one in made.attentions]
        x = made.last_hidden_state + agent.model.type_emb(torch.tensor([asked["qtype"]]))
        for layer in agent.model.head.layers if agent.model.head else ():
            read, own = layer.norm1(x), layer.self_attn
            _, found = torch.nn.MultiheadAttention.forward(
                own, read, read, read, need_weights=True, average_attn_weights=False
            )
            maps.append(found[0])
            x = layer(x)
    encoder.set_attn_implementation("sdpa")

    assert item.attention is not None
    assert item.attention["markers"] == markers
    assert len(item.arrays) == len(maps)
    for layer, expected in enumerate(maps):
        rows = expected[:, markers].numpy()
        assert item.arrays[f"attention.L{layer}"] == pytest.approx(rows, abs=CLOSE)


@pytest.mark.parametrize("level", ["word", "token"])
async def test_input_shares_and_the_rest_sum_to_the_margin(
    pair: tuple[Replica, Agent], level: Any
) -> None:
    """Of the first over the second, before any temperature."""
    replica, agent = pair
    reason = Reason(method="input", level=level)
    told = await decide(replica, make_request(STATE, reason=reason))

    for facts, of in zip(told, QUESTIONS.values(), strict=True):
        why = facts["reason"]
        if of is QUESTIONS["level"]:
            assert why is None and facts["reason_missing"]
            continue
        names, chances = facts["options"], facts["probabilities"]
        first, second = (chances[names.index(why[name])] for name in ("first", "second"))
        scale = temperature(agent, KINDS.index(of["type"]), len(names))
        assert why["margin"] == pytest.approx(math.log(first / second) * scale, abs=1e-4)
        parts = sum(part["share"] for part in why["parts"])
        assert parts + why["special"] + why["rest"] == pytest.approx(why["margin"], abs=CLOSE)
        assert [part["part"] for part in why["parts"]][:: len(why["parts"]) - 1] == [
            "instructions",
            "state",
        ]
        assert "".join(unit["text"] for unit in why["parts"][-1]["units"]).startswith("Therefund")


async def test_a_word_left_out_is_worth_what_the_margin_loses(
    pair: tuple[Replica, Agent],
) -> None:
    """By the library on the sequence without its tokens; a control stands next to it."""
    replica, agent = pair
    reason = Reason(method="alone", control=True)
    (facts,) = await decide(replica, make_request(STATE, {"a": QUESTIONS["refund"]}, reason=reason))
    why, (part,) = facts["reason"], facts["reason"]["parts"]
    item = build(agent, STATE, QUESTIONS["refund"])
    text = STATE.replace(agent.tok.mask_token, " ")
    places = agent.tok(text, add_special_tokens=False, return_offsets_mapping=True).offset_mapping
    first = len(item["ids"]) - 1 - len(places)

    def margin(spans: list[list[int]]) -> float:
        """The library's, without the tokens in these characters."""
        kept = [*range(first)]
        kept += [
            first + place
            for place, (start, end) in enumerate(places)
            if not any(start < last and end > begin for begin, last in spans)
        ]
        ids = [item["ids"][place] for place in [*kept, len(item["ids"]) - 1]]
        ((no, yes),) = run(agent, {**item, "ids": ids})
        return yes - no

    assert why["margin"] == pytest.approx(margin([]), abs=CLOSE)
    for unit in part["units"]:
        lost = why["margin"] - margin([unit["characters"]])
        assert unit["share"] == pytest.approx(lost, abs=2 * CLOSE)
    by_share = sorted(part["units"], key=lambda unit: -unit["share"])
    marked = [unit for unit in by_share[:3] if unit["share"] > 0]
    assert [unit["text"] for unit in marked] == why["control"]["left_out"]
    without = margin([unit["characters"] for unit in marked])
    assert why["control"]["without"] == pytest.approx(without, abs=2 * CLOSE)
    assert why["control"]["deviation"] > 0


@pytest.mark.parametrize("shown", [False, True])
async def test_what_waits_keeps_the_memory_that_it_is_counted_for(
    pair: tuple[Replica, Agent], shown: bool
) -> None:
    """Many sequences, with what is told of their tokens where it is."""
    replica, _ = pair
    asked = {f"q{place}": QUESTIONS["urgent"] for place in range(100)}
    more = {"attention": MarkerRows(layers=[0])} if shown else {}
    request, record = make_request(STATE * 3, asked, **more), Record("own")
    await decide(replica, make_request(STATE))  # what is kept for good is made
    gc.collect()
    with stalled(replica.batcher):
        tracemalloc.start()
        try:
            running = replica.gateway.encode(request, time.monotonic() + 60, record)
            task = asyncio.create_task(running)
            async with asyncio.timeout(60):
                while not replica.batcher.waiting_requests:
                    await asyncio.sleep(0.01)
            gc.collect()
            grown, _ = tracemalloc.get_traced_memory()
            held = dict(record.hold.bytes)
        finally:
            tracemalloc.stop()
            task.cancel()
            await asyncio.wait([task])

    counted = held["bodies"] + held["arrays"]  # of which the answer's are yet to be made
    print(f"counted {counted / 1024:.0f} KiB, kept {grown / 1024:.0f}: {grown / counted:.2f}")
    assert 0.5 * counted < grown < 1.1 * counted
