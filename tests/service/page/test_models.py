"""GET / where an address has several models: which is shown is a choice of the page's."""

from collections.abc import AsyncIterator

import pytest_asyncio
from starlette.types import ASGIApp, Receive, Scope, Send

from service.cluster.choose_model import MODELS_HEADER
from service.pipeline.replica import Replica
from tests.conftest import application, listening
from tests.service.page.browser import NEEDED, Page, fresh

pytestmark = NEEDED

OFFERED = "return !document.getElementById('models').hidden"
SHOWN = "return [...document.querySelectorAll('#models option')].map((one) => one.textContent)"
CHOSEN = "return document.querySelector('#models select').selectedOptions[0].textContent"
MODELS = b"all-MiniLM-L6-v2 / encode 2026-11-29 1, another /another encode 2026-09-15 1"


@pytest_asyncio.fixture
async def several(replica: Replica) -> AsyncIterator[str]:
    """An address of two models, for both of which one replica answers."""
    root, other = application(replica), application(replica, "/another")

    async def lead(scope: Scope, receive: Receive, send: Send) -> None:
        """Lead as HAProxy does, and tell the root of all."""
        app: ASGIApp = other if scope["path"].startswith("/another") else root
        if app is root:
            scope["headers"] = [*scope["headers"], (MODELS_HEADER.encode(), MODELS)]
        await app(scope, receive, send)

    async with listening(lead) as url:
        yield url


async def test_the_page_of_another_model_shows_the_same(browser: Page, several: str) -> None:
    """And leads back; a service of one model offers none."""
    await fresh(browser, several, "#text=All+is+well")
    await browser.wait(OFFERED)
    assert await browser.run(SHOWN) == ["all-MiniLM-L6-v2", "another"]
    assert await browser.run(CHOSEN) == "all-MiniLM-L6-v2"

    for place, path in ((1, "/another/"), (0, "/")):
        await browser.run(
            f"""const select = document.querySelector("#models select");
            select.selectedIndex = {place}; select.onchange()"""
        )
        await browser.wait(f"return location.pathname === '{path}'")
        await browser.wait(OFFERED)
        assert await browser.run("return location.hash") == "#text=All+is+well"
        assert await browser.run(SHOWN) == ["all-MiniLM-L6-v2", "another"]


async def test_a_service_of_one_model_offers_no_choice(browser: Page, address: str) -> None:
    """Its name alone is shown."""
    await fresh(browser, address)
    await browser.wait("return document.getElementById('model').textContent.includes('layers')")

    assert not await browser.run(OFFERED)
