"""What pyproject.toml allows is what was run: docs/upstream.md has a row for each bound."""

import re
import tomllib
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.specifiers import SpecifierSet
from packaging.version import Version

from tests import compatible

ROOT = Path(__file__).parent.parent
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
LIBRARIES = [*PROJECT["dependencies"], *PROJECT["optional-dependencies"]["convert"]]
NAMES = ("Python", "ray", "torch", "transformers")
# what was run, its release, how many tests passed and failed; `all` of `make test`
ROW = re.compile(
    r"^\| (\w+) \| (\d[\w.+]*) \| (all|[\d,]+) \|(?: (\d+))? \|(?: \d+)? \| 20\S+ \|", re.M
)
PAGE = (ROOT / "docs" / "upstream.md").read_text()


def runs(name: str) -> dict[Version, str]:
    """How many tests passed with each release of a library, or of Python, the oldest first."""
    rows = [row for row in ROW.findall(PAGE) if row[0] == name]
    assert {failed for *_, failed in rows} <= {"", "0"}
    found = {Version(release): passed for _, release, passed, _ in rows}
    return dict(sorted(found.items()))


def allowed(name: str) -> SpecifierSet:
    """What pyproject.toml allows of a library, or of Python."""
    if name == "Python":
        return SpecifierSet(PROJECT["requires-python"])
    (found,) = (each for each in map(Requirement, LIBRARIES) if each.name == name)
    return found.specifier


@pytest.mark.parametrize("name", NAMES)
def test_the_bounds_are_the_oldest_and_the_newest_release_that_was_run(name: str) -> None:
    """A release beyond them may work; nobody has seen it."""
    oldest, *_ = runs(name)
    newest = [*runs(name)][-1]
    bounds = {each.operator: Version(each.version) for each in allowed(name)}

    assert bounds.keys() == {">=", "<"}
    assert bounds[">="].release[:2] == oldest.release[:2]
    assert bounds["<"].release == (newest.major, newest.minor + 1)


def test_make_compatible_runs_what_make_test_does_not() -> None:
    """So that a row of the table can be had again."""
    asked = map(Requirement, compatible.RELEASES)
    again = {(each.name, str(each.specifier).lstrip("=")) for each in asked}
    told = {
        (name, release.public)
        for name in NAMES
        for release, passed in runs(name).items()
        if passed != "all" and name != "Python"
    }

    assert again == told


@pytest.mark.parametrize("rooms", compatible.RELEASES.values(), ids=compatible.RELEASES)
def test_the_rooms_that_a_release_is_tried_in_are_there(rooms: tuple[str, ...]) -> None:
    """pytest would end with an error, after an hour."""
    named = [*rooms, *compatible.SERVED, compatible.REHEARSAL[0]]

    assert [place for place in named if not (ROOT / place).exists()] == []
