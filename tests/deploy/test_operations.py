"""docs/operations.md: its commands exist, and each says what ran it or that nothing did."""

import re
from pathlib import Path

import click

from service.cli import main

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "operations.md").read_text()
PROCEDURES = PAGE.partition("## What an idle service costs")[0]
SECTION = re.compile(r"^## (.+?)\n(.*?)(?=^## |\Z)", re.MULTILINE | re.DOTALL)
WANTED = {
    "Rotate keys",
    "Run it under systemd",
    "Add a node",
    "Remove a node",
    "Restore after losing the head",
    "Upgrade Headlight or Ray",
    "Size",
    "Roll back",
}


def test_every_procedure_says_what_ran_it_or_that_nothing_did() -> None:
    """One that was never tried is not to be met first at night."""
    sections = dict(SECTION.findall(PROCEDURES))

    assert sections.keys() == WANTED
    for title, text in sections.items():
        assert re.search(r"\*not run here\*|`(tests|benchmarks)/", text, re.IGNORECASE) or (
            title == "Size" and "benchmarks/sizing.py" in text
        ), title


def test_everything_that_the_procedures_name_exists() -> None:
    """Files, tests, subcommands and their options."""
    files = set(re.findall(r"(?<![/\w.])(?:tests|deploy|benchmarks)/[\w./-]*\w", PROCEDURES))
    for name in files:
        assert (ROOT / name).exists(), name
    commands: dict[str, click.Command] = main.commands
    used = re.findall(r"^(?:\.venv/bin/)?headlight (\w+)(.*)$", PROCEDURES, re.MULTILINE)
    assert {name for name, _ in used} == {"doctor", "serve"}
    for name, rest in used:
        known = {flag for each in commands[name].params for flag in each.opts}
        assert set(re.findall(r"--[\w-]+", rest)) <= known, (name, rest)


def test_what_kubernetes_and_systemd_are_told_is_marked_as_never_run() -> None:
    """No cluster and no systemd is here."""
    for title, text in SECTION.findall(PROCEDURES):
        if re.search(r"^(kubectl|helm|systemctl) ", text, re.MULTILINE):
            assert re.search(r"\*not run here\*", text, re.IGNORECASE), title
