"""Makes states and questions with their answers from sentences.yaml, for training or held out.

Sentences and instructions of the one part are not those of the other, nor are most words and some
names of classes. What decides stands in one sentence of the state; others are on something else.
"""

import random
import re
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import yaml

DATA = Path(__file__).with_name("sentences.yaml")
PARTS = ("train", "held")
SHARES = {"choice": 0.35, "score": 0.25, "noul": 0.4}  # of each kind of question
OPTIONS = 7  # of a choice, at most
IS_ABOUT = {  # a choice's class, asked for by yes or no
    "train": (
        "Is this about {name}?",
        "The text belongs to {name}.",
        "Does it have to do with {name}?",
    ),
    "held": ("Is the message about {name}?", "It concerns {name}."),
}


class Example(NamedTuple):
    """A state, a question in the form of laya's `system_one`, and the place of its right option."""

    state: Any
    question: dict[str, Any]
    answer: int


class Drawer:
    """Draws examples of one part of the sentences.

    Args:
        part: of PARTS.
        seed: of all that is drawn.
    """

    def __init__(self, part: str, seed: int) -> None:
        self.part = part
        self.random = random.Random(seed)
        data = read_data()
        self.items = data["items"][part]
        self.besides = data["besides"][part]
        self.groups = data["groups"]

    def draw(self, count: int) -> list[Example]:
        """Draw so many examples, of the kinds by SHARES, none twice."""
        examples: dict[str, Example] = {}
        while len(examples) < count:
            kind = self.random.choices(list(SHARES), list(SHARES.values()))[0]
            example = self.draw_one(kind)
            examples[repr(example[:2])] = example
        return list(examples.values())

    def draw_one(self, kind: str) -> Example:
        """Draw an example of a kind of question."""
        about = kind == "noul" and self.random.random() < 0.35
        names = [name for name in self.groups if self.groups[name]["kind"] == kind]
        if about:
            names = [name for name in self.groups if self.groups[name]["kind"] == "choice"]
        group = self.groups[self.random.choice(names)]
        answer = self.random.randrange(len(group["classes"]))
        state = self.state(group, answer)
        if about:
            return self.ask_about(state, group, answer)
        return getattr(self, f"ask_{kind}")(state, group, answer)

    def state(self, group: Mapping[str, Any], answer: int) -> Any:
        """Return a sentence of a group's class, mostly among others."""
        sentences = [self.sentence(group, answer)]
        for _ in range(self.random.choice((0, 0, 1, 1, 2))):
            sentences.append(self.beside(group))
        self.random.shuffle(sentences)
        text = " ".join(dict.fromkeys(sentences))
        return {"message": text} if self.random.random() < 0.08 else text

    def sentence(self, group: Mapping[str, Any], answer: int) -> str:
        """Return one sentence that says which class of a group it is."""
        members = list(group["classes"].values())[answer]
        sentences = members["sentences"][self.part]
        if not sentences or self.random.random() < 0.6:
            frame = self.random.choice(group["frames"][self.part])
            return self.fill(frame.replace("{w}", self.random.choice(members["words"][self.part])))
        return self.fill(self.random.choice(sentences))

    def beside(self, group: Mapping[str, Any]) -> str:
        """Return a sentence that says nothing of a group."""
        if not group["beside"] or self.random.random() < 0.5:
            return self.fill(self.random.choice(self.besides))
        other = self.groups[self.random.choice(group["beside"])]
        return self.sentence(other, self.random.randrange(len(other["classes"])))

    def fill(self, template: str) -> str:
        """Put a thing and a number into a template."""
        number = str(self.random.randrange(20, 9000))
        return template.replace("{item}", self.random.choice(self.items)).replace("{n}", number)

    def ask_noul(self, state: Any, group: Mapping[str, Any], answer: int) -> Example:
        """Ask whether the group's statement holds."""
        question = {"type": "noul", "instructions": self.random.choice(group["ask"][self.part])}
        if self.random.random() < 0.4:
            question["criteria"] = self.random.choice(group["criteria"])
        return Example(state, question, answer)

    def ask_about(self, state: Any, group: Mapping[str, Any], answer: int) -> Example:
        """Ask by yes or no whether a state is of one class of a choice."""
        right = self.random.random() < 0.5
        places = [place for place in range(len(group["classes"])) if (place == answer) == right]
        named = list(group["classes"].values())[self.random.choice(places)]
        ask = self.random.choice(IS_ABOUT[self.part])
        instructions = ask.format(name=self.random.choice(named["names"][self.part]))
        return Example(state, {"type": "noul", "instructions": instructions}, int(right))

    def ask_choice(self, state: Any, group: Mapping[str, Any], answer: int) -> Example:
        """Ask which of some of the classes, in any order, with or without descriptions."""
        classes = list(group["classes"].values())
        others = [place for place in range(len(classes)) if place != answer]
        count = self.random.randint(1, min(OPTIONS, len(classes)) - 1)
        places = [answer, *self.random.sample(others, count)]
        self.random.shuffle(places)
        described = self.random.random() < 0.5
        criteria = {
            self.random.choice(classes[place]["names"][self.part]): (
                self.random.choice(classes[place]["about"][self.part]) if described else None
            )
            for place in places
        }
        ask = self.random.choice(group["ask"][self.part])
        question = {"type": "choice", "instructions": ask, "criteria": criteria}
        return Example(state, question, places.index(answer))

    def ask_score(self, state: Any, group: Mapping[str, Any], answer: int) -> Example:
        """Ask which of the levels, of which one may be left out."""
        levels = list(self.random.choice(group["levels"][self.part]))
        if len(levels) > 2 and self.random.random() < 0.3:
            gone = self.random.choice([place for place in range(len(levels)) if place != answer])
            del levels[gone]
            answer -= gone < answer
        ask = self.random.choice(group["ask"][self.part])
        return Example(state, {"type": "score", "instructions": ask, "criteria": levels}, answer)


def put_articles(text: str) -> str:
    """Write `an` before a vowel."""
    return re.sub(r"\b([Aa]) (?=[aeiou])", r"\1n ", text)


@cache
def read_data() -> dict[str, Any]:
    """Read sentences.yaml, with a list for each part in place of `train | held`."""
    data = yaml.safe_load(DATA.read_text())
    data["items"] = split(data["items"])
    for group in data["groups"].values():
        for members in group["classes"].values():
            members["words"] = split(members["words"])
            held = [text[2:] for text in members["sentences"] if text.startswith("| ")]
            train = [text for text in members["sentences"] if not text.startswith("| ")]
            members["sentences"] = dict(zip(PARTS, (train, held), strict=True))
            for key in members.keys() & {"names", "about"}:
                members[key] = split(members[key], "; " if key == "about" else ", ")
    return data


def split(words: str, separator: str = ", ") -> dict[str, list[str]]:
    """Split `one, two | three` into the words of each part."""
    halves = words.split(" | ")
    return {part: half.split(separator) for part, half in zip(PARTS, halves, strict=True)}
