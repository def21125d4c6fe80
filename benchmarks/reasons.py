"""How often a decision's reason puts the word that decides first, next to chance and to controls.

    PYTHONPATH=. python benchmarks/reasons.py > benchmarks/reasons.json

The model is the small trained head of examples/decisions on the bundled encoder; the states are its
40 held-out pairs, each of two states that differ in one word, and by it in the right answer, which
the model gives. Of each state every method ranks the words:

    alone       by the margin of the right answer over the runner-up that is lost without the word
    input       by the word's exact share of that margin
    attention   by what the right option's mask token attends to in the head's last layer

A word of the reason counts as the deciding one where they share a character. Chance is one word in
all; the control is the margin without the three strongest words and without as many others.
"""

import asyncio
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from served import machine

from service.pipeline.replica import Replica
from service.questions.decide import (
    DecideRequest,
    DecisionOption,
    DecisionQuestion,
    MarkerRows,
    Reason,
)
from service.shapes.answer import AnswerItem
from service.shapes.record import Record
from service.tables.settings import Settings

EXAMPLES = Path(__file__).parent.parent / "examples" / "decisions"
METHODS = ("alone", "input", "attention")


def read_question(of: dict[str, Any]) -> DecisionQuestion:
    """Return a question of TypeSafe's API in our own form."""
    criteria = of.get("criteria") or {}
    if isinstance(criteria, list):
        criteria = {str(place): text for place, text in enumerate(criteria)}
    if of["type"] == "noul":
        criteria = {name: criteria.get(name) for name in ("false", "true")}
    options = [
        DecisionOption(name=name, description=text or None) for name, text in criteria.items()
    ]
    return DecisionQuestion(
        name="q", type=of["type"], instructions=of["instructions"], options=options
    )


async def ask(replica: Replica, state: str, question: DecisionQuestion, **more: Any) -> AnswerItem:
    """Return the answer to one question."""
    request = DecideRequest(state=state, questions=[question], **more)
    answer = await replica.gateway.encode(request, time.monotonic() + 60, Record("own"))
    (item,) = answer.items
    return item


async def rank(
    replica: Replica, state: str, question: DecisionQuestion, right: int
) -> tuple[dict[str, list[tuple[float, list[int]]]], dict[str, dict[str, Any]]]:
    """Return each method's words with their shares, and the controls by method."""
    ranked, controls = dict[str, list[tuple[float, list[int]]]](), dict[str, dict[str, Any]]()
    units: list[dict[str, Any]] = []
    for method in ("alone", "input"):
        reason = Reason(method=method, control=True)  # type: ignore[arg-type]
        facts = (await ask(replica, state, question, reason=reason)).facts
        assert facts["winner"] == right, state
        why = facts["reason"]
        # of yes or no the margin is that of yes
        sign = 1 if facts["options"][right] == why["first"] else -1
        (part,) = (part for part in why["parts"] if part["part"] == "state")
        units = part["units"]
        ranked[method] = [(sign * unit["share"], unit["characters"]) for unit in units]
        if sign > 0 and why["control"]:
            controls[method] = {**why["control"], "margin": why["margin"]}
    item = await ask(replica, state, question, attention=MarkerRows(layers=[-1]))
    (rows,) = item.arrays.values()
    row, tokens = rows.mean(0)[right], item.attention["tokens"] if item.attention else []
    own = row[-1 - count_tokens(replica, state) : -1]
    encoded = replica.lanes.model.tokenizer.read_whole([state], special=False, most=1 << 16)
    offsets = next_value(encoded)[0].offsets
    assert len(own) == len(offsets) < len(tokens)
    ranked["attention"] = [
        (
            float(
                sum(
                    share
                    for share, (start, end) in zip(own, offsets, strict=True)
                    if start < unit["characters"][1] and end > unit["characters"][0]
                )
            ),
            unit["characters"],
        )
        for unit in units
    ]
    return ranked, controls


def next_value(reading: Any) -> Any:
    """Run a reading to its end."""
    while True:
        try:
            next(reading)
        except StopIteration as end:
            return end.value


def count_tokens(replica: Replica, state: str) -> int:
    """Return the tokens of a state."""
    reading = replica.lanes.model.tokenizer.read_whole([state], special=False, most=1 << 16)
    return len(next_value(reading)[0].token_ids)


async def measure(folder: str) -> dict[str, Any]:
    """Return the shares of states in which the deciding word is first, and the controls' means."""
    replica = await Replica.start(Settings(model=folder, threads=1), "replica-1")
    stored = json.loads((EXAMPLES / "pairs.json").read_text())
    firsts = {method: list[bool]() for method in METHODS}
    chance, lost = list[float](), {method: list[tuple[float, float]]() for method in METHODS[:2]}
    for pair in stored["pairs"]:
        question = read_question(pair["question"])
        for state, right, (start, end) in zip(
            pair["states"], pair["answers"], pair["characters"], strict=True
        ):
            ranked, controls = await rank(replica, state, question, right)
            for method, words in ranked.items():
                _, (first, last) = max(words)
                firsts[method].append(first < end and last > start)
            chance.append(1 / len(ranked["alone"]))
            for method, control in controls.items():
                if control["without_random"] is not None:
                    margin = control["margin"]
                    without, others = control["without"], control["without_random"]
                    lost[method].append((margin - without, margin - others))
    await replica.close()
    return {
        "states": len(chance),
        "pool": stored["pool"],
        "right_in_both": stored["right"],
        "first": {method: round(statistics.fmean(found), 3) for method, found in firsts.items()},
        "chance": round(statistics.fmean(chance), 3),
        "margin_lost": {
            method: {
                "states": len(pairs),
                "without_the_strongest": round(statistics.fmean(one for one, _ in pairs), 3),
                "without_others": round(statistics.fmean(other for _, other in pairs), 3),
                "strongest_cost_more": round(statistics.fmean(one > two for one, two in pairs), 3),
            }
            for method, pairs in lost.items()
        },
    }


def main() -> None:
    """Make the model's folder, measure, and print the result as JSON."""
    with tempfile.TemporaryDirectory() as folder:
        subprocess.run([sys.executable, str(EXAMPLES / "make.py"), folder], check=True)
        found = asyncio.run(measure(folder))
    print(json.dumps({"commit": machine.current_commit(), **found}, indent=1))


if __name__ == "__main__":
    main()
