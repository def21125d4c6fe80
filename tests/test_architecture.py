"""ARCHITECTURE.md's picture is how the rooms import each other, and its rules hold.

`python tests/test_architecture.py` prints the picture with the arrows that the files have.
"""

import ast
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from http import HTTPStatus
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
FOLDERS = ("service", "model", "client/headlight_client")
MARGIN = " " * 12
PICTURE = re.compile(r"^```\n(service/\n.*?)^```$", re.MULTILINE | re.DOTALL)
STAGE = re.compile(r"`(pipeline/[\w/]+)\.py`[,.]")  # in the life of a request
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
NAMEDTUPLE = {"_asdict", "_fields", "_make", "_replace"}  # documented as well

UPSTREAM, STATE = "docs/upstream.md", "docs/state.md"  # names of others; what a process has once
# Both may only fall: rows of private names, and places where tests reach into some
MOST_ROWS, MOST_REACHES = 19, 43

Graph = dict[str, set[str]]  # module -> the modules of ours that it imports; or room -> rooms


class House(NamedTuple):
    """What ARCHITECTURE.md draws: rooms from top to bottom."""

    parts: dict[str, str]  # folder or file -> its room, from top to bottom
    said: dict[str, str]  # room -> what it is for
    arrows: Graph


# The files


# copies differ in a file each: what is the same is read once
parse, unparse = cache(ast.parse), cache(ast.unparse)


def parsed(root: Path) -> dict[str, ast.Module]:
    """Parse every module of ours by its dotted name; a package's file is `package.__init__`."""
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
    """Return everything in a module."""
    return tuple(ast.walk(tree))


@cache
def imported(tree: ast.Module) -> tuple[str, ...]:
    """Return the full name of each thing a module imports, wherever in the file it does."""
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
    """Return each dotted name that is read in a module, such as `torch.ops.aten`."""

    def dotted(node: ast.expr) -> str:
        if isinstance(node, ast.Attribute):
            return f"{dotted(node.value)}.{node.attr}"
        return node.id if isinstance(node, ast.Name) else ""

    return {dotted(node) for node in nodes(tree) if isinstance(node, ast.Attribute)}


def graph(trees: dict[str, ast.Module]) -> Graph:
    """Return which of our modules each of our modules imports."""

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


def part(module: str) -> str:
    """Name the part of a room that a file lies in: a folder, or a file next to the folders."""
    package, first, *inner = module.split(".")
    if package == "headlight_client":
        return "client"
    if package == "model":
        return f"model.{first}" if inner else "model"
    return first


def parts(files: Graph) -> Graph:
    """Return which parts each part imports."""
    arrows: Graph = {part(name): set() for name in files}
    for name, targets in files.items():
        arrows[part(name)] |= {part(to) for to in targets} - {part(name)}
    return arrows


def rooms(real: Graph, house: House) -> Graph:
    """Return which rooms each room imports; a part that is not drawn is a room of its own."""
    arrows: Graph = {house.parts.get(name, name): set() for name in real}
    for name, targets in real.items():
        room = house.parts.get(name, name)
        arrows[room] |= {house.parts.get(to, to) for to in targets} - {room}
    return arrows


def read(text: str) -> House:
    """Read the picture: a room with its parts, what it is for, and the rooms that it imports."""
    found = PICTURE.search(text)
    house, wing, room = House({}, {}, {}), "", ""
    for line in found[1].splitlines() if found else ():
        if not line.startswith(" "):
            wing = line.rstrip("/")
        elif line.strip().startswith("-> "):
            house.arrows[room] |= set(line.split()[1:])
        elif line.startswith(MARGIN):
            house.said[room] = line.strip()
        else:
            room, *inside = line.split()
            house.arrows[room] = set()
            for name in inside:
                full = f"model.{name}" if wing == "model" and name != "model" else name
                house.parts[full] = room
    return house


def draw(real: Graph, house: House) -> str:
    """Draw the rooms in the order of the page, with what is new at the end."""
    arrows = rooms(real, house)
    order = [*(room for room in house.said if room in arrows), *sorted(arrows - house.said.keys())]
    lines = []
    for wing in ("service", "model", "client"):
        lines.append(f"{wing}/")
        for room in order:
            inside = [name for name, own in house.parts.items() if own == room and name in real]
            inside = inside or [room]
            if (
                next((top for top in ("model", "client") if inside[0].startswith(top)), "service")
                == wing
            ):
                names = " ".join(name.removeprefix("model.") for name in inside)
                lines += [
                    f"  {room:<10}{names}",
                    f"{MARGIN}{house.said.get(room, 'not described')}",
                ]
                if targets := " ".join(to for to in order if to in arrows[room]):
                    lines.append(f"{MARGIN}-> {targets}")
    return "\n".join(lines)


