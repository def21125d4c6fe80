"""ARCHITECTURE.md's picture is how the rooms import each other, and what it says is absent is.

`python tests/test_architecture.py` prints the picture with the arrows that the files have.
"""

import ast
import re
import shutil
import sys
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from http import HTTPStatus
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("service", "model", "client/headlight_client")
PICTURE = re.compile(r"^```\n(service/\n.*?)^```$", re.MULTILINE | re.DOTALL)
FILE_MODULES = {"io", "os", "pathlib", "shutil", "socket", "subprocess", "tempfile"}
ERROR_STATUSES = {status.value for status in HTTPStatus if status >= HTTPStatus.BAD_REQUEST}
# what changes something that a process has once
PROCESS_WIDE = re.compile(
    r"gc\.freeze$|os\.environ\.(setdefault|update)$|os\.dup2$|signal\.signal$|torch\.set_\w+$"
    r"|[A-Z][A-Z_]*\.(add|append|clear|extend|pop|setdefault|update)$"  # a module's own table
    r"|prometheus_client\.disable_created_metrics$|starlette\.convertors\.register_url_convertor$"
)
KEEPING = {"cache", "lru_cache"}  # decorators of functions whose answers outlive their callers
PUBLIC = {"os._exit"}  # documented, in spite of its name

Graph = dict[str, set[str]]  # module -> the modules of ours that it imports; or room -> rooms


# The files


# copies differ in a file each: what is the same is read once
parse, unparse = cache(ast.parse), cache(ast.unparse)


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
        name: {to for full in imported(tree) if (to := module(full)) and to != name}
        for name, tree in trees.items()
    }


# The rooms


def room(module: str) -> str:
    """The room a file lies in: a folder of service/ or model/, or a file of service/ itself."""
    package, first, *inner = module.split(".")
    if package == "headlight_client":
        return "client"
    if package == "model":
        return f"model.{first}" if inner else "model"
    return first


def rooms(files: Graph) -> Graph:
    """Which rooms each room imports."""
    arrows: Graph = {room(name): set() for name in files}
    for name, targets in files.items():
        arrows[room(name)] |= {room(to) for to in targets} - {room(name)}
    return arrows


def read(text: str) -> tuple[Graph, dict[str, str]]:
    """The rooms that ARCHITECTURE.md draws, from top to bottom, and what it says of each."""
    found = PICTURE.search(text)
    drawn: Graph = {}
    said: dict[str, str] = {}
    name = ""
    for line in found[1].splitlines() if found else ():
        if line.strip().startswith("-> "):
            drawn[name] |= set(line.split()[1:])
        elif line.startswith("  "):
            name, sentence = line.split(maxsplit=1)
            drawn[name], said[name] = set(), sentence
    return drawn, said


def draw(arrows: Graph, said: dict[str, str]) -> str:
    """The picture of these rooms in the order of what is said of them, what is new at the end."""
    order = [*(name for name in said if name in arrows), *sorted(arrows.keys() - said.keys())]
    lines = []
    for folder in ("service", "model", "client"):
        lines.append(f"{folder}/")
        for name in (name for name in order if wing(name) == folder):
            lines.append(f"  {name:<15}{said.get(name, 'not described')}")
            if targets := " ".join(to for to in order if to in arrows[name]):
                lines.append(f"  {'':<15}-> {targets}")
    return "\n".join(lines)


def wing(name: str) -> str:
    """The folder of a room."""
    return name.partition(".")[0] if name.startswith(("model", "client")) else "service"


# The rules


@cache
def breaches(root: Path) -> set[str]:
    """Every sentence of ARCHITECTURE.md that the files under `root` do not keep."""
    trees, page = parsed(root), (root / "ARCHITECTURE.md").read_text()
    files = graph(trees)
    return {
        *differences(rooms(files), read(page)[0]),
        *circles(files),
        *untold(trees, page),
        *(
            f"{name} {verb}"
            for verb, (breaks, allowed) in ABSENCES.items()
            for name, tree in trees.items()
            if not any(f"{name}.".startswith(f"{place}.") for place in allowed)
            and breaks(name, tree)
        ),
    }


