"""The tables of `headlight heads`, from the bundled model's survey."""

from typing import Any

import pytest
from rich.console import Console, RenderableType

from service.commands import grid
from service.heads import store

Found = dict[str, Any]


@pytest.fixture
def found() -> Found:
    """The bundled model's survey."""
    survey = store.read_stored("sha256:5fc648cb18e4")
    assert survey is not None
    return survey


def lines(shown: RenderableType, width: int = 80) -> list[str]:
    """What a terminal of some width shows."""
    console = Console(width=width)
    with console.capture() as capture:
        console.print(shown)
    return capture.get().splitlines()


def cells(line: str) -> list[str]:
    """The cells of a table's line."""
    return [cell.strip() for cell in line.split("\u2502")[1:-1]]


def test_every_head_has_a_cell_with_its_badge_and_score(found: Found) -> None:
    """Twelve heads fit into 80 columns; a head of more roles is marked."""
    shown = lines(grid.draw_heads(found))

    rows = [cells(line) for line in shown if "\u2502" in line]
    first, scores = rows[:2]
    assert len(rows) == 12 and all(len(row) == 13 for row in rows)
    assert (first[0], first[3], scores[3]) == ("L0", "prev+", "1.00")
    assert first[6] == grid.NO_ROLE and scores[6] == ""
    assert not any("\u2026" in line for line in shown)


def test_a_role_is_shown_with_what_it_takes(found: Found) -> None:
    """How many heads, the best of them, the threshold and a uniform head's score."""
    (row,) = [cells(line) for line in lines(grid.draw_roles(found)) if "previous" in line]

    assert row == ["previous", "1", "L0H2", "1.000", "0.500", "0.083"]


def test_the_best_of_several_heads_is_the_one_of_the_highest_score(found: Found) -> None:
    """Of each role."""
    rows = [cells(line) for line in lines(grid.draw_roles(found)) if "\u2502" in line]
    scores = {role: [h["score"] for h in found["heads"] if h["role"] == role] for role, *_ in rows}

    assert max(map(len, scores.values())) > 1
    assert [row[3] for row in rows] == [f"{max(scores[role]):.3f}" for role, *_ in rows]


def test_a_mechanism_is_shown_with_its_share_and_control(found: Found) -> None:
    """Of the heads that have one, the largest share first."""
    rows = [cells(line) for line in lines(grid.draw_mechanisms(found)) if "\u2502" in line]

    assert rows[0] == ["L0H2", "position", "position", "0.946", "0.708"]
    assert [row[0] for row in rows] == ["L0H2", "L0H9"]


def test_a_relation_is_shown_with_its_control(found: Found) -> None:
    """Found or not; nothing is cut off in 80 columns."""
    shown = lines(grid.draw_relations(found))

    rows = {cells(line)[0]: cells(line) for line in shown if "%" in line}
    assert rows["coreference"][1:] == ["no head found", "L4H3", "50.0%", "50", "50.0%", "60.0%"]
    assert rows["object (syntax)"][1] == "L3H1"
    assert not any("\u2026" in line for line in shown)


def test_a_relation_that_nothing_judges_says_why(found: Found) -> None:
    """Instead of numbers."""
    nothing = dict.fromkeys(("candidate", "score", "baseline", "threshold", "kind"))
    told = {**nothing, "found": "no head found", "reason": "no controls", "controls": 0}

    (row,) = [
        cells(line)
        for line in lines(grid.draw_relations({**found, "relations": {"mine": told}}))
        if "mine" in line
    ]

    assert row == ["mine", "no head found", "no controls", "", "0", "", ""]


def test_heads_are_ordered_within_their_layer_alone() -> None:
    """The largest move first, layer by layer."""
    shown = lines(grid.draw_ablations([[0.1, 0.3, 0.2], [5e-5, 1e-4, 0.0]]))

    rows = [cells(line) for line in shown if "=" in line]
    assert rows == [["L0", "H1=0.3  H2=0.2  H0=0.1"], ["L1", "H1=0.0001  H0=5e-05  H2=0"]]
