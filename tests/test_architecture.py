"""ARCHITECTURE.md's drawing is the import graph, and what it says is absent is absent.

`python tests/test_architecture.py` prints the graph of the files as they are, as a drawing.
"""

import ast
import re
import shutil
import sys
from collections.abc import Callable, Iterable
from functools import cache
from http import HTTPStatus
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("service", "model", "client/headlight_client")
PACKAGES = {Path(folder).name: folder for folder in FOLDERS}
DRAWING = re.compile(r"^```\n(service/\n.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_MODULES = {"io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile"}
ERROR_STATUSES = {status.value for status in HTTPStatus if status >= HTTPStatus.BAD_REQUEST}

Graph = dict[str, set[str]]  # module -> the modules of ours that it imports


# The files


parse = cache(ast.parse)  # copies differ in a file each: one tree for what is the same


def parsed(root: Path) -> dict[str, ast.Module]:
    """Every module of ours by its dotted name; a package's own file is `package.__init__`."""
    trees = {
        ".".join(path.relative_to((root / folder).parent).with_suffix("").parts): parse(
            path.read_text()
        )
        for folder in FOLDERS
        for path in sorted((root / folder).rglob("*.py"))
    }
    return {
        name: tree
        for name, tree in trees.items()
        if not name.endswith(".__init__") or any(imported(tree))
    }


@cache
def nodes(tree: ast.Module) -> tuple[ast.AST, ...]:
    """Everything in a module."""
    return tuple(ast.walk(tree))


@cache
def imported(tree: ast.Module) -> tuple[str, ...]:
    """The full name of each thing a module imports, wherever in the file it does."""
    names: list[str] = []
    for node in nodes(tree):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            start = "." * node.level + (node.module or "")
            names += [f"{start}.{alias.name}" for alias in node.names]
    return tuple(names)


@cache
def attributes(tree: ast.Module) -> set[str]:
    """Each dotted name that is read in a module, such as `torch.ops.aten`."""

    def dotted(node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{dotted(node.value)}.{node.attr}"
        return node.id if isinstance(node, ast.Name) else ""

    return {dotted(node) for node in nodes(tree) if isinstance(node, ast.Attribute)}


def graph(trees: dict[str, ast.Module]) -> Graph:
    """Which of our modules each of our modules imports."""

    def module(name: str) -> str | None:
        while name not in trees:
            if f"{name}.__init__" in trees:
                return f"{name}.__init__"
            if "." not in name:
                return None
            name = name.rpartition(".")[0]
        return name

    return {
        name: {found for full in imported(tree) if (found := module(full))}
        for name, tree in trees.items()
    }


# The drawing


def read(text: str) -> Graph:
    """The graph that ARCHITECTURE.md draws."""
    found = DRAWING.search(text)
    drawn: Graph = {}
    package = ""
    for line in found[1].splitlines() if found else ():
        if line.endswith("/"):
            package = Path(line).name
            continue
        name, _, targets = line.partition("->")
        drawn[f"{package}.{name.strip()}"] = {
            target if target.partition(".")[0] in PACKAGES else f"{package}.{target}"
            for target in targets.split()
        }
    return drawn


def draw(edges: Graph, order: Iterable[str]) -> str:
    """A graph as ARCHITECTURE.md draws it: in a given order, what is new at the end."""
    names = [*order, *sorted(edges.keys() - set(order))]
    lines = []
    for package, folder in PACKAGES.items():
        lines.append(f"{folder}/")
        for name in (name for name in names if name in edges and name.startswith(f"{package}.")):
            targets = (to.removeprefix(f"{package}.") for to in names if to in edges[name])
            line = f"  {name.removeprefix(f'{package}.')} -> {' '.join(targets)}"
            lines.append(line.removesuffix(" -> "))
    return "\n".join(lines)


# The rules


@cache
def breaches(root: Path) -> set[str]:
    """Every sentence of ARCHITECTURE.md that the files under `root` do not keep."""
    trees = parsed(root)
    real, drawn = graph(trees), read((root / "ARCHITECTURE.md").read_text())
    found = {f"{name} is not drawn" for name in real.keys() - drawn.keys()}
    found |= {f"{name} is drawn and does not exist" for name in drawn.keys() - real.keys()}
    for name in real.keys() & drawn.keys():
        found |= {f"{name} -> {to} is not drawn" for to in real[name] - drawn[name]}
        found |= {f"{name} -> {to} is drawn and does not exist" for to in drawn[name] - real[name]}
    return found | {
        f"{name} {verb}"
        for verb, (breaks, allowed) in ABSENCES.items()
        for name, tree in trees.items()
        if name not in allowed and breaks(name, tree)
    }


def uses(*libraries: str) -> Callable[[str, ast.Module], bool]:
    """A module imports one of these."""
    return lambda name, tree: any(full.partition(".")[0] in libraries for full in imported(tree))


def within(
    package: str, breaks: Callable[[str, ast.Module], bool]
) -> Callable[[str, ast.Module], bool]:
    """The rule is for one package alone."""
    return lambda name, tree: name.startswith(f"{package}.") and breaks(name, tree)


def uses_more_than(*libraries: str) -> Callable[[str, ast.Module], bool]:
    """A module imports more than these and the standard library."""
    allowed = {*libraries} | sys.stdlib_module_names
    return lambda name, tree: any(full.partition(".")[0] not in allowed for full in imported(tree))


def reads_environment(name: str, tree: ast.Module) -> bool:
    """A module looks at the variables of its process."""
    found = attributes(tree) | set(imported(tree))
    return bool(found & {"os.environ", "os.getenv"})


def touches_files(name: str, tree: ast.Module) -> bool:
    """A module can open a file or a connection."""
    opened = (node.id == "open" for node in nodes(tree) if isinstance(node, ast.Name))
    return uses(*FILE_MODULES)(name, tree) or any(opened)


def speaks(name: str, tree: ast.Module) -> bool:
    """A module writes to a log or a screen."""
    printed = (node.id == "print" for node in nodes(tree) if isinstance(node, ast.Name))
    return uses("logging", "warnings")(name, tree) or any(printed)


def calls_private_torch(name: str, tree: ast.Module) -> bool:
    """A module calls what torch may change without notice."""
    found = attributes(tree) | set(imported(tree))
    return any(re.match(r"torch\.(ops\b|(\w+\.)*_[a-z]|_C\b)", full) for full in found)


def states_status(name: str, tree: ast.Module) -> bool:
    """A module holds the number of an HTTP error, or its name."""
    numbers = {node.value for node in nodes(tree) if isinstance(node, ast.Constant)}
    named = any(full.startswith(("http.HTTPStatus", "starlette.status")) for full in imported(tree))
    return named or bool(numbers & ERROR_STATUSES)


ABSENCES = {
    "imports ray": (uses("ray"), {"service.app", "service.launch"}),
    "imports prometheus_client": (uses("prometheus_client"), {"service.observe.metrics"}),
    "states an HTTP status": (states_status, {"service.refusals"}),
    "imports more than a model needs": (
        within("model", uses_more_than("model", "safetensors", "tokenizers", "torch")),
        set(),
    ),
    "imports more than a client needs": (
        within("headlight_client", uses_more_than("headlight_client", "httpx", "numpy")),
        set(),
    ),
    "reads the environment": (within("model", reads_environment), set()),
    "touches files": (
        within("model", touches_files),
        {"model.loading.checkpoint", "model.loading.sentence_transformers", "model.tokenizer"},
    ),
    "speaks": (within("model", speaks), set()),
    "calls private torch": (calls_private_torch, {"model.kernels", "model.cuda"}),
}


def test_the_drawing_is_the_import_graph_and_the_absences_hold() -> None:
    """ARCHITECTURE.md says what the files do, edge by edge."""
    assert breaches(ROOT) == set()


PLANTED = {
    "an edge to app": ("service/settings.py", "import service.app", "-> service.app is not drawn"),
    "a way back": ("model/config.py", "from service import settings", "imports more than"),
    "a new file": ("service/helpers.py", "import os", "service.helpers is not drawn"),
    "a late import": (
        "service/encode/gateway.py",
        "def f():\n    import ray",
        "gateway imports ray",
    ),
    "a second counter": (
        "service/edge/routes.py",
        "import prometheus_client",
        "edge imports prometheus",
    ),
    "a status": ("service/engine/batcher.py", "BUSY = 429", "batcher states an HTTP status"),
    "a named status": (
        "service/edge/guard.py",
        "from http import HTTPStatus",
        "guard states an HTTP",
    ),
    "a client's way in": (
        "client/headlight_client/call.py",
        "from service.encode.answer import JSON",
        "headlight_client.call imports more than a client needs",
    ),
    "a client's library": (
        "client/headlight_client/inputs.py",
        "import orjson",
        "headlight_client.inputs imports more than a client needs",
    ),
    "a library": ("model/heads.py", "import numpy", "model.heads imports more than"),
    "the environment": ("model/config.py", "import os\nos.environ['A']", "reads the environment"),
    "a file": ("model/maps/maps.py", "open('x')", "model.maps.maps touches files"),
    "a log line": ("model/encoder.py", "import logging", "model.encoder speaks"),
    "a private operator": ("model/maps/maps.py", "torch.ops.aten.x()", "maps calls private torch"),
    "a private function": ("service/app.py", "torch._assert()", "app calls private torch"),
}


@pytest.mark.parametrize(("file", "line", "sentence"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_breach_is_caught(tmp_path: Path, file: str, line: str, sentence: str) -> None:
    """Each rule fails on a file written to break it."""
    house = copy(tmp_path)

    with (house / file).open("a") as planted:
        planted.write(f"\n{line}\n")

    assert any(sentence in breach for breach in breaches(house) - breaches(ROOT))


def test_a_drawing_that_promises_too_much_is_caught(tmp_path: Path) -> None:
    """A drawn edge or file that does not exist is as wrong as a hidden one."""
    house = copy(tmp_path)
    edges = graph(parsed(house))
    edges["model.errors"] = {"model.encoder"}
    edges["model.ghost"] = set()

    (house / "ARCHITECTURE.md").write_text(f"```\n{draw(edges, ())}\n```\n")

    assert breaches(house) - breaches(ROOT) == {
        "model.errors -> model.encoder is drawn and does not exist",
        "model.ghost is drawn and does not exist",
    }


def copy(folder: Path) -> Path:
    """The house without its furniture."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "ARCHITECTURE.md", folder)
    return folder


if __name__ == "__main__":
    page = ROOT / "ARCHITECTURE.md"
    print(draw(graph(parsed(ROOT)), read(page.read_text())))
