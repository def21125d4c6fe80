"""README is short and true, the docs' tables are the code's: `python -m tests.test_readme`."""

import asyncio
import importlib.util
import json
import re
import runpy
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import httpx
import pytest
from starlette.types import ASGIApp

from service.api import ROUTES
from service.api.pages import PAGE_PREFIX
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.limits import ROWS
from tests.several_models import FIRST, RERANKER, one_address, save_reranker
from tests.test_limits import beyond

ROOT = Path(__file__).parent.parent
README, API, SETTINGS = ROOT / "README.md", ROOT / "docs" / "api.md", ROOT / "docs" / "settings.md"
DECISIONS = ROOT / "docs" / "decisions"
MOST_LINES, MOST_WORDS = 120, 800  # of README, of a decision


def settings_table() -> str:
    """Every setting with its default and sentence; of a limit, what happens beyond it."""
    beyond_it = {row.name: f"; beyond it {beyond(row)}" for row in ROWS}
    rows = [
        f"- `{name}`{'' if field.default in (None, ()) else f' ({field.default})'}: "
        f"{field.description}{beyond_it.get(name, '')}"
        for name, field in Settings.model_fields.items()
    ]
    return "\n".join(rows)


def clients_table() -> str:
    """Every client that the tests use, with what of it."""
    table: str = runpy.run_path(str(Path(__file__).parent / "test_clients_table.py"))[
        "clients_table"
    ]()
    return table


class CohereClient(NamedTuple):
    """Asks for ranks as Cohere's client does (tests/frameworks/recorded.json)."""

    base_url: str
    api_key: str

    def rerank(self, **asked: Any) -> SimpleNamespace:
        """Ask for ranks."""
        answer = httpx.post(f"{self.base_url}/v2/rerank", json=asked, timeout=60)
        results = answer.raise_for_status().json()["results"]
        return SimpleNamespace(results=[SimpleNamespace(**each) for each in results])


TABLES = {SETTINGS: ("settings", settings_table), API: ("clients", clients_table)}


def filled(page: Path) -> str:
    """A page with its table as the code has it."""
    name, table = TABLES[page]
    mark = f"<!-- {name} -->\n"
    before, after = page.read_text().split(mark)
    rest = re.sub(r"\A\n([|-][^\n]*\n)*", "", after)
    return f"{before}{mark}\n{table()}\n" + (f"\n{rest.lstrip()}" if rest.strip() else "")


@pytest.mark.parametrize("page", TABLES, ids=lambda page: page.name)
def test_the_tables_are_the_codes(page: Path) -> None:
    """A setting or a tested client that is added, changed or removed shows here."""
    assert filled(page) == page.read_text()


def test_the_readme_is_short() -> None:
    """Who reads it wants to start; everything else has a page of its own."""
    assert len(README.read_text().splitlines()) <= MOST_LINES


def test_what_is_held_while_idle_is_said_alike() -> None:
    """In README and on the page that has the measurement."""
    page = (ROOT / "docs" / "operations.md").read_text()
    ours = re.search(r"^\| all (\d+) \|.*?\| \d+ \| (\d+) \|", page, re.MULTILINE)
    theirs = re.search(r"sentence-transformers .* MiB resident, (\d+) of them", page)
    assert ours and theirs

    text = README.read_text()
    cuda = re.search(
        r"built for CUDA, and no card the same \d+ processes shared ([\d,]+) MiB", page
    )
    disk = re.search(r"environment: ([\d.]+) GB of disk with the CPU build, ([\d.]+) GB", page)
    assert cuda and disk
    assert f"takes {disk[1]} GB of disk, and an idle service {ours[2]} MiB of memory" in text
    assert f"{disk[2]} GB and {cuda[1]} MiB" in text
    assert f"{ours[1]} processes, {ours[2]} MiB" in text
    assert f"1 process, {theirs[1]} MiB" in text


def test_what_the_servers_took_is_said_alike() -> None:
    """README's table has the medians of results.md, and the least of its cosines, rounded down."""
    page = (ROOT / "benchmarks" / "results.md").read_text().split("<!-- make bench-http -->")[1]
    measured = re.findall(r"^\| (.+?) \| (.+?) \| ([\d.]+) \(.*\| (.+) \|$", page, re.MULTILINE)
    rates = {(work, server): float(rate) for work, server, rate, _ in measured}
    table = README.read_text().split("<!-- make bench-http -->")[1].split("<!-- end -->")[0]
    (_, _, *works), _, *rows = (
        [cell.strip(" *") for cell in line.strip("|").split("|")]
        for line in table.splitlines()
        if line.startswith("|")
    )

    for name, vectors, *cells in rows:
        kind, *cosine = vectors.split(", ")
        server = name if kind == "float32" else f"{name}, {kind}"
        for work, cell in zip(works, cells, strict=True):
            assert float(cell) == pytest.approx(rates[work, server], rel=0.01, abs=0.05)
        told = [
            float(answers.removeprefix("cosine "))
            for _, which, _, answers in measured
            if which == server and answers.startswith("cosine ")
        ]
        if told:
            assert (
                0 <= min(told) - float(cosine[0].removeprefix("cosine ")) < 0.0015
            )  # rounded to four digits there