# The rules


def breaches(root: Path) -> set[str]:
    """Return every sentence of the pages that the files under `root` do not keep."""
    trees, page = parsed(root), (root / "ARCHITECTURE.md").read_text()
    files = graph(trees)
    return {
        *differences(parts(files), read(page)),
        *circles(files),
        *crossings(files),
        *skipped(files, page),
        *untold(trees, (root / UPSTREAM).read_text()),
        *unowned(trees, (root / STATE).read_text()),
        *(
            f"{name} {verb}"
            for verb, (breaks, allowed) in ABSENCES.items()
            for name, tree in trees.items()
            if not any(f"{name}.".startswith(f"{place}.") for place in allowed)
            and breaks(name, tree)
        ),
    }


def differences(real: Graph, house: House) -> Iterator[str]:
    """Yield where the picture is not what the files do, and where it points up."""
    yield from (f"{name} is not drawn" for name in real.keys() - house.parts.keys())
    yield from (f"{name} is drawn and does not exist" for name in house.parts.keys() - real.keys())
    arrows = rooms(real, house)
    for name, drawn in house.arrows.items():
        there = arrows.get(name, set())
        yield from (f"{name} -> {to} is not drawn" for to in there - drawn)
        yield from (f"{name} -> {to} is drawn, and no file" for to in drawn - there)
    # within a room, too, a part imports only what stands further down
    order = {name: place for place, name in enumerate(house.parts)}
    for name, targets in real.items():
        yield from (
            f"{name} -> {to} points up"
            for to in targets
            if order.get(to, len(order)) < order.get(name, -1)
            and not (name == "model" and to.startswith("model."))  # its files use its folders
        )


def circles(files: Graph) -> Iterator[str]:
    """Yield files that import each other, over however many others."""
    try:
        TopologicalSorter(files).prepare()
    except CycleError as error:
        yield f"a circle: {' -> '.join(reversed(error.args[1]))}"


def crossings(files: Graph) -> Iterator[str]:
    """Yield files of api/ that import an API of which they are no part: only the list does."""
    start, listed = "service.api.", "service.api.__init__"
    names = {name.removeprefix(start).partition(".")[0] for name in files.get(listed, ())}
    for name, targets in files.items():
        if name.startswith(start) and name != listed:
            known = {to.removeprefix(start).partition(".")[0] for to in targets if start in to}
            own = name.removeprefix(start).partition(".")[0]
            yield from (f"{name} imports the API {api}" for api in known & names - {"dialect", own})


def skipped(files: Graph, page: str) -> Iterator[str]:
    """Yield stages of an answer that import each other: only the gateway knows their order."""
    stages = {f"service.{name.replace('/', '.')}" for name in STAGE.findall(page)}
    for name in stages & files.keys():
        yield from (f"{name} knows the stage {to}" for to in files[name] & stages)
    yield from (f"{name} is no stage" for name in stages - files.keys())


def unowned(trees: dict[str, ast.Module], page: str) -> Iterator[str]:
    """Yield files that change what a process has once and are not told of, or the other way."""
    rows = re.findall(r"^\| .+ \| (`.+) \|$", page, re.MULTILINE)
    told = {file for row in rows for file in re.findall(r"`(\S+\.py)`", row)}
    changing = {path(name) for name, tree in trees.items() if changes_the_process(name, tree)}
    yield from (f"{file} changes the process, and no table says so" for file in changing - told)
    yield from (f"{file} is said to change the process" for file in told - changing)


def untold(trees: dict[str, ast.Module], page: str) -> Iterator[str]:
    """Yield names that may go without notice and the table leaves out, or invents."""
    rows = re.findall(r"^\| (`.+?) \| `(\S+?)` \|", page, re.MULTILINE)
    told = {(name, place) for names, place in rows for name in re.findall(r"`(.+?)`", names)}
    used = {(name, path(file)) for file, tree in trees.items() for name in private(tree)}
    yield from (f"{place} uses {name}, and no table says so" for name, place in used - told)
    files = {path(file): tree for file, tree in trees.items()}
    for name, place in told - used:
        if place not in files or name not in unparse(files[place]):
            yield f"{place} is said to use {name}"


