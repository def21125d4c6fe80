"""A YAML document: its value, and the line of each key."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import yaml

from service.deployment.faults import Fault, Finding
from service.wording.fault import Loc
from service.wording.words import place


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

    def finding(self, fault: Fault) -> Finding:
        """Give a fault its place."""
        path = place((*self.base, *fault.loc))
        return Finding(self.file, self.line(fault.loc), path, fault.text, fault.note)

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

    def twice(self) -> Iterator[Fault]:
        """Find keys that stand twice in one mapping, of which YAML's reader takes the last."""
        yield from _twice(self.root, (), set())


def documents(file: str, text: str, above: int = 0, base: Loc = ()) -> list[Document]:
    """Read the documents of a text.

    Raises:
        Unreadable: it is not YAML.
    """
    loader, found = yaml.SafeLoader(text), []
    try:
        while loader.check_node() and (node := loader.get_node()):
            found.append(Document(file, loader.construct_document(node), node, above, base))
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line if error.problem_mark else 0
        raise Unreadable(f"not YAML: {error.problem}", above + line + 1) from error
    except RecursionError as error:
        raise Unreadable("not YAML: nested too deeply", above + 1) from error
    except (yaml.YAMLError, ValueError) as error:  # a character, or a date, that there is not
        raise Unreadable(f"not YAML: {' '.join(str(error).split())}", above + 1) from error
    finally:
        loader.dispose()
    return found


def _step(node: yaml.Node, part: str | int) -> tuple[yaml.Node, yaml.Node] | None:
    """The key and the value one step below a node; of a key that stands twice, the last."""
    if isinstance(node, yaml.MappingNode):
        return next((pair for pair in reversed(node.value) if pair[0].value == str(part)), None)
    if isinstance(node, yaml.SequenceNode) and isinstance(part, int) and part < len(node.value):
        return node.value[part], node.value[part]
    return None


def _twice(node: yaml.Node, loc: Loc, seen: set[int]) -> Iterator[Fault]:
    """The same below a node; an alias leads to a node seen before."""
    if id(node) in seen:
        return
    seen.add(id(node))
    if isinstance(node, yaml.MappingNode):
        names = Counter(str(key.value) for key, _ in node.value)
        yield from (
            Fault((*loc, name), "stands twice; leave one") for name in names - Counter({*names})
        )
        for key, value in node.value:
            yield from _twice(value, (*loc, str(key.value)), seen)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            yield from _twice(value, (*loc, index), seen)
