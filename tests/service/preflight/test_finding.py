"""What a check finds is worded in one place."""

import pytest

from service.cluster.start_report import StartFailed
from service.preflight.finding import Finding, require, run


def test_what_is_lacking_ends_the_start() -> None:
    """All of it in one line; notes and what is right hold nothing back."""
    rest = [Finding("ray", "2.60.0", grade="ok"), Finding("compiler", "none", "g++", "note")]
    require(rest)

    with pytest.raises(StartFailed, match="^no GPU; port: 8000 is taken; choose another$"):
        require([*rest, Finding("", "no GPU"), Finding("port", "8000 is taken", "choose another")])


def test_an_entry_point_runs_the_checks_that_apply_to_it() -> None:
    """In the order of the table, on what it is given."""
    checks = {
        lambda number: [Finding("a", f"{number}")]: {"serve", "doctor"},
        lambda number: [Finding("b", f"{number}")]: {"doctor"},
    }

    assert [each.place for each in run("serve", checks, 5)] == ["a"]
    assert [str(each) for each in run("doctor", checks, 5)] == ["a: 5", "b: 5"]
