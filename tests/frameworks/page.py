"""The examples of other people's clients, and the list of docs/frameworks.md that is made of them.

`python -m tests.frameworks.page` writes the list. An example is a file of examples/, which is not
imported: it is run as text, in an environment of its own. Its docstring has its part, its title,
what is to be known of it, and what it raises where a request is refused.
"""

import ast
import json
import re
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

HERE = Path(__file__).parent
FILE = HERE.parent.parent / "docs" / "frameworks.md"
PAGE = FILE.read_text("utf-8")
ADDRESS = "http://127.0.0.1:8000"
# what all examples begin with
NAMES: dict[str, Any] = {
    "texts": ["All is well", "A dog ate the food", "It was hungry"],
    "query": "Why is the dog here?",
}
MARK = "<!-- python -m tests.frameworks.page -->\n"


class Example(NamedTuple):
    """One example.

    Args:
        part: says what is served: Embeddings, Rerank or Classes.
        title: the client's package, its version, and what of it is shown.
        note: what is to be known of it, in words.
        raises: what the client makes of a refusal; begins with the exception's class.
        code: the whole file.
    """

    part: str
    title: str
    note: str
    raises: str
    code: str
    path: Path

    @property
    def pin(self) -> str:
        """The package at its version, as a line of requirements.txt."""
        name, version = self.title.partition(":")[0].split()
        return f"{name}=={version}"

    @property
    def pointed(self) -> str:
        """The statement that names the address, on one line."""
        tree = ast.parse(self.code)
        (said,) = (
            node
            for node in tree.body[1:]
            if any(
                isinstance(part, ast.Constant) and str(part.value).startswith(ADDRESS)
                for part in ast.walk(node)
            )
        )
        assert isinstance(said, ast.Assign)
        plain = isinstance(said.targets[0], ast.Name) and isinstance(said.value, ast.Call)
        return ast.unparse(said.value if plain else said)

    def row(self) -> str:
        """Its line of the page."""
        place = f"../tests/frameworks/examples/{self.path.name}"
        note = f" {self.note}" if self.note else ""
        return f"- [{self.title}]({place}): `{self.pointed}`.{note} Raises {self.raises}."


def read_example(path: Path) -> Example:
    """An example from its file."""
    code = path.read_text("utf-8")
    said = ast.get_docstring(ast.parse(code)) or ""
    head, *notes, last = (" ".join(part.split()) for part in said.split("\n\n"))
    part, title = head.removesuffix(".").split(", ", 1)
    raises = last.removeprefix("Raises ").removesuffix(".")
    return Example(part, title, " ".join(notes), raises, code, path)


@cache
def examples() -> list[Example]:
    """All of them, in the order in which their requests were recorded."""
    order = [*json.loads((HERE / "recorded.json").read_text())]
    found = map(read_example, (HERE / "examples").glob("*.py"))
    return sorted(found, key=lambda one: order.index(one.title) if one.title in order else -1)


def refusals() -> dict[str, str]:
    """What each client raises, by title."""
    return {one.title: one.raises.split()[0] for one in examples()}


def applications() -> list[str]:
    """Those of the page that have their requests recorded, in order."""
    (table,) = re.findall(r"^\| application \|.*\n\|[-|]*\n((?:\|.*\n)+)", PAGE, re.MULTILINE)
    return re.findall(r"^\| (.*?) \|", table, re.MULTILINE)


def filled(text: str) -> str:
    """The page with its list of clients as the examples have it."""
    before, after = text.split(MARK)
    rows = "\n".join(one.row() for one in examples())
    rest = re.sub(r"\A\n(- .*\n)*", "", after).lstrip("\n")
    return f"{before}{MARK}\n{rows}\n\n{rest}"


if __name__ == "__main__":
    FILE.write_text(filled(PAGE), "utf-8")
