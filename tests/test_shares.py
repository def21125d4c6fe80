"""What benchmarks/shares.py measures with: pairs, arithmetic, and the tables of the page."""

import json
import re
import sys
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).parent.parent
sys.path.append(str(ROOT / "benchmarks"))

import publish  # noqa: E402  a script's neighbour
import shares  # noqa: E402

ROWS = [json.loads(line) for line in shares.ALTERED.read_text("utf-8").splitlines()]


def test_each_pair_is_made_of_a_sentence_of_its_source_as_it_says() -> None:
    """By one negation more on the left, or by two words that change places."""
    assert [row["kind"] for row in ROWS] == ["negation"] * 30 + ["order"] * 30
    for row in ROWS:
        whole = (ROOT / row["from"]).read_text("utf-8")
        assert row["left"] in whole or row["right"] in whole, row
        left, right = row["left"].split(), row["right"].split()
        first, *second = re.findall('"([^"]+)"', row["made"])
        if row["kind"] == "negation":
            places = [n for n in range(len(left)) if [*left[:n], *left[n + 1 :]] == right]
            assert len(places) == 1 and left[places[0]] == first in ("not", "never")
            assert second == ([left[places[0] - 1]] if "put after" in row["made"] else [])
        else:
            blank = row["left"].replace(first, "_").replace(second[0], first)
            assert blank.replace("_", second[0]) == row["right"] != row["left"]


@pytest.mark.parametrize(
    ("kind", "left", "right", "places"),
    [
        ("negation", "it is not so", "it is so", [2]),
        ("order", "cats chase dogs", "dogs chase cats", [0, 2]),
    ],
)
def test_the_tokens_that_differ_are_found(
    kind: str, left: str, right: str, places: list[int]
) -> None:
    """On the left."""
    assert shares.find_changes(kind, left.split(), right.split()) == places


def test_what_is_found_is_how_often_a_changed_token_falls_further() -> None:
    """Ties count half."""
    fallen = np.array([0.3, 0.1, 0.2, 0.1])

    assert shares.rate_found(fallen, [0]) == 1
    assert shares.rate_found(fallen, [1]) == pytest.approx(0.5 / 3)
    assert shares.rate_found(fallen, [0, 2]) == 1
    assert shares.rate_found(-fallen, [0, 2]) == 0


def test_the_page_has_the_tables_that_were_measured() -> None:
    """To the letter."""
    told = json.loads(shares.TOLD.read_text("utf-8"))

    page = shares.PAGE.read_text("utf-8")
    assert publish.text_between_marks(page, shares.COMMAND) == shares.format_tables(told)
