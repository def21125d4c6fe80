"""The examples of docs/ give the answers shown."""

import asyncio
import doctest
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from click.testing import CliRunner
from starlette.types import ASGIApp

from service.cli import main
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.late_interaction import bundled
from tests.served_model import Listen, Outer, serve
from tests.task_heads import classifier

DOCS = Path(__file__).parent.parent / "docs"
PAGE = DOCS / "attention.md"
COMMAND = re.compile(r"^```console\n\$ headlight (.*)\n((?:(?!```).*\n)+)```$", re.MULTILINE)
EXAMPLES = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Waiting:
    """A client for examples, which are written without `await`; they run in another thread."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client, self._loop = client, asyncio.get_running_loop()

    def get(self, path: str) -> httpx.Response:
        got = self._client.get(path)
        return asyncio.run_coroutine_threadsafe(got, self._loop).result()

    def post(self, path: str, **given: Any) -> httpx.Response:
        posted = self._client.post(path, **given)
        return asyncio.run_coroutine_threadsafe(posted, self._loop).result()


async def test_every_example_gives_the_answer_shown(
    client: httpx.AsyncClient, base_client: httpx.AsyncClient
) -> None:
    """To the last digit: the blocks of attention.md, then of heads.md, in order, as one session."""
    pages = PAGE.read_text("utf-8") + (DOCS / "heads.md").read_text("utf-8")
    examples = "\n".join(EXAMPLES.findall(pages))
    names = {"client": Waiting(client), "base": Waiting(base_client), "np": np}
    session = doctest.DocTestParser().get_doctest(examples, names, PAGE.name, str(PAGE), 0)
    said: list[str] = []

    await asyncio.to_thread(doctest.DocTestRunner().run, session, out=said.append)

    assert len(session.examples) > 20
    assert not said, "".join(said)


async def test_the_questions_page_gives_the_answers_shown(
    client: httpx.AsyncClient, address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As one session, too, its commands over real HTTP."""

    def headlight(line: str) -> None:
        result = CliRunner().invoke(main, line.replace("http://127.0.0.1:8000", address).split())
        print(result.stdout if result.exit_code == 0 else result.output, end="")

    page = DOCS / "questions.md"
    runnable = COMMAND.sub(r'```pycon\n>>> headlight("\1")\n\2\n```', page.read_text("utf-8"))
    examples = "\n".join(EXAMPLES.findall(runnable))
    names = {"client": Waiting(client), "headlight": headlight}
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    session = doctest.DocTestParser().get_doctest(examples, names, page.name, str(page), 0)
    runner = doctest.DocTestRunner(optionflags=doctest.NORMALIZE_WHITESPACE)  # a table's edge
    said: list[str] = []

    await asyncio.to_thread(runner.run, session, out=said.append)

    assert len(session.examples) > 9
    assert not said, "".join(said)


async def test_the_mean_of_windows_is_that_of_their_vectors(
    client: httpx.AsyncClient, address: str
) -> None:
    """Of docs/frameworks.md; each word is a token, and the last window is shorter."""
    page = (DOCS / "frameworks.md").read_text("utf-8")
    (code,) = re.findall(r"^```python\n(import httpx.*?)^```$", page, re.MULTILINE | re.DOTALL)
    names = dict[str, Any]()
    exec(code, names)
    words = ["dog", "cat", "rain"] * 150

    mean = await asyncio.to_thread(names["mean_of_windows"], " ".join(words), address)

    windows = [" ".join(words[start : start + 200]) for start in range(0, 450, 200)]
    told = (await client.post("/v1/encode", json={"inputs": windows})).json()["data"]
    total = np.zeros(384)
    for item in told:
        total += np.array(item["pooled"]) / 3
    assert [item["length"] for item in told] == [202, 202, 52]
    np.testing.assert_allclose(mean, total / np.sqrt((total * total).sum()), rtol=0, atol=1e-6)


@pytest.mark.parametrize(
    ("name", "make"),
    [pytest.param("tasks.md", classifier, marks=pytest.mark.prove), ("vectors.md", bundled)],
)
async def test_the_pages_of_heads_give_the_answers_shown(
    name: str, make: Callable[[Path], object], tmp_path: Path, outer: Callable[[Replica], ASGIApp]
) -> None:
    """By a checkpoint made for each."""
    make(tmp_path)
    replica = await Replica.start(Settings(model=str(tmp_path), device="cpu", threads=1), "docs-1")
    page = (DOCS / name).read_text("utf-8")
    examples = "\n".join(EXAMPLES.findall(page))
    said: list[str] = []
    try:
        transport = httpx.ASGITransport(outer(replica))
        async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
            names = {"client": Waiting(client)}
            session = doctest.DocTestParser().get_doctest(examples, names, name, "", 0)
            await asyncio.to_thread(doctest.DocTestRunner().run, session, out=said.append)
    finally:
        await replica.close()

    assert len(session.examples) > 6
    assert not said, "".join(said)


async def test_the_page_of_decisions_gives_the_answers_shown(
    tmp_path: Path, listen: Listen, outer: Outer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By the head of examples/decisions, and three clients over real HTTP."""
    folder, make = tmp_path / "decisions", DOCS.parent / "examples" / "decisions" / "make.py"
    await asyncio.to_thread(subprocess.run, [sys.executable, make, folder], check=True)
    page = (DOCS / "decide.md").read_text("utf-8")
    said: list[str] = []
    monkeypatch.chdir(tmp_path)

    async with serve(folder, "decisions", listen, outer) as served:
        examples = "\n".join(EXAMPLES.findall(page)).replace("http://127.0.0.1:8000", served.url)
        session = doctest.DocTestParser().get_doctest(examples, {}, "decide.md", "decide.md", 0)
        await asyncio.to_thread(doctest.DocTestRunner().run, session, out=said.append)

    assert len(session.examples) > 14
    assert not said, "".join(said)


@pytest.mark.prove
async def test_the_clients_page_gives_the_answers_shown(
    address: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Over real HTTP, its command too."""

    def headlight(line: str) -> None:
        result = CliRunner().invoke(main, line.split())
        print(result.stdout if result.exit_code == 0 else result.output, end="")

    page = (DOCS / "client.md").read_text("utf-8")
    runnable = COMMAND.sub(r'```pycon\n>>> headlight("\1")\n\2\n```', page)
    examples = "\n".join(EXAMPLES.findall(runnable)).replace("http://127.0.0.1:8000", address)
    names = {"headlight": headlight}
    session = doctest.DocTestParser().get_doctest(examples, names, "client.md", "client.md", 0)
    said: list[str] = []
    monkeypatch.chdir(tmp_path)

    await asyncio.to_thread(doctest.DocTestRunner().run, session, out=said.append)

    assert "headlight(" in examples and len(session.examples) > 20
    assert not said, "".join(said)
