"""Makes pairs of states that differ in the one word that decides a question's answer.

    python examples/decisions/pairs.py

Writes pairs.json: of a pool fixed by its seed, made of held-out sentences and words, the first
KEPT pairs of which the trained head answers both states rightly. Needs `laya`, which asks it.
"""

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import laya
from head import read_head
from make import read_temperatures, write_folder
from sentences import Drawer, put_articles

PAIRS = Path(__file__).with_name("pairs.json")
SEED = 40
POOL, KEPT = 120, 40


class Pair(NamedTuple):
    """Two states that one word tells apart, and a question.

    Args:
        question: in the form of laya's `system_one`.
        states: texts.
        answers: place of the right option for each state.
        characters: where the deciding word stands in each state.
    """

    question: dict[str, Any]
    states: tuple[str, str]
    answers: tuple[int, int]
    characters: tuple[tuple[int, int], tuple[int, int]]


def make_pool() -> list[Pair]:
    """Make POOL pairs, none twice, from each group of sentences in turn."""
    drawer = Drawer("held", SEED)
    pool: dict[tuple[str, ...], Pair] = {}
    while len(pool) < POOL:
        for group in drawer.groups.values():
            pair = make_pair(drawer, group)
            if pair:
                pool.setdefault(pair.states, pair)
    return list(pool.values())[:POOL]


def make_pair(drawer: Drawer, group: dict[str, Any]) -> Pair | None:
    """Make a pair of two classes of a group; None where more than one word would differ."""
    classes = list(group["classes"].values())
    answers = drawer.random.sample(range(len(classes)), 2)
    words = [drawer.random.choice(classes[answer]["words"]["held"]) for answer in answers]
    template = drawer.random.choice(group["frames"]["held"])
    frame = drawer.fill(template)
    beside = drawer.fill(drawer.random.choice(drawer.besides))
    text = " ".join(drawer.random.sample([frame, beside], 2))
    states = tuple(put_articles(text.replace("{w}", word)) for word in words)
    split = [state.split() for state in states]
    differing = sum(one != other for one, other in zip(*split, strict=False))
    if differing != 1 or len(split[0]) != len(split[1]):
        return None
    start = text.index("{w}")
    return Pair(
        ask_all(drawer, group),
        states,
        tuple(answers),
        tuple((start, start + len(word)) for word in words),
    )


def ask_all(drawer: Drawer, group: dict[str, Any]) -> dict[str, Any]:
    """Return a held-out question of a group with all its classes."""
    question = {"type": group["kind"], "instructions": drawer.random.choice(group["ask"]["held"])}
    if group["kind"] == "choice":
        classes = group["classes"].values()
        question["criteria"] = {members["names"]["held"][0]: None for members in classes}
    if group["kind"] == "score":
        question["criteria"] = drawer.random.choice(group["levels"]["held"])
    return question


def choose_right(pool: Sequence[Pair]) -> list[Pair]:
    """Return the pairs of which the head answers both states rightly."""
    with tempfile.TemporaryDirectory() as folder:
        write_folder(Path(folder), read_head(), read_temperatures())
        agent = laya.load(folder, device="cpu")
    return [
        pair
        for pair in pool
        if all(
            best(agent.system_one(state, {"asked": pair.question})["answers"]["asked"]) == answer
            for state, answer in zip(pair.states, pair.answers, strict=True)
        )
    ]


def best(answer: dict[str, Any]) -> int:
    """Return the place of the most probable option."""
    if answer["type"] == "noul":
        return int(answer["noul"] > 0.5)
    probabilities = list(answer["probabilities"].values())
    return probabilities.index(max(probabilities))


def read_pairs() -> list[dict[str, Any]]:
    """Read the kept pairs, each with the keys of `Pair`."""
    return json.loads(PAIRS.read_text())["pairs"]


def main() -> None:
    """Write the pairs."""
    pool = make_pool()
    right = choose_right(pool)
    kept = [pair._asdict() for pair in right[:KEPT]]
    facts = {"pool": len(pool), "right": len(right), "pairs": kept}
    PAIRS.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"{len(right)} of {len(pool)} pairs are answered rightly, {len(kept)} kept")


if __name__ == "__main__":
    main()