def test_what_was_simulated_is_said_alike() -> None:
    """On the page that sizes a service, and where the figures are."""
    page, results = (
        " ".join((ROOT / file).read_text().split())
        for file in ("docs/sizing.md", "benchmarks/results.md")
    )
    middle, most = re.search(r"off by (\d+)% in the middle, (\d+)% at most", results).groups()  # type: ignore[union-attr]
    loop = re.search(r"a request of one text: under load, alone \| (\d+),", results)
    front = re.search(r"\| 2,000 \| ([\d,]+) \|", results)
    assert loop and front

    assert f"off by {middle} % in the middle and {most} % at most" in page
    assert f"({front[1]}, from the {loop[1]} us" in page
    alone, four = simulated(results, threads=1), simulated(results, threads=4)
    ratios = [round(alone[cores] / four[cores], 1) for cores in four]
    assert f"gives {min(ratios)} to {max(ratios)} times as many texts" in page


def simulated(results: str, threads: int) -> dict[str, float]:
    """The short texts a second of replicas of so many threads, by cores."""
    rows = re.findall(rf"\| (\d+) \| \d+ x {threads} \| [\d.]+ \| ([\d,]+) \|", results)
    return {cores: float(rate.replace(",", "")) for cores, rate in rows}


def test_a_client_of_two_versions_is_said_to_have_two() -> None:
    """One is the newest, one installs with all others."""
    pages = [API.read_text(), (ROOT / "docs" / "frameworks.md").read_text()]
    api, frameworks = (dict(re.findall(r"\b([a-z][\w-]+) (\d+\.\d+\.\d+)", page)) for page in pages)
    two = sorted(name for name in api.keys() & frameworks.keys() if api[name] != frameworks[name])

    (said,) = re.findall(r"install together; of (\S+) and (\S+) \[api.md\]", pages[1])
    assert sorted(said) == two


def test_every_link_leads_to_a_file_and_a_heading() -> None:
    """Of README, ARCHITECTURE and each page of the docs."""
    for page in (README, ROOT / "ARCHITECTURE.md", *ROOT.glob("docs/**/*.md")):
        for target in re.findall(r"\]\((?!https?:)([^)\s]+)\)", page.read_text()):
            path, _, heading = target.partition("#")
            file = (page.parent / path) if path else page
            assert file.exists(), (page.name, target)
            if heading:
                titles = re.findall(r"^#+ (.*)$", file.read_text(), re.MULTILINE)
                slugs = [re.sub(r"[^\w\- ]", "", one.lower()).replace(" ", "-") for one in titles]
                assert heading in slugs, (page.name, target)


def test_every_page_is_in_an_index() -> None:
    """In docs/README.md or, of a folder that has one, in its own."""
    for index in (ROOT / "docs" / "README.md", DECISIONS / "README.md"):
        linked = re.findall(r"\]\(([^)#\s]+)\)", index.read_text())
        pages = [page.name for page in index.parent.glob("*.md") if page != index]
        assert [name for name in pages if name not in linked] == []


def test_a_decision_is_one_page() -> None:
    """What was decided, its figures and what would reverse it; no diary; or why it went."""
    for page in DECISIONS.glob("0*.md"):
        text = page.read_text()
        assert len(text.split()) <= MOST_WORDS, page.name
        if "\nWithdrawn: " not in text:
            assert "**Decision.**" in text, page.name
            assert "**What would reverse it.**" in text, page.name


def test_the_routes_are_the_codes() -> None:
    """Each by its method; that of a model's version once, without it."""
    (table,) = re.findall(r"^\| route \|.*\n((?:\|.*\n)+)", API.read_text(), re.MULTILINE)
    named = re.findall(r"`([A-Z]+ /\S*)`", table)

    rows = ROUTES
    rows = [row for row in rows if not row.path.startswith(PAGE_PREFIX)]  # the files of GET /
    routes = {f"{row.method.upper()} {row.path}" for row in rows if "{version}" not in row.path}

    assert sorted(routes) == sorted(named)


async def test_the_curl_line_gives_the_answer_shown(app: ASGIApp) -> None:
    """The request in the README, sent; its answer, shortened as the README says."""
    text = README.read_text()
    request = re.search(r"-d '(\{.*\})'", text)
    answer = re.search(r"```json\n(.*?)\n```", text, re.DOTALL)
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


async def test_two_models_retrieve_as_the_first_lines_show(
    replica: Replica, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The code in the README, run; by a stand-in of Cohere's client where it is not installed."""
    found = re.search(r"```python\n(import cohere.*?)```", README.read_text(), re.DOTALL)
    assert found
    if importlib.util.find_spec("cohere") is None:
        monkeypatch.setitem(sys.modules, "cohere", SimpleNamespace(ClientV2=CohereClient))
    settings = Settings(model=str(save_reranker(tmp_path)), threads=1, device="cpu")
    reranker = await Replica.start(settings, "reranker-1")
    names = dict[str, Any]()
    async with one_address({FIRST: replica, RERANKER: reranker}, tmp_path) as address:
        code = found[1].replace("http://127.0.0.1:8000", address.url)
        await asyncio.to_thread(exec, code, names)
    await reranker.close()

    assert [len(item.embedding) for item in names["vectors"]] == [384, 384]
    assert sorted(result.index for result in names["ranked"]) == [0, 1]


if __name__ == "__main__":
    for page in TABLES:
        page.write_text(filled(page))
