"""The examples of docs/attention.md give the answers shown."""

import asyncio
import doctest
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")

PAGE = Path(__file__).parent.parent / "docs" / "attention.md"
EXAMPLES = re.compile(r"^```pycon\n(.*?)^```$", re.MULTILINE | re.DOTALL)


class Waiting:
    """A client for examples, which are written without `await`; they run in another thread."""

    def __init__(self, client: httpx.AsyncClient) -> None:
        self._client, self._loop = client, asyncio.get_running_loop()

    def post(self, path: str, **given: Any) -> httpx.Response:
        posted = self._client.post(path, **given)
        return asyncio.run_coroutine_threadsafe(posted, self._loop).result()


async def test_every_example_gives_the_answer_shown(
    client: httpx.AsyncClient, base_client: httpx.AsyncClient
) -> None:
    """To the last digit: the blocks run in order, as one session."""
    examples = "\n".join(EXAMPLES.findall(PAGE.read_text("utf-8")))
    names = {"client": Waiting(client), "base": Waiting(base_client), "np": np}
    session = doctest.DocTestParser().get_doctest(examples, names, PAGE.name, str(PAGE), 0)
    said: list[str] = []

    await asyncio.to_thread(doctest.DocTestRunner().run, session, out=said.append)

    assert len(session.examples) > 20
    assert not said, "".join(said)
