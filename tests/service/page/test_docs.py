"""GET /docs in a real browser."""

import httpx
import pytest
import pytest_asyncio

from tests.service.page.browser import NEEDED, Page

pytestmark = [pytest.mark.asyncio(loop_scope="session"), NEEDED]


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def page(browser: Page, address: str) -> Page:
    """The API for people; each test has a section of its own."""
    await browser.open(f"{address}/docs")
    await browser.wait("return document.querySelectorAll('nav a').length > 30")
    return browser


async def test_a_link_of_the_contents_scrolls_to_its_section(page: Page) -> None:
    """A click on the last route of the list brings it to the top."""
    top = """return document.getElementById("get-v1-heads").getBoundingClientRect().top"""
    before = await page.run(top)

    await page.run("""document.querySelector('nav a[href="#get-v1-heads"]').click()""")

    await page.wait(f"{top} < 100")
    assert before > 1000


async def test_every_link_of_the_contents_leads_to_its_section(page: Page) -> None:
    """Routes and types; each section is in the contents."""
    lost = await page.run(
        """const links = [...document.querySelectorAll("nav a")].map((link) => link.hash.slice(1));
        const sections = [...document.querySelectorAll("main section")].map(({ id }) => id);
        return [links.filter((id) => !document.getElementById(id)),
                sections.filter((id) => !links.includes(id)),
                links.length - new Set(links).size];"""
    )

    assert lost == [[], [], 0]


async def test_every_field_shows_its_sentence(page: Page, client: httpx.AsyncClient) -> None:
    """Name, kind, sentence and example, as the document has them."""
    shown = await page.run(
        """return Object.fromEntries([...document.querySelectorAll("section[id^=type-]")].map(
          (section) => [section.querySelector("h2").textContent, Object.fromEntries(
            [...section.querySelectorAll("dt")].map((term) => [
              term.querySelector(".name").textContent, term.nextSibling.textContent]))]))"""
    )
    schemas = (await client.get("/openapi.json")).json()["components"]["schemas"]

    described = {name: schema for name, schema in schemas.items() if "properties" in schema}
    assert shown.keys() == described.keys()
    for name, schema in described.items():
        for field, of in schema["properties"].items():
            sentence = of["description"].replace("`", "")
            assert shown[name][field].startswith(sentence), (name, field)


async def test_try_it_sends_the_request_and_shows_the_answer(page: Page) -> None:
    """The example as it stands, on the service that serves the page."""
    await page.run("""document.querySelector("#post-v1-encode .try button").click()""")

    await page.wait("""return document.querySelector("#post-v1-encode .status.good")""")
    shown = await page.run(
        """return JSON.parse(document.querySelector("#post-v1-encode .try pre").textContent)"""
    )
    assert shown["data"][0]["tokens"] == ["[CLS]", "all", "is", "well", "[SEP]"]
    assert round(shown["data"][0]["attention"]["maps"]["0"]["5"][3][1], 2) == 0.62


async def test_try_it_shows_a_refusal_too(page: Page) -> None:
    """What is wrong stands there, and the status is no success."""
    await page.run(
        """const box = document.querySelector("#post-v1-attend .try");
        box.querySelector("textarea").value = '{"inputs": []}';
        box.querySelector("button").click()"""
    )

    shown = await page.wait(
        """return document.querySelector("#post-v1-attend .try pre").textContent"""
    )
    assert '"code": "missing_field"' in shown
    assert not await page.run("""return document.querySelector("#post-v1-attend .status.good")""")


@pytest.mark.parametrize(
    ("section", "part"),
    [
        ("get-v1-models-id", '"all-MiniLM-L6-v2"'),
        ("get-metrics", "headlight_requests_total"),
        ("get-v2-models-model-ready", '"ready"'),
        ("post-decode", "all is well"),
    ],
)
async def test_try_it_fills_in_what_an_address_needs(page: Page, section: str, part: str) -> None:
    """The model's name; without a body, and where the answer is no JSON."""
    await page.run(f"""document.querySelector("#{section} .try button").click()""")

    await page.wait(f"""return document.querySelector("#{section} .status.good")""")
    assert part in await page.run(
        f"""return document.querySelector("#{section} .try pre").textContent"""
    )


async def test_the_page_keeps_to_its_policy(page: Page, client: httpx.AsyncClient) -> None:
    """No script but its own, no address but the service's; the browser complains of nothing."""
    policy = (await client.get("/docs")).headers["content-security-policy"]

    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "unsafe" not in policy and "http" not in policy
    refused = [line for line in await page.complaints() if "422" not in line]
    assert refused == []
