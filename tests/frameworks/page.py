"""The examples of docs/frameworks.md, by the clients they are of."""

import re
from pathlib import Path
from typing import Any, NamedTuple

PAGE = (Path(__file__).parent.parent.parent / "docs" / "frameworks.md").read_text("utf-8")
CODE = re.compile(r"^```python\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ADDRESS = "http://127.0.0.1:8000"
NAMES: dict[str, Any] = {}  # what all examples begin with
exec(CODE.findall(PAGE)[0], NAMES)


class Example(NamedTuple):
    """One example.

    Args:
        part: of the page, which says what is served: Embeddings, Rerank or Classes.
        title: the client's package, its version, and what of it is shown.
    """

    part: str
    title: str
    code: str

    @property
    def pin(self) -> str:
        """The package at its version, as a line of requirements.txt."""
        name, version = self.title.partition(":")[0].split()
        return f"{name}=={version}"


def examples() -> list[Example]:
    """All of the page, in order."""
    parts = [part.split("\n### ") for part in PAGE.split("\n## ")[1:]]
    return [
        Example(head.splitlines()[0], section.splitlines()[0], CODE.findall(section)[0])
        for head, *sections in parts
        for section in sections
    ]


def refusals() -> dict[str, str]:
    """What each client raises, by title."""
    rows = re.findall(r"^\| (\S+ [\d.]+.*?) \| `(\w+)`", PAGE, re.MULTILINE)
    return dict(rows)


def applications() -> list[str]:
    """Those of the page that have their requests recorded, in order."""
    (table,) = re.findall(r"^\| application \|.*\n\|[-|]*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return re.findall(r"^\| (.*?) \|", table, re.MULTILINE)
