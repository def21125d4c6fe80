"""Which clients the tests use, and which of their features.

A test that uses a published client is marked with the client's package and the feature,
`@pytest.mark.client("openai", "base64")`. `python tests/test_clients_table.py` prints the table
that docs/api.md shows.
"""

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def features(tests: Path = ROOT / "tests") -> dict[str, list[str]]:
    """The features that tests hold, by client; both in order."""
    texts = (path.read_text() for path in tests.rglob("test_*.py"))
    pairs = {
        pair
        for text in texts
        if "mark.client" in text
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for pair in marked(node)
    }
    found: dict[str, list[str]] = {}
    for client, feature in sorted(pairs):
        found.setdefault(client, []).append(feature)
    return found


def marked(test: ast.FunctionDef | ast.AsyncFunctionDef) -> Iterator[tuple[str, str]]:
    """The client and feature of each such mark of a test."""
    for mark in test.decorator_list:
        if isinstance(mark, ast.Call) and ast.unparse(mark.func) == "pytest.mark.client":
            client, feature = map(ast.literal_eval, mark.args)
            yield client, feature


def pinned() -> dict[str, str]:
    """The version of every package that the tests pass with."""
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    return dict(line.split("==") for line in lines if not line.startswith("#"))


def clients_table() -> str:
    """The table, as Markdown."""
    versions = pinned()
    rows = [
        f"| {client} {versions[client]} | {'; '.join(held)} |"
        for client, held in features().items()
    ]
    return "\n".join(["| client | works with |", "|---|---|", *rows])


def test_every_client_is_pinned_and_has_a_row() -> None:
    """At the version that its tests pass with."""
    page = (ROOT / "docs" / "api.md").read_text()
    rows = [line for line in page.splitlines() if line.startswith("| ")]

    found = features()
    assert {"openai", "huggingface-hub"} <= found.keys() <= pinned().keys()
    for client, held in found.items():
        (row,) = [row for row in rows if row.startswith(f"| {client} {pinned()[client]} |")]
        assert row.split(" | ")[1].removesuffix(" |").split("; ") == held


def test_a_mark_is_read_where_it_stands(tmp_path: Path) -> None:
    """Among others, more than once, of both kinds of function."""
    (tmp_path / "test_x.py").write_text(
        "@pytest.mark.client('b', 'two')\n@pytest.mark.client('b', 'one')\n"
        "@pytest.mark.slow\ndef test_a(): ...\n\n"
        "@pytest.mark.client('a', 'one')\nasync def test_b(): ...\n"
    )

    assert features(tmp_path) == {"a": ["one"], "b": ["one", "two"]}


if __name__ == "__main__":
    print(clients_table())
