"""Where the families' names stand in the code: what a new family costs a reader."""

import ast
from pathlib import Path

from model import families

ROOT = Path(__file__).parent.parent.parent.parent
NAMES = {family.name for family in families.FAMILIES} - {"new"}  # a word of many uses
FILES = "model/loading/modules.py"  # names those that sentence-transformers may have written


def test_no_file_names_a_family_but_its_own() -> None:
    """What loads, computes and serves sees sizes and choices, not names."""
    files = (file for folder in ("model", "service") for file in (ROOT / folder).rglob("*.py"))

    naming = {str(file.relative_to(ROOT)) for file in files if texts(file) & NAMES}

    assert {name for name in naming if not name.startswith("model/families/")} == {FILES}


def texts(file: Path) -> set[str]:
    """The strings of a module."""
    nodes = ast.walk(ast.parse(file.read_text("utf-8")))
    constants = {node.value for node in nodes if isinstance(node, ast.Constant)}
    return {text for text in constants if isinstance(text, str)}
