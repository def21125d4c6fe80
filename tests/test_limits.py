"""docs/limits.md and settings.md name every limit; `python -m tests.test_limits` writes the table.

A new limit is one line of tests/limits.py. What the tests find by themselves: a setting that is a
number, a constant whose name says that it bounds something, a number that Ray is told, and a
time-out that HAProxy is told, its retries and its checks. Each by its name, in whatever file it
stands.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from service.cluster import haproxy, ingress
from service.tables.refusals import REFUSALS
from service.tables.settings import KIB, MIB, Settings
from tests.limits import INNER, NO_LIMITS, ROWS, Row

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "limits.md"
FILES = [  # not of the commands: those bound nothing that the service does
    path
    for path in sorted((ROOT / "service").rglob("*.py"))
    if path.relative_to(ROOT).parts[1] not in ("commands", "heads")
]
BOUNDING = re.compile(r"(MOST|LONGEST|LARGEST|SPARE|RESERVE|STUCK)(_|$)|SECONDS$|_BYTES$")
OF_HAPROXY = re.compile(
    r"^ +(?:default-server check )?(timeout \S+|retries|fall) (\d+s?)\b", re.MULTILINE
)
MARK = "<!-- python -m tests.test_limits -->\n"
Value = float | str | None


def limits() -> dict[str, list[Value]]:
    """The values of every number that may be a limit, by its name."""
    fields = Settings.model_fields
    told = ingress.common_variables(Settings())
    of_haproxy = OF_HAPROXY.findall(haproxy.TEMPLATE.read_text())
    found: dict[str, list[Value]] = {}
    pairs: list[tuple[str, Value]] = [
        *((name, field.default) for name, field in fields.items() if numeric(field.annotation)),
        *constants(),
        *((name, float(value)) for name, value in told.items() if value.isdecimal()),
        *((f"haproxy {name}", value.replace("s", " s")) for name, value in of_haproxy),
    ]
    for name, value in pairs:
        found.setdefault(name, []).append(value)
    return found


def numeric(annotation: object) -> bool:
    """Whether a setting is a number."""
    return bool(re.search(r"\b(int|float)\b", str(annotation)))


def constants() -> Iterator[tuple[str, float]]:
    """Every number of a module whose name says that it bounds.

    By the module's text: some of them import Ray.
    """
    for path in FILES:
        values = bounding(ast.parse(path.read_text()))
        yield from (
            (name, value) for name, value in values.items() if isinstance(value, int | float)
        )


def bounding(tree: ast.Module) -> dict[str, object]:
    """The values of a module's constants that bound."""
    values: dict[str, object] = {"KIB": KIB, "MIB": MIB}
    for node in tree.body:
        plain = isinstance(node, ast.Assign | ast.AnnAssign) and not isinstance(
            node.value, ast.Dict
        )
        if plain and any(map(bounds, names(node))):
            exec(compile(ast.Module([node], []), "<constant>", "exec"), values)
    return {name: value for name, value in values.items() if bounds(name)}


def bounds(name: str) -> bool:
    """Whether a name is a constant's that bounds."""
    return name.isupper() and bool(BOUNDING.search(name))


def names(node: ast.Assign | ast.AnnAssign) -> Iterator[str]:
    """The names that a statement assigns."""
    targets = node.targets if isinstance(node, ast.Assign) else [node.target]
    parts = (part for target in targets for part in ast.walk(target))
    return (part.id for part in parts if isinstance(part, ast.Name))


def value_of(row: Row, values: dict[str, list[Value]]) -> Value:
    """What the code has for a row; the row says which, where several constants have its name."""
    there = values[row.name]
    if row.value is None:
        assert len(set(there)) == 1, f"{row.name} has several values: {there}"
        return there[0]
    assert row.value in there, f"{row.name} is {there}"
    return row.value


def table() -> str:
    """Every row, as the page has it, but those of settings, which settings.md has."""
    values = limits()
    rows = [
        line(row, value_of(row, values)) for row in ROWS if row.name not in Settings.model_fields
    ]
    return "\n".join(rows)


def line(row: Row, value: Value) -> str:
    """One row of the page; who runs a cluster sets the variables by their names."""
    name = f", `{row.name}`" if row.name.startswith("RAY_") else ""
    return f"- {row.bounds}{name}: {written(row.name, value)}, else {beyond(row)}"


def beyond(row: Row) -> str:
    """What happens beyond a limit."""
    codes = [code for code in row.then.split() if code in REFUSALS]
    return ", ".join(f"{REFUSALS[code].status} `{code}`" for code in codes) or row.then


def written(name: str, value: Value) -> str:
    """A value with its unit, which is the last word of its name."""
    if value is None or isinstance(value, str):
        return value or ""
    if name.lower().endswith(("bytes", "bufsize")):
        unit, size = ("MiB", MIB) if value % MIB == 0 else ("KiB", KIB)
        return f"{value / size:g} {unit}"
    seconds = name.lower().endswith("seconds") or name.endswith("_S")
    return f"{value:,.10g}" + " s" * seconds


def filled(text: str) -> str:
    """The page with its table as the code has it."""
    return f"{text.partition(MARK)[0]}{MARK}\n{table()}\n"


def test_every_limit_is_known() -> None:
    """A setting, constant or time-out that comes or goes is a line of one of the three."""
    rows = [(row.name, row.value) for row in ROWS]
    shown = {row.name for row in ROWS}

    assert len(rows) == len(set(rows))
    assert limits().keys() == shown | INNER | NO_LIMITS
    assert not shown & INNER and not (shown | INNER) & NO_LIMITS


def test_the_page_is_the_codes() -> None:
    """A limit that changes shows here: run this file."""
    assert filled(PAGE.read_text()) == PAGE.read_text()


def test_a_limit_of_the_door_is_enforced_by_one_file() -> None:
    """Where two do it, one of them is never reached, or they differ one day."""
    door = {path: ast.parse(path.read_text()) for path in FILES if path.parent.name == "door"}
    shown = {row.name for row in ROWS}
    own = {name for tree in door.values() for name in bounding(tree)} & shown

    assert {"MOST_HEADER_BYTES", "BODY_SECONDS", "HEAD_BYTES", "MOST_KEYS"} <= own
    for name in own:
        users = {path.stem for path, tree in door.items() if reads(tree, name)}
        assert len(users - {"request"}) <= 1 or name == "LATE_SECONDS", (name, users)


def reads(tree: ast.Module, name: str) -> bool:
    """Whether a file uses a constant."""
    nodes = [node for node in ast.walk(tree) if isinstance(node, ast.Name)]
    return any(node.id == name for node in nodes if isinstance(node.ctx, ast.Load))


def test_every_row_says_what_is_bounded() -> None:
    """In words, and by codes that exist."""
    for row in ROWS:
        assert row.bounds or row.name in Settings.model_fields, row.name
        unknown = [word for word in row.then.split() if "_" in word and word not in REFUSALS]
        assert not unknown, row.name


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
