"""The picture of `headlight heads`, from the bundled model's survey."""

import re
from pathlib import Path
from typing import Any

import pytest

from service.commands.pictures import survey as picture
from service.commands.pictures.formats import CannotDraw, check
from service.commands.pictures.survey import COLOURS, NONE
from service.heads import store


@pytest.fixture
def found() -> dict[str, Any]:
    """The bundled model's survey."""
    survey = store.recall("sha256:5fc648cb18e4")
    assert survey is not None
    return survey


def test_a_picture_says_in_words_what_its_colours_say(
    found: dict[str, Any], tmp_path: Path
) -> None:
    """As SVG, letters stay letters: model, corpus, every layer and head, badges, verdicts."""
    picture.draw(found, tmp_path / "a.svg")

    svg = (tmp_path / "a.svg").read_text()
    said = set(re.findall(r"<text[^>]*>([^<]*)</text>", svg))
    assert {f"H{head}" for head in range(12)} | {f"L{layer}" for layer in range(6)} <= said
    assert {"prev+", "next", "sink", "broad"} <= said
    assert any("all-MiniLM-L6-v2" in line for line in said)
    assert any("relations.jsonl, 420 sentences" in line for line in said)
    assert any(line.startswith("coreference: no head found") for line in said)


def test_every_cell_has_the_colour_of_its_role(found: dict[str, Any], tmp_path: Path) -> None:
    """72 heads, and as many squares more as the legend has colours."""
    picture.draw(found, tmp_path / "a.svg")

    filled = re.findall(r"fill: (#\w+); stroke: #9a9a9a", (tmp_path / "a.svg").read_text())
    squares = [line.colour for line in picture.legend(found) if line.colour]
    roles = [head["role"] for head in found["heads"]]
    assert len(filled) == 72 + len(squares)
    assert filled[:72].count(COLOURS["previous"]) == roles.count("previous") == 1
    assert filled[:72].count(COLOURS["delimiter sink"]) == roles.count("delimiter sink")
    assert filled[:72].count(NONE) == roles.count(None)


def test_a_relation_of_the_users_own_has_a_colour_too(
    found: dict[str, Any], tmp_path: Path
) -> None:
    """One for all of them; its badge is its first letters."""
    told = {**found["relations"]["object"], "kind": None}
    found["relations"] = {"doer of it": told, "none": {**told, "candidate": None, "head": None}}
    found["heads"][37] |= {"role": "doer of it", "also": []}

    picture.draw(found, tmp_path / "a.svg")

    svg = (tmp_path / "a.svg").read_text()
    assert picture.OTHER in svg and ">doer<" in svg


def test_what_cannot_be_drawn_is_refused_before_it_is_measured() -> None:
    """Only the two formats that are promised."""
    check(Path("a.SVG"))

    with pytest.raises(CannotDraw, match=r"a\.pdf: a picture's name ends in \.png or \.svg"):
        check(Path("a.pdf"))