def differences(real: Graph, drawn: Graph) -> Iterator[str]:
    """Where the picture is not what the files do, and where it points up."""
    yield from (f"{name} is not drawn" for name in real.keys() - drawn.keys())
    yield from (f"{name} is drawn and does not exist" for name in drawn.keys() - real.keys())
    for name in real.keys() & drawn.keys():
        yield from (f"{name} -> {to} is not drawn" for to in real[name] - drawn[name])
        yield from (f"{name} -> {to} is drawn, and no file" for to in drawn[name] - real[name])
    order = {name: place for place, name in enumerate(drawn)}
    for name, targets in drawn.items():
        yield from (
            f"{name} -> {to} points up" for to in targets if order.get(to, -1) < order[name]
        )


def circles(files: Graph) -> Iterator[str]:
    """Files that import each other, over however many others."""
    try:
        TopologicalSorter(files).prepare()
    except CycleError as error:
        yield f"a circle: {' -> '.join(reversed(error.args[1]))}"


def untold(trees: dict[str, ast.Module], page: str) -> Iterator[str]:
    """Names that others may change without notice and the page's table leaves out, or invents."""
    rows = re.findall(r"^\| (`.+?) \| `(\S+?)` \|", page, re.MULTILINE)
    told = {(name, place) for names, place in rows for name in re.findall(r"`(.+?)`", names)}
    used = {(name, path(file)) for file, tree in trees.items() for name in private(tree)}
    yield from (f"{place} uses {name}, and no table says so" for name, place in used - told)
    texts = {path(file): unparse(tree) for file, tree in trees.items()}
    for name, place in told - used:
        if name not in texts.get(place, ""):
            yield f"{place} is said to use {name}"


def path(module: str) -> str:
    """A module's file."""
    return f"{module.replace('.', '/')}.py"


@cache
def private(tree: ast.Module) -> set[str]:
    """What a module uses of others' private names, and the variables that it sets for Ray."""
    dotted = {name for name in (*attributes(tree), *imported(tree)) if name not in PUBLIC}
    own = ("self.", "cls.", "service.", "model.", "headlight_client.")
    names = {
        part
        for name in dotted
        if not name.startswith(own)
        for part in name.split(".")[1:]
        if re.match(r"_[a-z]", part)
    }
    for node in nodes(tree):
        if isinstance(node, ast.keyword) and (node.arg or "").startswith("_"):
            names.add(str(node.arg))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"RAY_\w+", str(node.value)):
            names.add(str(node.value))
    return names


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


@cache
def states_status(name: str, tree: ast.Module) -> bool:
    """A module holds the number of an HTTP error, or its name."""
    numbers = {node.value for node in nodes(tree) if isinstance(node, ast.Constant)}
    named = any(full.startswith(("http.HTTPStatus", "starlette.status")) for full in imported(tree))
    return named or bool(numbers & ERROR_STATUSES)


@cache
def changes_the_process(name: str, tree: ast.Module) -> bool:
    """A module changes what the whole process has once, or keeps what outlives a call."""
    kept = {
        ast.unparse(decorator).partition("(")[0]
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef)
        for decorator in node.decorator_list
    }
    bound = {full.rpartition(".")[2] for full in imported(tree)}
    assigned = any(
        isinstance(node, ast.Global)
        or isinstance(node, ast.Attribute | ast.Subscript)
        and isinstance(node.ctx, ast.Store | ast.Del)
        and re.split(r"[.\[]", ast.unparse(node))[0] in bound
        for node in nodes(tree)
    )
    names = attributes(tree) | set(imported(tree))
    return assigned or bool(kept & KEEPING) or any(map(PROCESS_WIDE.match, names))


# verb -> who breaks the rule, and who may: a file, or all of a folder
ABSENCES = {
    "imports ray": (
        uses("ray"),
        {
            "service.app",
            "service.deployment",
            "service.fleet",
            "service.launch",
            "service.probe",
            "service.rollout",
        },
    ),
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
    "touches files": (within("model", touches_files), {"model.loading", "model.text.tokenizer"}),
    "speaks": (within("model", speaks), set()),
    "calls private torch": (calls_private_torch, {"model.kernels", "model.cuda"}),
    "changes the process": (
        changes_the_process,
        {
            "service.cli",
            "service.launch",
            "service.cluster.workspace",
            "service.app",
            "service.edge.transport",
            "service.wire",
            "service.api.document",
            "service.edge.routes",
            "service.api.teaching.mechanism",
            "service.encode.questions.comparison",
            "service.encode.questions.matches",
            "service.engine",
            "service.heads.survey",
            "service.keys.ring",
            "service.observe.logs",
            "service.observe.metrics",
            "model.maps.statistics",
        },
    ),
}


