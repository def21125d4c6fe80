"""One browser for all tests of the pages."""

import asyncio
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator

import httpx
import pytest_asyncio

from tests.service.page.browser import ARGUMENTS, PATIENCE_SECONDS, Page


@pytest_asyncio.fixture(scope="session")
async def browser() -> AsyncIterator[Page]:
    """A browser without windows."""
    driver = await asyncio.create_subprocess_exec("chromedriver", "--port=0", stdout=PIPE)
    try:
        assert driver.stdout
        while b"successfully on port " not in (line := await driver.stdout.readline()):
            assert line, "chromedriver did not start"
        port = line.decode().rpartition(" ")[2].rstrip(".\n")
        options = {"args": ARGUMENTS}
        wanted = {"goog:chromeOptions": options, "goog:loggingPrefs": {"browser": "ALL"}}
        async with httpx.AsyncClient(
            base_url=f"http://127.0.0.1:{port}", timeout=PATIENCE_SECONDS
        ) as http:
            body = {"capabilities": {"alwaysMatch": wanted}}
            session = (await http.post("/session", json=body)).json()["value"]["sessionId"]
            http.base_url = http.base_url.join(f"/session/{session}/")
            yield Page(http)
            await http.delete(str(http.base_url).rstrip("/"))  # the browser ends
    finally:
        driver.terminate()
        await driver.wait()