def path(module: str) -> str:
    """Return a module's file."""
    return f"{module.replace('.', '/')}.py"


@cache
def private(tree: ast.Module) -> set[str]:
    """Return the private names of others that a module uses, and the variables it sets for Ray."""
    dotted = {name for name in (*attributes(tree), *imported(tree)) if name not in PUBLIC}
    ours = {node.name for node in nodes(tree) if isinstance(node, ast.FunctionDef)}
    ours |= {name.partition(".")[2] for name in attributes(tree) if name.startswith("self.")}
    own = ("self.", "cls.", "service.", "model.", "headlight_client.")
    names = {
        part
        for name in dotted
        if not name.startswith(own)
        for part in name.split(".")[1:]
        if re.match(r"_[a-z]", part) and part not in ours | NAMEDTUPLE
    }
    for node in nodes(tree):
        if isinstance(node, ast.keyword) and (node.arg or "").startswith("_"):
            names.add(str(node.arg))
        elif isinstance(node, ast.Constant) and re.fullmatch(r"RAY_\w+", str(node.value)):
            names.add(str(node.value))
    return names


def uses(*libraries: str) -> Callable[[str, ast.Module], bool]:
    """Tell whether a module imports one of these."""
    return lambda name, tree: any(full.partition(".")[0] in libraries for full in imported(tree))


def within(
    package: str, breaks: Callable[[str, ast.Module], bool]
) -> Callable[[str, ast.Module], bool]:
    """Limit a rule to one package."""
    return lambda name, tree: name.startswith(f"{package}.") and breaks(name, tree)


def uses_more_than(*libraries: str) -> Callable[[str, ast.Module], bool]:
    """Tell whether a module imports more than these and the standard library."""
    allowed = {*libraries} | sys.stdlib_module_names
    return lambda name, tree: any(full.partition(".")[0] not in allowed for full in imported(tree))


def reads_environment(name: str, tree: ast.Module) -> bool:
    """Tell whether a module looks at the variables of its process."""
    found = attributes(tree) | set(imported(tree))
    return bool(found & {"os.environ", "os.getenv"})


def touches_files(name: str, tree: ast.Module) -> bool:
    """Tell whether a module can open a file or a connection."""
    opened = (node.id == "open" for node in nodes(tree) if isinstance(node, ast.Name))
    return uses(*FILE_MODULES)(name, tree) or any(opened)


def speaks(name: str, tree: ast.Module) -> bool:
    """Tell whether a module writes to a log or a screen."""
    printed = (node.id == "print" for node in nodes(tree) if isinstance(node, ast.Name))
    return uses("logging", "warnings")(name, tree) or any(printed)


@cache
def calls_private_torch(name: str, tree: ast.Module) -> bool:
    """Tell whether a module calls what torch may change without notice."""
    found = attributes(tree) | set(imported(tree))
    return any(re.match(r"torch\.(ops\b|(\w+\.)*_[a-z]|_C\b)", full) for full in found)


@cache
def states_status(name: str, tree: ast.Module) -> bool:
    """Tell whether a module holds the number of an HTTP error, or its name; MOST_ bounds."""
    bounds = [node.value for node in tree.body if isinstance(node, ast.Assign) and bounds_one(node)]
    others = (node for node in nodes(tree) if node not in bounds)
    numbers = {node.value for node in others if isinstance(node, ast.Constant)}
    named = any(full.startswith(("http.HTTPStatus", "starlette.status")) for full in imported(tree))
    return named or bool(numbers & ERROR_STATUSES)


def bounds_one(node: ast.Assign) -> bool:
    """Tell whether an assignment is of a constant that bounds something."""
    return ast.unparse(node.targets[0]).startswith("MOST_")


@cache
def changes_the_process(name: str, tree: ast.Module) -> bool:
    """Tell whether a module changes what the process has once, or keeps what outlives a call."""
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
    assigned |= any(
        isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)  # an object, which changes
        and ast.unparse(node.targets[0]) in ("PROCESS", "HERE")
        for node in tree.body
    )
    names = attributes(tree) | set(imported(tree))
    return assigned or bool(kept & KEEPING) or any(map(PROCESS_WIDE.match, names))