def test_the_picture_is_how_rooms_import_each_other_and_the_absences_hold() -> None:
    """ARCHITECTURE.md says what the files do, room by room."""
    assert breaches(ROOT) == set()


PLANTED = {
    "an arrow up": ("service/settings.py", "import service.app", "settings -> app is not drawn"),
    "a hidden arrow": (
        "service/encode/plan.py",
        "from service.settings import KIB\nfrom service.keys import key",
        "encode -> keys is not drawn",
    ),
    "a way back": ("model/config.py", "from service import settings", "imports more than"),
    "a new file": ("service/helpers.py", "import os", "helpers is not drawn"),
    "a new room": ("model/helpers/texts.py", "import re", "model.helpers is not drawn"),
    "a circle": (
        "model/packing.py",
        "def f():\n    from model import encoder",
        "a circle: ",
    ),
    "a late import": (
        "service/encode/gateway.py",
        "def f():\n    import ray",
        "gateway imports ray",
    ),
    "a second counter": (
        "service/edge/guard.py",
        "import prometheus_client",
        "service.edge.guard imports prometheus_client",
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
    "a library": ("model/positions.py", "import numpy", "model.positions imports more than"),
    "the environment": ("model/config.py", "import os\nos.environ['A']", "reads the environment"),
    "a file": ("model/maps/maps.py", "open('x')", "model.maps.maps touches files"),
    "a log line": ("model/encoder.py", "import logging", "model.encoder speaks"),
    "a private operator": ("model/maps/maps.py", "torch.ops.aten.x()", "maps calls private torch"),
    "a private function": ("service/app.py", "torch._assert()", "app calls private torch"),
    "a private name": (
        "service/app.py",
        "ray.util._ghost()",
        "service/app.py uses _ghost, and no table says so",
    ),
    "a private argument": ("service/launch.py", "f(_hidden=1)", "service/launch.py uses _hidden"),
    "a variable of Ray's": (
        "service/cluster/ingress.py",
        "GHOST = 'RAY_SERVE_GHOST'",
        "service/cluster/ingress.py uses RAY_SERVE_GHOST",
    ),
    "global state": (
        "service/encode/price.py",
        "def f():\n    global spent",
        "service.encode.price changes the process",
    ),
    "an entry in a library's table": (
        "service/encode/price.py",
        "from uvicorn import config\nconfig.HTTP_PROTOCOLS['auto'] = 'x'",
        "service.encode.price changes the process",
    ),
    "an entry in a table of ours": (
        "service/encode/price.py",
        "SEEN = {}\nSEEN.setdefault(1, 2)",
        "service.encode.price changes the process",
    ),
    "a setting of all threads": (
        "service/encode/price.py",
        "import torch\ntorch.set_num_threads(1)",
        "service.encode.price changes the process",
    ),
}


@pytest.mark.parametrize(("file", "line", "sentence"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_breach_is_caught(tmp_path: Path, file: str, line: str, sentence: str) -> None:
    """Each rule fails on a file written to break it."""
    house = copy(tmp_path)

    (house / file).parent.mkdir(exist_ok=True)
    with (house / file).open("a") as planted:
        planted.write(f"\n{line}\n")

    assert any(sentence in breach for breach in breaches(house) - breaches(ROOT))


@pytest.mark.parametrize(
    ("there", "instead", "sentence"),
    [
        ("  model.maps ", "  model.ghost    x\n  model.maps ", "model.ghost is drawn and does not"),
        ("-> launch ", "-> page launch ", "cli -> page is drawn, and no file"),
        ("-> keys\n", "-> app keys\n", "settings -> app points up"),
        ("`_global_node`", "`_global_node` `_ghost`", "service/rollout.py is said to use _ghost"),
    ],
    ids=["a room", "an arrow", "an arrow up", "a private name"],
)
def test_a_page_that_promises_too_much_is_caught(
    tmp_path: Path, there: str, instead: str, sentence: str
) -> None:
    """What is drawn or told and does not exist is as wrong as what is hidden."""
    house = copy(tmp_path)
    page = house / "ARCHITECTURE.md"

    page.write_text(page.read_text().replace(there, instead, 1))

    assert any(sentence in breach for breach in breaches(house) - breaches(ROOT))


def copy(folder: Path) -> Path:
    """The house without its furniture."""
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "ARCHITECTURE.md", folder)
    return folder


if __name__ == "__main__":
    page = ROOT / "ARCHITECTURE.md"
    print(draw(rooms(graph(parsed(ROOT))), read(page.read_text())[1]))
