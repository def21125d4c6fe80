"""The README's tables are the code's; `python tests/test_readme.py` writes them."""

import json
import re
import runpy
from pathlib import Path
from typing import Never

import httpx
import pytest

from service.api.operations import OPERATIONS, PAGES, VERSION_PART
from service.edge.guard import Guard
from service.refusals import REFUSALS
from service.settings import Settings

README = Path(__file__).parent.parent / "README.md"


def settings_table() -> str:
    """Every setting with its default and sentence."""
    rows = [
        f"| `{name}` | {'' if field.default is None else field.default} | {field.description} |"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(["| setting | default | |", "|---|---|---|", *rows])


def refusals_table() -> str:
    """Every refusal with its status."""
    rows = [f"| {kind.status} | `{code}` | {kind.title} |" for code, kind in REFUSALS.items()]
    return "\n".join(["| status | code | |", "|---|---|---|", *rows])


def clients_table() -> str:
    """Every client that the tests use, with what of it."""
    table: str = runpy.run_path(str(Path(__file__).parent / "test_clients_table.py"))[
        "clients_table"
    ]()
    return table


TABLES = {"settings": settings_table, "refusals": refusals_table, "clients": clients_table}


def filled(text: str) -> str:
    """The README with every table as the code has it."""
    for name, table in TABLES.items():
        mark = f"<!-- {name} -->\n"
        before, after = text.split(mark)
        rest = re.sub(r"\A\n(\|[^\n]*\n)*", "", after)
        text = f"{before}{mark}\n{table()}\n\n{rest.lstrip()}"
    return text


@pytest.mark.parametrize("name", TABLES)
def test_the_tables_are_the_codes(name: str) -> None:
    """A setting or refusal that is added, changed or removed shows here."""
    assert TABLES[name]() in README.read_text()


def test_the_routes_are_the_codes() -> None:
    """Each that answers, by its method; that of a model's version once, without it."""
    (table,) = re.findall(r"^\| route \|.*\n((?:\|.*\n)+)", README.read_text(), re.MULTILINE)
    named = re.findall(r"`([A-Z]+ /\S*)`", table)

    rows = [row for row in (*OPERATIONS, *PAGES) if row.answer is not Never]
    routes = [f"{row.method.upper()} {row.path}" for row in rows if VERSION_PART not in row.path]

    assert sorted(routes) == sorted(named)


@pytest.mark.asyncio(loop_scope="session")
async def test_the_curl_line_gives_the_answer_shown(app: Guard) -> None:
    """The request in the README, sent; its answer, shortened as the README says."""
    text = README.read_text()
    request = re.search(r"-d '(\{.*\})'", text)
    answer = re.search(r"```json\n(.*)\n```", text)
    assert request and answer
    shown = json.loads(answer[1])

    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        told = (await client.post("/v1/encode", content=request[1])).json()

    assert told.keys() == shown.keys()
    assert shown["weights"] == told["weights"] and shown["usage"].keys() == told["usage"].keys()
    first, seen = told["data"][0], shown["data"][0]
    assert {name: first[name] for name in first if name not in ("pooled", "attention")} == {
        name: seen[name] for name in seen if name not in ("pooled", "attention")
    }
    assert seen["pooled"] == [*(pytest.approx(x, abs=6e-5) for x in first["pooled"][:3]), "..."]
    for row, expected in zip(
        seen["attention"]["maps"]["0"]["5"], first["attention"]["maps"]["0"]["5"], strict=True
    ):
        assert row == pytest.approx(expected, abs=6e-5)


if __name__ == "__main__":
    README.write_text(filled(README.read_text()))
