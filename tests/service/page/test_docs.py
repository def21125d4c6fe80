"""GET /docs in a real browser."""

import json
import shlex

import httpx
import pytest
import pytest_asyncio

from service.pipeline.replica import Replica
from service.tables import keys
from tests.conftest import application, listening
from tests.replica_internals import under
from tests.service.page.browser import NEEDED, Page

pytestmark = NEEDED


@pytest_asyncio.fixture(scope="module")
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


async def test_each_example_shows_what_the_bundled_model_answered(page: Page) -> None:
    """Of other APIs too; what is cut is said, and another example has another answer."""
    shown = await page.run(
        """return Object.fromEntries(["post-v1-embeddings", "post-embed", "post-v2-embed"].map(
          (id) => [id, document.querySelector(`#${id} .stored`).parentNode.textContent]))"""
    )
    chosen = await page.run(
        """const section = document.getElementById("post-v1-encode");
        const choice = section.querySelector("select"), first = choice.value;
        const choose = (name) => {
          choice.value = name;
          choice.onchange();
          return section.querySelector(".stored").textContent;
        };
        return [choose("no such head"), choose(first)][0]"""
    )

    assert all("384 numbers" in text and "200" in text for text in shown.values()), shown
    assert chosen.startswith("422") and '"code": "' in chosen


async def test_an_example_names_the_model_that_is_served(page: Page) -> None:
    """Copied as it stands it is answered, whatever the service's model is called."""
    served, sent = await page.run(
        """const { model } = await (await fetch("./info")).json();
        const body = document.querySelector("#post-v1-embeddings textarea").value;
        return [model, JSON.parse(body).model]"""
    )

    assert served == sent


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


async def test_a_route_opens_on_a_command_to_copy(page: Page, client: httpx.AsyncClient) -> None:
    """Before its fields; it sends what stands in the form."""
    first, line = await page.run(
        """const section = document.querySelector("#post-v1-encode");
        const line = section.querySelector(".curl");
        const fields = section.querySelector("dl");
        const before = line.compareDocumentPosition(fields) & Node.DOCUMENT_POSITION_FOLLOWING;
        return [before !== 0 && section.querySelector("h3").textContent, line.textContent]"""
    )
    command = shlex.split(line)
    answer = await client.post(httpx.URL(command[1]).path, json=json.loads(command[-1]))
    edited = await page.run(
        """const section = document.querySelector("#post-v1-attend");
        const text = section.querySelector("textarea"), line = section.querySelector(".curl");
        return ['{"inputs": ["it\\'s"]}', '{'].map((body) => {
          text.value = body;
          text.dispatchEvent(new Event("input"));
          return line.textContent;
        })"""
    )

    assert first == "Copy this" and command[0] == "curl" and answer.status_code == 200
    assert answer.json()["data"][0]["attention"]["maps"]["0"]["5"]
    assert json.loads(shlex.split(edited[0])[-1]) == {"inputs": ["it's"]}
    assert edited[1].startswith("This is no JSON yet")


async def test_a_search_leaves_the_sections_that_have_its_words(page: Page) -> None:
    """And their links; a link to another section ends it."""
    search = """const field = document.getElementById("search");
        field.value = {0};
        field.dispatchEvent(new Event("input"));
        const seen = (of) => [...document.querySelectorAll(of)].filter((one) => !one.hidden);
        return [seen("main section").map(({{ id }}) => id), seen("nav li").length,
                document.getElementById("found").textContent]"""
    every, links, said = await page.run(search.format("''"))
    assert len(every) == links > 30 and said == ""

    some, links, said = await page.run(search.format("'SPECIALS  sweep'"))
    assert "post-v1-similarity" in some and "get-v1-models" not in some
    assert links == len(some) < 10 and said == f"{len(some)} sections have this."
    assert await page.run(search.format("'zzyzx'")) == [[], 0, "No sections have this."]

    await page.run("location.hash = '#get-v1-models'")
    await page.wait("return !document.getElementById('get-v1-models').hidden")
    assert await page.run("return document.getElementById('search').value") == ""


async def test_the_page_is_read_where_keys_are_set(browser: Page, replica: Replica) -> None:
    """With a key that is given on the page."""
    keyed = under(replica, api_keys=keys.parse_keys("a-key-of-a-reader"))
    async with listening(application(keyed)) as url:
        await browser.open(f"{url}/docs")
        await browser.wait("return document.getElementById('state').textContent.includes('key')")
        await browser.run(
            """const field = document.getElementById("key");
            field.value = "a-key-of-a-reader";
            field.dispatchEvent(new Event("change"))"""
        )
        await browser.wait("return document.querySelectorAll('nav a').length > 30")
        line = await browser.run("return document.querySelector('.curl').textContent")
        await browser.open("about:blank")
    await browser.complaints()  # of the 401

    assert "a-key-of-a-reader" not in line and "YOUR-KEY" in line


async def test_the_page_keeps_to_its_policy(page: Page, client: httpx.AsyncClient) -> None:
    """No script but its own, no address but the service's; the browser complains of nothing."""
    policy = (await client.get("/docs")).headers["content-security-policy"]

    assert "default-src 'none'" in policy and "connect-src 'self'" in policy
    assert "unsafe" not in policy and "http" not in policy
    refused = [line for line in await page.complaints() if "422" not in line]
    assert refused == []
