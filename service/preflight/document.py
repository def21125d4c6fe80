"""A YAML document: its value, and the line of each key."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

import yaml

from service.preflight.finding import Finding
from service.wording.words import Loc


class Unreadable(Exception):
    """A text is not YAML; its text is one line, and `line` where the reader stopped."""

    def __init__(self, text: str, line: int) -> None:
        super().__init__(text, line)
        self.text, self.line = text, line


@dataclass(frozen=True, eq=False)
class Document:
    """One document of a file.

    Args:
        file: its name, as it was named.
        value: what it holds.
        root: the same with places.
        above: lines of the file above the document's first.
        base: where in the file the document lies, if it is a text within another.
    """

    file: str
    value: Any
    root: yaml.Node
    above: int = 0
    base: Loc = ()

    def line(self, loc: Loc) -> int:
        """Return the line of a key or an entry, or of the nearest above it that is there."""
        node, line = self.root, self.root.start_mark.line
        for part in loc:
            step = _step(node, part)
            if step is None:
                break
            line, node = step[0].start_mark.line, step[1]
        return self.above + line + 1

    def locate(self, found: Finding) -> Finding:
        """Return a finding with its line."""
        loc: Loc = found.place  # type: ignore[assignment]  # of a file they are keys
        return replace(found, place=(*self.base, *loc), file=self.file, line=self.line(loc))

    def within(self, loc: Loc) -> "Document":
        """Read the text at a key as a document of its own.

        Raises:
            Unreadable: it is not one document of YAML.
        """
        node = self.root
        for part in loc:
            step = _step(node, part)
            node = step[1] if step else node
        inside = isinstance(node, yaml.ScalarNode) and node.style == "|"  # its lines are the file's
        above = self.above + node.start_mark.line + 1 if inside else self.line(loc) - 1
        found = documents(self.file, node.value, above, (*self.base, *loc))
        if len(found) != 1:
            raise Unreadable(f"holds {len(found)} documents, and must hold one", self.line(loc))
        return found[0]


class Loader(yaml.SafeLoader):
    """Reads YAML, and refuses a key that occurs twice, where PyYAML takes the last."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Any, Any]:
        """Refuse a repeated key, then read the mapping."""
        seen = set[str]()
        for key, _ in node.value:
            if key.value in seen:
                text = f"{key.value} stands twice; leave one"
                raise yaml.constructor.ConstructorError(problem=text, problem_mark=key.start_mark)
            seen.add(str(key.value))
        return super().construct_mapping(node, deep)


def documents(file: str, text: str, above: int = 0, base: Loc = ()) -> list[Document]:
    """Read the documents of a text.

    Raises:
        Unreadable: it is not YAML.
    """
    loader, found = Loader(text), []
    try:
        while loader.check_node() and (node := loader.get_node()):
            found.append(Document(file, loader.construct_document(node), node, above, base))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        raise Unreadable(f"not YAML: {error.problem}", above + line + 1) from error
    except RecursionError as error:
        raise Unreadable("not YAML: nested too deeply", above + 1) from error
    except (yaml.YAMLError, ValueError) as error:  # an impossible character or date
        raise Unreadable(f"not YAML: {' '.join(str(error).split())}", above + 1) from error
    finally:
        loader.dispose()
    return found


def leaves(value: Any, loc: Loc = ()) -> Iterator[tuple[Loc, Any]]:
    """Yield each scalar, and each empty mapping or list, with its place."""
    inner: Iterator[tuple[Any, Any]] = iter(())
    if isinstance(value, Mapping):
        inner = iter(value.items())
    elif isinstance(value, list):
        inner = iter(enumerate(value))
    if not value or not isinstance(value, Mapping | list):
        yield loc, value
    for key, each in inner:
        yield from leaves(each, (*loc, key))


def get(value: Any, loc: Loc, otherwise: Any = None) -> Any:
    """Return the value at a place; the other where there is none, or none of the other's type."""
    for part in loc:
        try:
            value = value[part]
        except (KeyError, IndexError, TypeError):
            return otherwise
    return value if otherwise is None or isinstance(value, type(otherwise)) else otherwise


def _step(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """Return the key and the value one step below a node."""
    if isinstance(node, yaml.MappingNode):
        return next((pair for pair in node.value if pair[0].value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None
