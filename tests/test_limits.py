"""docs/limits.md names every limit; `python -m tests.test_limits` writes its table.

A new limit is one line of tests/limits.py. What the tests find by themselves: a setting that is a
number, a constant whose name says that it bounds something, a number that Ray is told, and a
time-out that HAProxy is told.
"""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

from service.cluster import haproxy, ingress
from service.refusals import REFUSALS
from service.settings import KIB, MIB, Settings
from tests.limits import ENFORCED, NO_LIMITS, ROWS, Row

ROOT = Path(__file__).parent.parent
PAGE = ROOT / "docs" / "limits.md"
FILES = [  # not of the commands: those bound nothing that the service does
    path
    for path in sorted((ROOT / "service").rglob("*.py"))
    if path.relative_to(ROOT).parts[1] not in ("commands", "heads")
]
BOUNDING = re.compile(r"(MOST|LONGEST|LARGEST|SPARE|RESERVE|STUCK)(_|$)|SECONDS$|_BYTES$")
TIMEOUT = re.compile(r"^ *timeout (\S+) (\S+)s$", re.MULTILINE)


def limits() -> dict[str, float | str]:
    """The value of every number that may be a limit, by its name."""
    fields = Settings.model_fields
    settings = {name: field.default for name, field in fields.items() if numeric(field.annotation)}
    told = ingress.common_variables(Settings())
    variables = {name: float(value) for name, value in told.items() if value.isdecimal()}
    timeouts = TIMEOUT.findall("\n".join(haproxy.DEFAULTS))
    return (
        settings
        | dict(constants())
        | variables
        | {f"haproxy timeout {name}": f"{seconds} s" for name, seconds in timeouts}
    )


def numeric(annotation: object) -> bool:
    """Whether a setting is a number."""
    return bool(re.search(r"\b(int|float)\b", str(annotation)))


def constants() -> Iterator[tuple[str, float]]:
    """Every number of a module whose name says that it bounds.

    By the module's text: some of them import Ray.
    """
    for path in FILES:
        inside = path.relative_to(ROOT / "service")
        parts = (inside.parent if path.name == "__init__.py" else inside.with_suffix("")).parts
        values = bounding(ast.parse(path.read_text()))
        numbers = {name: value for name, value in values.items() if isinstance(value, int | float)}
        yield from ((".".join([*parts, name]), value) for name, value in numbers.items())


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


def table() -> str:
    """Every row, as the page has it."""
    values = limits()
    head = ["| limit | default | bounds | beyond it |", "|---|---|---|---|"]
    return "\n".join(head + [line(row, values[row.name]) for row in ROWS])


def line(row: Row, value: float | str | None) -> str:
    """One row of the page; `None` is a default that its setting's sentence tells."""
    field = Settings.model_fields.get(row.name)
    name = f"--{row.name.replace('_', '-')}" if field else row.name
    codes = [code for code in row.then.split() if code in REFUSALS]
    then = ", ".join(f"{REFUSALS[code].status} `{code}`" for code in codes) or row.then
    return f"| `{name}` | {written(row.name, value)} | {row.bounds} | {then} |"


def written(name: str, value: float | str | None) -> str:
    """A value with its unit, which is the last word of its name."""
    if value is None or isinstance(value, str):
        return value or ""
    if name.lower().endswith(("bytes", "bufsize")):
        unit, size = ("MiB", MIB) if value % MIB == 0 else ("KiB", KIB)
        return f"{value / size:g} {unit}"
    seconds = name.lower().endswith("seconds") or name.endswith("_S")
    return f"{value:,.10g}" + " s" * seconds


def enforcers() -> str:
    """Who enforces what on a request's way, as the page has it."""
    rows = [
        "| on a request's way | enforced by | limits | why it is the only one |",
        "|---|---|---|---|",
    ]
    for row in ENFORCED:
        named = ", ".join(f"`{name}`" for name in row.limits)
        rows.append(f"| {row.what} | {row.by} | {named} | {row.others} |")
    return "\n".join(rows)


def filled(text: str) -> str:
    """The page with its two tables as the code has them."""
    tables = iter((enforcers(), table()))
    return re.sub(r"(?:^\|.*\n)+", lambda _: next(tables) + "\n", text, flags=re.MULTILINE)


def test_every_limit_is_on_the_page() -> None:
    """A setting, constant or time-out that comes or goes is a line of ROWS or of NO_LIMITS."""
    rows = [row.name for row in ROWS]

    assert len(rows) == len(set(rows))
    assert limits().keys() == set(rows) | NO_LIMITS
    assert not set(rows) & NO_LIMITS


def test_the_page_is_the_codes() -> None:
    """A limit that changes shows here: run this file."""
    assert filled(PAGE.read_text()) == PAGE.read_text()


def test_what_is_bounded_on_a_requests_way_is_bounded_by_one() -> None:
    """Each limit once; a constant of edge/ is used by the file that enforces it alone."""
    named = [name for row in ENFORCED for name in row.limits]
    assert len(named) == len(set(named)) and set(named) <= {row.name for row in ROWS}

    for by, name in ((row.by, name) for row in ENFORCED for name in row.limits):
        if name.startswith("edge."):
            files = [file for file in FILES if file.parent.name == "edge"]
            doors = {f"edge.{file.stem}" for file in files if reads(file, name.rpartition(".")[2])}
            assert doors - {"edge.request"} == {by}, name


def reads(file: Path, name: str) -> bool:
    """Whether a file uses a constant or a setting."""
    nodes = [n for n in ast.walk(ast.parse(file.read_text())) if isinstance(n, ast.Name)]
    return any(node.id == name for node in nodes if isinstance(node.ctx, ast.Load))


def test_every_row_says_what_is_bounded() -> None:
    """In words, and by codes that exist."""
    for row in ROWS:
        assert row.bounds or row.name in Settings.model_fields, row.name
        unknown = [word for word in row.then.split() if "_" in word and word not in REFUSALS]
        assert not unknown, row.name


if __name__ == "__main__":
    PAGE.write_text(filled(PAGE.read_text()))
