"""What the docs say of a package's version is what the lock has, or what its clients' lock has."""

import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent
LOCK = ROOT / "constraints.txt"  # what the service and its tests install
CLIENTS = ROOT / "tests" / "frameworks" / "requirements.txt"  # of docs/frameworks.md alone
# not decisions, which say what was so on their day
PAGES = [ROOT / "README.md", ROOT / "ARCHITECTURE.md", *sorted((ROOT / "docs").glob("*.md"))]
WORDS = {"requests"}  # a package, and a word that numbers follow


def pinned(file: Path) -> dict[str, str]:
    """The version of each package of a lock, by its name in one spelling."""
    lines = (line.split("==") for line in file.read_text().splitlines() if "==" in line)
    return {_spelt(name): version.strip() for name, version in lines}


def stated(text: str, names: set[str]) -> Iterator[tuple[str, str]]:
    """Each of some packages that a text names with a version, whole or its start.

    It stands next to the name, or later in the sentence as `version 1.2`.
    """
    parts = (re.escape(name).replace(r"\-", "[-_ ]") for name in sorted(names, key=len)[::-1])
    named, number = rf"(?<![\w-])({'|'.join(parts)})\b", r"(\d+(?:\.\d+)*)\b"
    pattern = rf"{named}(?:`?\sv?|[^.|]{{0,80}}?\sversion\s){number}"
    for match in re.finditer(pattern, text, re.IGNORECASE):
        yield _spelt(match[1]), match[2]


def _spelt(name: str) -> str:
    return re.sub(r"[-_. ]+", "-", name.strip()).lower()


def wrong(text: str, *locks: dict[str, str]) -> list[tuple[str, str]]:
    """The statements of a text that no lock has."""
    names = {name for lock in locks for name in lock} - WORDS
    return [
        (name, version)
        for name, version in stated(text, names)
        if not any(f"{lock.get(name, '')}.".startswith(f"{version}.") for lock in locks)
    ]


def test_a_version_that_a_page_states_is_the_locks() -> None:
    """Of the clients' own lock too, where the page is of the clients."""
    lock, clients = pinned(LOCK), pinned(CLIENTS)
    for page in PAGES:
        locks = [lock, clients] if page.name == "frameworks.md" else [lock]

        assert wrong(page.read_text("utf-8"), *locks) == [], page.name


def test_every_kind_of_statement_is_found() -> None:
    """In prose, in a table and in a heading, over the end of a line, whole or its start."""
    lock = {"torch": "2.13.0", "huggingface-hub": "2.4.0", "transformers": "5.23.0"}
    right = "with torch 2.13, transformers\n5 and `huggingface_hub` 2.4.0; PyTorch 1."
    right += " Torch computes it, as version 2 does"
    false = "| torch 2.1 | Transformers 4 and huggingface-hub 1.33.0 |"

    assert [*stated(right, {*lock})] == [
        ("torch", "2.13"),
        ("transformers", "5"),
        ("huggingface-hub", "2.4.0"),
        ("torch", "2"),
    ]
    assert wrong(right, lock) == []
    assert wrong(false, lock) == [
        ("torch", "2.1"),
        ("transformers", "4"),
        ("huggingface-hub", "1.33.0"),
    ]


def test_the_docs_state_versions() -> None:
    """So that the test above has something to hold."""
    names = {*pinned(LOCK)} - WORDS
    found = [each for page in PAGES for each in stated(page.read_text("utf-8"), names)]

    assert {"sentence-transformers", "transformers", "ray"} <= {name for name, _ in found}