def keeps_state(name: str, tree: ast.Module) -> bool:
    """Tell whether a question's methods set what the next stage would have to find there."""
    stages = (
        node
        for node in nodes(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.name != "__init__"
    )
    return name.endswith(".question") and any(
        isinstance(node, ast.Attribute)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == "self"
        for stage in stages
        for node in ast.walk(stage)
    )


# verb -> who breaks the rule, and who may: a file, or all of a folder
ABSENCES: dict[str, tuple[Callable[[str, ast.Module], bool], set[str]]] = {
    "imports ray": (
        uses("ray"),
        {
            "service.app",
            "service.cluster.controller",
            "service.fleet",
            "service.preflight",
            "service.start",
        },
    ),
    "imports prometheus_client": (uses("prometheus_client"), {"service.observe.metrics"}),
    "states an HTTP status": (states_status, {"service.tables.refusals"}),
    "imports more than a model needs": (
        within("model", uses_more_than("model", "safetensors", "tokenizers", "torch")),
        set(),
    ),
    "imports more than a client needs": (
        within("headlight_client", uses_more_than("headlight_client", "httpx", "numpy")),
        {"headlight_client.data", "headlight_client.pictures"},
    ),
    "imports matplotlib": (uses("matplotlib"), {"headlight_client.pictures"}),
    "imports pyarrow": (
        uses("pyarrow"),
        {"headlight_client.data", "service.commands.bulk.parquet"},
    ),
    "reads the environment": (within("model", reads_environment), set()),
    "touches files": (within("model", touches_files), {"model.loading", "model.text.tokenizer"}),
    "speaks": (within("model", speaks), set()),
    "keeps state between stages": (within("service.questions", keeps_state), set()),
    "calls private torch": (
        calls_private_torch,
        {"model.kernels", "model.cuda", "model.native.operators"},
    ),
}


def test_the_picture_is_how_rooms_import_each_other_and_the_rules_hold() -> None:
    """ARCHITECTURE.md and its two lists say what the files do."""
    assert breaches(ROOT) == set()


def reaches(tree: ast.Module) -> Iterator[str]:
    """Yield each private name that a test uses of something else than itself."""
    for node in nodes(tree):
        match node:
            case ast.Attribute(value=value, attr=name) if name.startswith("_"):
                if ast.unparse(value) not in ("self", "cls") and ast.unparse(node) not in PUBLIC:
                    yield name
            case ast.ImportFrom(names=names):
                yield from (alias.name for alias in names)
            case ast.Call(func=ast.Attribute(attr=called) | ast.Name(id=called), args=args):
                if called in ("setattr", "getattr", "delattr", "patch"):
                    texts = (str(arg.value) for arg in args if isinstance(arg, ast.Constant))
                    yield from (text.rpartition(".")[2] for text in texts)


def reached(text: str) -> list[str]:
    """List the private names that a test's text reaches into."""
    if not re.search(r"\b_[a-z]", text):  # as most have none, and parsing them all takes seconds
        return []
    return [
        name
        for name in reaches(parse(text))
        if re.match(r"_[a-z]", name) and name not in NAMEDTUPLE
    ]


def test_ever_fewer_tests_reach_into_private_names() -> None:
    """What a user of a class cannot see is seldom worth a test.

    The rest is in tests/replica_internals.py.
    """
    found = {
        str(path.relative_to(ROOT)): names
        for path in sorted((ROOT / "tests").rglob("*.py"))
        if (names := reached(path.read_text()))
    }

    assert sum(map(len, found.values())) <= MOST_REACHES, found


@pytest.mark.parametrize(
    "line",
    [
        "replica.batcher._queue = 1",
        "client._transport.app",
        "monkeypatch.setattr(worker, '_most', 1)",
        "monkeypatch.delattr('service.pipeline.find.resolver._names')",
        "from service.commands.convert import _jobs",
        "super()._run_once()",
    ],
)
def test_a_reach_is_seen_however_it_is_written(line: str) -> None:
    """What a test keeps of its own, and what is documented, is none."""
    assert len(reached(f"self._own = held._replace(a=1)\n{line}\nos._exit(1)")) == 1


def test_ever_fewer_private_names_of_others_carry_a_promise() -> None:
    """A name that is documented stands apart, at the end of Ray's."""
    private_names, _, rest = (ROOT / UPSTREAM).read_text().partition("\n### Documented")
    rows = re.findall(r"^\| `.+ \| `\S+`.* \|", private_names + rest.partition("\n## ")[2], re.M)

    assert 10 < len(rows) <= MOST_ROWS


PLANTED = {
    "an arrow up": (
        "service/tables/settings.py",
        "import service.app",
        "tables -> app points up",
    ),
    "an arrow up in a room": (
        "service/preflight/finding.py",
        "from service.fleet import policy",
        "preflight -> fleet points up",
    ),
    "a hidden arrow": (
        "service/observe/logs.py",
        "from service.tables.settings import KIB\nfrom service.cluster import network",
        "observe -> cluster is not drawn",
    ),
    "an arrow of types": (
        "service/shapes/ask.py",
        "if TYPE_CHECKING:\n    from service.pipeline import cost",
        "shapes -> pipeline is not drawn",
    ),
    "a stage that knows the next": (
        "service/pipeline/reader.py",
        "from service.pipeline.cost import step_flops",
        "service.pipeline.reader knows the stage service.pipeline.cost",
    ),
    "an API that imports another": (
        "service/api/cohere.py",
        "from service.api import openai",
        "service.api.cohere imports the API openai",
    ),
    "what APIs share imports one": (
        "service/api/query.py",
        "from service.api.tei import tokens",
        "service.api.query imports the API tei",
    ),
    "a way back": ("model/config.py", "from service.tables import settings", "imports more than"),
    "a new file": ("service/helpers.py", "import os", "helpers is not drawn"),
    "a new room": ("model/helpers/texts.py", "import re", "model.helpers is not drawn"),
    "a circle": (
        "model/packing.py",
        "def f():\n    from model import encoder",
        "a circle: ",
    ),
    "a late import": (
        "service/pipeline/gateway.py",
        "def f():\n    import ray",
        "gateway imports ray",
    ),
    "a second counter": (
        "service/door/door.py",
        "import prometheus_client",
        "service.door.door imports prometheus_client",
    ),
    "a status": ("service/engine/batcher.py", "BUSY = 429", "batcher states an HTTP status"),
    "a named status": (
        "service/door/door.py",
        "from http import HTTPStatus",
        "door states an HTTP",
    ),
    "a client's way in": (
        "client/headlight_client/call.py",
        "from service.shapes.answer import JSON",
        "headlight_client.call imports more than a client needs",
    ),
    "a client's library": (
        "client/headlight_client/inputs.py",
        "import orjson",
        "headlight_client.inputs imports more than a client needs",
    ),
    "a library": (
        "model/attention/positions.py",
        "import numpy",
        "model.attention.positions imports more than",
    ),
    "the environment": ("model/config.py", "import os\nos.environ['A']", "reads the environment"),
    "a file": ("model/maps/maps.py", "open('x')", "model.maps.maps touches files"),
    "a log line": ("model/encoder.py", "import logging", "model.encoder speaks"),
    "a stage that leaves something behind": (
        "service/questions/encode/question.py",
        "class Ghost:\n    async def plan(self):\n        self._works = []",
        "service.questions.encode.question keeps state between stages",
    ),
    "a private operator": ("model/maps/maps.py", "torch.ops.aten.x()", "maps calls private torch"),
    "a private function": ("service/app.py", "torch._assert()", "app calls private torch"),
    "a private name": (
        "service/app.py",
        "ray.util._ghost()",
        "service/app.py uses _ghost, and no table says so",
    ),
    "a private argument": (
        "service/start/launch.py",
        "f(_hidden=1)",
        "service/start/launch.py uses _hidden",
    ),
    "a variable of Ray's": (
        "service/cluster/ingress.py",
        "GHOST = 'RAY_SERVE_GHOST'",
        "service/cluster/ingress.py uses RAY_SERVE_GHOST",
    ),
    "global state": (
        "service/pipeline/cost.py",
        "def f():\n    global spent",
        "service/pipeline/cost.py changes the process",
    ),
    "an entry in a library's table": (
        "service/pipeline/cost.py",
        "from uvicorn import config\nconfig.HTTP_PROTOCOLS['auto'] = 'x'",
        "service/pipeline/cost.py changes the process",
    ),
    "an entry in a table of ours": (
        "service/pipeline/cost.py",
        "SEEN = {}\nSEEN.setdefault(1, 2)",
        "service/pipeline/cost.py changes the process",
    ),
    "a setting of all threads": (
        "service/pipeline/cost.py",
        "import torch\ntorch.set_num_threads(1)",
        "service/pipeline/cost.py changes the process",
    ),
}


@pytest.mark.parametrize("above", ["", "worker"], ids=["as it is", "a file that imports moved up"])
def test_a_file_of_pipeline_imports_only_those_before_it(above: str) -> None:
    """The list in gateway.py's docstring names each file of pipeline/, in an order that holds."""
    files = graph(parsed(ROOT))
    text = ast.get_docstring(parsed(ROOT)["service.pipeline.gateway"]) or ""
    lines = re.findall(r"^    (\S.*?)(?:   +.*)?$", text, re.MULTILINE)
    order = [
        f"service.pipeline.{name.replace('/', '.')}" for line in lines for name in line.split()
    ]
    if above:  # a list that does not hold is seen
        order.remove("service.pipeline.gateway")
        order.insert(order.index(f"service.pipeline.{above}"), "service.pipeline.gateway")

    early = [
        (name, to) for place, name in enumerate(order) for to in files[name] if to in order[place:]
    ]

    assert sorted(order) == sorted(name for name in files if name.startswith("service.pipeline."))
    assert bool(early) is bool(above)


def test_no_class_of_the_service_and_the_model_has_the_name_of_another() -> None:
    """One name, one thing; the client's answers are named as their routes are."""
    named = Counter(
        node.name
        for name, tree in parsed(ROOT).items()
        if not name.startswith("headlight_client.")
        for node in tree.body
        if isinstance(node, ast.ClassDef)
    )

    assert [name for name, times in named.items() if times > 1] == []


def test_the_life_of_a_request_names_functions_that_are_there() -> None:
    """In eight lines, at the top of the page."""
    page = (ROOT / "ARCHITECTURE.md").read_text()
    life = page.partition("## The life of a request")[2].partition("\n## ")[0]
    named = re.findall(r"`(\S+)\.py` `([\w.]+)`", life)
    trees, there = parsed(ROOT), set[tuple[str, str]]()
    for file, _ in named:
        for node in trees[file.replace("/", ".")].body:
            own = getattr(node, "name", "")
            there.add((file, own))
            there |= {(file, f"{own}.{getattr(one, 'name', '')}") for one in ast.walk(node)}

    assert re.findall(r"^(\d)\. ", life, re.MULTILINE) == list("12345678")
    assert {*named} - there == set()


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the sources and of the pages that tell of them."""
    folder = tmp_path_factory.mktemp("house")
    for name in FOLDERS:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
    (folder / "docs").mkdir()
    for page in ("ARCHITECTURE.md", UPSTREAM, STATE):
        shutil.copy(ROOT / page, folder / page)
    return folder


def found(house: Path, file: str, text: str) -> set[str]:
    """What is wrong while a file of the copy has another text."""
    path, there = house / file, (house / file).exists()
    before = path.read_text() if there else ""
    path.parent.mkdir(exist_ok=True)
    path.write_text(text)
    try:
        return breaches(house)
    finally:
        path.write_text(before)
        if not there:
            path.unlink()


@pytest.mark.parametrize(("file", "line", "sentence"), PLANTED.values(), ids=PLANTED.keys())
def test_a_planted_breach_is_caught(house: Path, file: str, line: str, sentence: str) -> None:
    """Each rule fails on a file written to break it."""
    before = (ROOT / file).read_text() if (ROOT / file).exists() else ""

    assert any(sentence in breach for breach in found(house, file, f"{before}\n{line}\n"))


@pytest.mark.parametrize(
    ("page", "there", "instead", "sentence"),
    [
        (
            "ARCHITECTURE.md",
            "native maps",
            "native ghost maps",
            "model.ghost is drawn and does not",
        ),
        ("ARCHITECTURE.md", "-> fleet ", "-> api fleet ", "start -> api is drawn, and no file"),
        (
            "ARCHITECTURE.md",
            "`pipeline/reader.py`,",
            "`pipeline/ghost.py`,",
            "service.pipeline.ghost is no stage",
        ),
        (
            UPSTREAM,
            "`_temp_dir`",
            "`_temp_dir` `_ghost`",
            "service/start/ray_session.py is said to use _ghost",
        ),
        (
            STATE,
            "`service/cli.py`",
            "`service/page/ghost.py`",
            "ghost.py is said to change the process",
        ),
    ],
    ids=["a part", "an arrow", "a stage", "a private name", "a file with state"],
)
def test_a_page_that_promises_too_much_is_caught(
    house: Path, page: str, there: str, instead: str, sentence: str
) -> None:
    """What is drawn or told and does not exist is as wrong as what is hidden."""
    text = (house / page).read_text()
    assert there in text

    told = found(house, page, text.replace(there, instead, 1))

    assert any(sentence in breach for breach in told)


if __name__ == "__main__":
    print(draw(parts(graph(parsed(ROOT))), read((ROOT / "ARCHITECTURE.md").read_text())))
