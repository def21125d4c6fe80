"""Reads workflows of GitHub's: their jobs, what each waits for, and what a step would run.

Of expressions only what ours have: a name such as `matrix.build`, and `==` between a name and a
text in an `if`. Anything else is an error, and so is a name that nothing gives.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).parent.parent.parent
FOLDER = ROOT / ".github" / "workflows"

Workflow = dict[str, Any]
Names = dict[str, Any]  # what expressions may name, nested by the words between dots


def read(name: str, folder: Path = FOLDER) -> Workflow:
    """Return a workflow; its key `on` is the text, not YAML's True."""
    found: Workflow = yaml.load((folder / name).read_text(), yaml.CSafeLoader)
    return {"on" if key is True else key: value for key, value in found.items()}


def legs(job: dict[str, Any]) -> list[dict[str, str]]:
    """Return the values of each run of a job: of a matrix, or none of one run."""
    listed: list[dict[str, str]] = job.get("strategy", {}).get("matrix", {}).get("include", [{}])
    return listed


def needs(job: dict[str, Any]) -> list[str]:
    """Return the jobs that one waits for by name."""
    named = job.get("needs", [])
    return [named] if isinstance(named, str) else named


def before(workflow: Workflow, name: str) -> set[str]:
    """Return every job that has ended well before one starts."""
    direct = needs(workflow["jobs"][name])
    return {*direct}.union(*(before(workflow, each) for each in direct))


def steps(workflow: Workflow) -> Iterator[dict[str, Any]]:
    """Give each step of each job that has any."""
    for job in workflow["jobs"].values():
        yield from job.get("steps", ())


def fill(text: str, names: Names) -> str:
    """Write into a text what its expressions stand for."""
    return re.sub(r"\$\{\{\s*(\S+?)\s*\}\}", lambda found: _value(found[1], names), str(text))


def holds(condition: str, names: Names) -> bool:
    """Tell whether an `if` of the form `name == 'text'` is true."""
    found = re.fullmatch(r"(\S+) == '(\w+)'", condition)
    if not found:
        raise ValueError(f"not a condition that is known here: {condition}")
    return _value(found[1], names) == found[2]


def _value(path: str, names: Names) -> str:
    value: Any = names
    for word in path.split("."):
        value = value[word]
    return fill(value, names)
