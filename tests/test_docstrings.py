"""A docstring explains parameters and fields by the names that they have."""

import ast
import re
from collections.abc import Iterator

import pytest

from tests.test_architecture import ROOT, nodes, parsed

SECTION = re.compile(r"^(?:Args|Attributes):\n((?: {4}.*(?:\n|$)|\n)+)", re.MULTILINE)
NAMES = re.compile(r"^ {4}([a-z_]\w*(?:, [a-z_]\w*)*): ", re.MULTILINE)
NOUN = re.compile(r"(A|An|The|What|Whether|How|All|Each|Its) ")
Definition = ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef


def explained(docstring: str) -> Iterator[str]:
    """The names that a docstring's sections explain."""
    for section in SECTION.findall(docstring):
        for names in NAMES.findall(section):
            yield from names.split(", ")


def named(definition: Definition) -> set[str]:
    """The names of a function's parameters, or all names that a class gives."""
    if not isinstance(definition, ast.ClassDef):
        return {node.arg for node in ast.walk(definition.args) if isinstance(node, ast.arg)}
    names = set[str]()
    for node in ast.walk(definition):
        match node:
            case ast.arg(arg=name) | ast.FunctionDef(name=name):
                names.add(name)
            case ast.Name(id=name, ctx=ast.Store()) | ast.Attribute(attr=name, ctx=ast.Store()):
                names.add(name)
    return names


def strangers(definition: Definition) -> set[str]:
    """The names that a docstring explains and its definition does not have."""
    return {*explained(ast.get_docstring(definition) or "")} - named(definition)


def test_what_a_docstring_explains_is_there() -> None:
    """A name that changed without its docstring stands here."""
    found = {
        f"{module}.{node.name}": names
        for module, tree in parsed(ROOT).items()
        for node in nodes(tree)
        if isinstance(node, Definition) and (names := strangers(node))
    }

    assert found == {}


def test_what_a_function_does_begins_with_a_verb() -> None:
    """Not with an article or a question word, as a noun does."""
    found = {
        f"{module}.{node.name}"
        for module, tree in parsed(ROOT).items()
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        and NOUN.match(ast.get_docstring(node) or "")
    }

    assert found == set()


@pytest.mark.parametrize("field", ["size", "sizes"])
def test_a_stranger_is_found(field: str) -> None:
    """In a class of fields."""
    text = f'class A:\n    """A.\n\n    Args:\n        size: of it.\n    """\n\n    {field}: int'
    (definition,) = ast.parse(text).body
    assert isinstance(definition, ast.ClassDef)

    assert strangers(definition) == ({"size"} - {field})
