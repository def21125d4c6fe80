"""Where the families' names stand in the code: what a new family costs a reader."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

from model import families

FAMILIES = {family.name for family in families.FAMILIES}
ROOT = Path(__file__).parent.parent.parent.parent
# Where each has its file, and where the steps of tokenizers have such names
READERS = {"model/families", "model/loading"}
MOST = 3  # files that may take another way for one family


@pytest.fixture(scope="module")
def modules() -> dict[Path, ast.Module]:
    """Every module of the service and the model, by its path from the root."""
    files = (file for folder in ("model", "service") for file in (ROOT / folder).rglob("*.py"))
    return {file.relative_to(ROOT): ast.parse(file.read_text("utf-8")) for file in files}


@pytest.fixture(scope="module")
def asked(modules: dict[Path, ast.Module]) -> dict[Path, set[str]]:
    """The families that each module compares with, or matches."""
    return {path: set().union(*map(named, branches(tree))) for path, tree in modules.items()}


def named(node: ast.AST) -> set[str]:
    """The families whose model_type stands in a part of a module."""
    texts = (each.value for each in ast.walk(node) if isinstance(each, ast.Constant))
    return {text for text in texts if isinstance(text, str)} & FAMILIES


def branches(tree: ast.Module) -> Iterator[ast.AST]:
    """What a module compares or matches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Compare):
            yield node
        elif isinstance(node, ast.match_case):
            yield node.pattern


def test_no_module_names_a_family_but_those_that_read_checkpoints(
    modules: dict[Path, ast.Module],
) -> None:
    """The encoder, its kernels and the service see sizes and choices, not names."""
    naming = {str(path.parent) for path, tree in modules.items() if named(tree) - {"new"}}
    assert naming == READERS


@pytest.mark.parametrize("family", sorted(FAMILIES))
def test_no_family_adds_a_branch_in_more_than_three_files(
    asked: dict[Path, set[str]], family: str
) -> None:
    """All else that it needs is a row of a table."""
    assert sum(family in families for families in asked.values()) <= MOST
