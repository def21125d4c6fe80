"""GET / where one part of what it asks for fails: all others are there, and each says why."""

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from typing import Any

import pytest

from service.pipeline.replica import Replica
from service.tables.refusals import Refused
from tests.conftest import application, listening
from tests.replica_internals import under
from tests.service.page.browser import FAILED, NEEDED, SHOWN, SORTED, Page, ask, fresh, labelled

pytestmark = NEEDED

WELL, DONE = "All is well", "Well done"
LONG = " ".join(["All is well that ends well"] * 30)
OVERVIEW = "return document.getElementById('overview').innerText"
ALIKE = "return document.getElementById('alike').innerText"
BADGES = """return [...document.querySelectorAll("[role=gridcell] .badge")].map(
  (badge) => badge.textContent)"""


@contextmanager
def heads(replica: Replica, answer: Any) -> Iterator[None]:
    """What the replica answers to GET /v1/heads for a while."""
    kept = replica.heads.answer
    replica.heads.answer = answer  # type: ignore[method-assign]
    try:
        yield
    finally:
        replica.heads.answer = kept  # type: ignore[method-assign]


@asynccontextmanager
async def narrow(replica: Replica, **settings: Any) -> AsyncIterator[str]:
    """The same replica under other limits of an answer, over real HTTP."""
    async with listening(application(under(replica, **settings))) as url:
        yield url


async def refuse(browser: Page, part: str) -> None:
    """Let the page be refused what a part of a request says, and nothing else."""
    await browser.run(
        f"""window.kept ??= fetch;
        window.fetch = (url, more) => `${{url}} ${{more?.body}}`.includes({json.dumps(part)})
          ? Promise.resolve(new Response('{{"detail": "no room for it"}}', {{ status: 429 }}))
          : window.kept(url, more)"""
    )


async def show(browser: Page, text: str, other: str = "") -> None:
    """Write the texts and press Show."""
    await browser.run(
        f"""document.getElementById("text").value = {json.dumps(text)};
        document.getElementById("other").value = {json.dumps(other)};
        document.querySelector("button[type=submit]").click()"""
    )


@pytest.mark.prove
async def test_maps_are_there_before_the_roles_are(browser: Page, replica: Replica) -> None:
    """A model may have to be surveyed for them; they come into what is shown, where it stands."""
    late, answer = asyncio.Event(), replica.heads.answer

    async def surveyed(deadline: float) -> dict[str, Any]:
        await late.wait()
        return await answer(deadline)

    with heads(replica, surveyed):
        async with listening(application(replica)) as url:
            try:
                await ask(browser, url, WELL)
                await browser.run(f"{labelled('L0H1')}.click()")
                await browser.wait("return document.querySelector('.head .equation')")
                cell = f"{labelled('L0H5')}"
                await browser.run(f"window.cell = {cell}; window.cell.focus()")
                assert set(await browser.run(BADGES)) == {""}
                assert "roles are not available yet" in await browser.run(OVERVIEW)
                assert "Role not known" in await browser.run(
                    "return document.querySelector('.head').innerText"
                )
                late.set()
                await browser.wait(
                    "return !document.getElementById('overview').innerText.includes('available')"
                )
                badges = await browser.run(BADGES)
                roles = await browser.run(
                    """return [...document.querySelectorAll("#overview select")[1].options].map(
                      (option) => option.value)"""
                )
                focused = await browser.run("return document.activeElement === window.cell")
                said = await browser.run("return document.querySelector('.head .bar').innerText")
            finally:
                late.set()  # so that the connection ends
            await browser.open("about:blank")

    told = (await answer(0.0))["heads"]
    assert badges == [head["role"] or "" for head in told] and any(badges)
    assert roles == ["all", *sorted({head["role"] or "none" for head in told})]
    role = next(head["role"] for head in told if (head["layer"], head["head"]) == (0, 1))
    assert (f"Role {role}" if role else "No role") in said and "known" not in said
    assert focused, "the reader's place is kept"


async def test_roles_that_do_not_come_take_no_map_along(browser: Page, replica: Replica) -> None:
    """The overview says why they are missing, also after it is ordered anew."""

    async def refused(deadline: float) -> dict[str, Any]:
        raise Refused("deadline_exceeded")

    with heads(replica, refused):
        async with listening(application(replica)) as url:
            await ask(browser, url, WELL)
            await browser.wait("return document.querySelector('#overview .bad')")
            await browser.run(
                """const select = document.querySelector("#overview select");
                select.value = "entropy"; select.onchange()"""
            )
            said = await browser.run("return document.querySelector('#overview .bad').innerText")
            cells = await browser.run("return document.querySelectorAll('[role=gridcell]').length")
            await browser.open("about:blank")

    assert said.startswith("No roles: ") and "deadline" in said.lower() and cells == 72


@pytest.mark.prove
async def test_statistics_that_do_not_come_take_no_map_along(browser: Page, address: str) -> None:
    """Nothing is said of what is not known."""
    await fresh(browser, address)
    await refuse(browser, '"form":"stats"')
    await show(browser, WELL)
    await browser.wait(SHOWN)
    await browser.run(f"{labelled('L0H5')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")
    said = await browser.run(OVERVIEW)
    meters = await browser.run("return document.querySelectorAll('.meter').length")

    assert "No statistics: no room for it" in said and meters == 0
    assert "contribution" not in await browser.run(
        "return document.querySelector('.head').innerText"
    )
    orders = await browser.run(
        """return [...document.querySelector("#overview select").options].map(
          (option) => option.value)"""
    )
    assert orders == ["place"]


@pytest.mark.prove
async def test_a_likeness_that_is_too_large_leaves_score_and_heads(
    browser: Page, replica: Replica
) -> None:
    """Of the pairs of words the service says why they are not told."""
    async with narrow(replica, max_answer_bytes=480_000) as url:
        await ask(browser, url, LONG, LONG)
        said = await browser.wait(
            f"{ALIKE}.includes('Why alike') && {ALIKE.removeprefix('return ')}"
        )
        cells = await browser.run("return document.querySelectorAll('[role=gridcell]').length")
        await browser.open("about:blank")

    assert "1.0000" in said and "The answer is too large" in said and cells == 72


@pytest.mark.prove
async def test_a_likeness_that_does_not_come_leaves_the_heads(browser: Page, address: str) -> None:
    """Its place says why; the choice between the two texts is there."""
    await fresh(browser, address)
    await refuse(browser, "v1/similarity")
    await show(browser, WELL, DONE)
    await browser.wait(SHOWN)
    await browser.wait(f"{ALIKE}.includes('no room for it')")
    assert await browser.run("return document.querySelectorAll('[role=gridcell]').length") == 72
    assert "Heads of" in await browser.run(OVERVIEW)
    assert await browser.run("return document.getElementById('alike').ariaBusy") == "false"

    await browser.run("window.fetch = window.kept")
    await show(browser, WELL, DONE)
    await browser.wait(f"{ALIKE}.includes('The pairs that add most')")


@pytest.mark.prove
async def test_heads_that_do_not_come_leave_the_likeness_and_nothing_of_another_text(
    browser: Page, address: str
) -> None:
    """What stood there was of the text before."""
    await ask(browser, address, "A dog ate the food")
    await browser.run(f"{labelled('L0H5')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")
    await refuse(browser, '"form":"blocks"')
    await show(browser, WELL, DONE)
    await browser.wait("return document.querySelector('#status.bad')")
    await browser.wait(f"{ALIKE}.includes('The pairs that add most')")

    shown = await browser.run("return document.getElementById('views').innerText")
    assert "dog" not in shown and "All heads" not in shown
    assert await browser.run("return document.getElementById('exports').hidden")
    await browser.run("document.querySelector('#alike .bar button').click()")
    assert await browser.wait(FAILED) == "There are no heads to sort."
    said = await browser.run("return document.querySelector('#status.bad').textContent")
    assert "no room for it" in said, "it says still why there is nothing to order"


@pytest.mark.prove
async def test_the_other_texts_heads_that_do_not_come_leave_the_first_ones(
    browser: Page, address: str
) -> None:
    """The choice stands at the text that is shown."""
    await ask(browser, address, WELL, DONE)
    await refuse(browser, '"form":"blocks"')
    await browser.run(
        """const select = document.querySelectorAll("#overview select")[2];
        select.value = "other"; select.onchange()"""
    )
    assert await browser.wait(FAILED) == "no room for it"

    shown = "return document.querySelectorAll('#overview select')[2].value"
    assert await browser.run(shown) == "text"


@pytest.mark.prove
async def test_a_layer_that_does_not_come_shows_nothing_of_another(
    browser: Page, address: str
) -> None:
    """Its place says why, and it can be asked for again."""
    await ask(browser, address, WELL)
    await browser.run("document.querySelector('#pipeline .bar button').click()")
    await browser.wait("return document.querySelector('#pipeline table')")
    await refuse(browser, "v1/explain")
    await browser.run(
        """const select = document.querySelector("#pipeline select");
        select.value = "3"; select.onchange()"""
    )
    said = await browser.wait("return document.querySelector('#pipeline .bad')?.textContent")
    assert said == "no room for it"
    assert await browser.run("return !document.querySelector('#pipeline table')")

    await browser.run("window.fetch = window.kept")
    await browser.run("document.querySelector('#pipeline .bar button').click()")
    await browser.wait("return document.querySelector('#pipeline table')")
    assert await browser.run("return document.querySelector('#pipeline select').value") == "3"


@pytest.mark.prove
async def test_dominance_that_does_not_come_is_asked_again_when_opened_again(
    browser: Page, address: str
) -> None:
    """Its place says why meanwhile."""
    await ask(browser, address, WELL)
    await refuse(browser, '"form":"dominance"')
    await browser.run("document.querySelector('#dominance details').open = true")
    await browser.wait("return document.querySelector('#dominance .bad')")

    await browser.run("window.fetch = window.kept")
    await browser.run("document.querySelector('#dominance details').open = false")
    await browser.wait("return !document.querySelector('#dominance details').open")
    await browser.run("document.querySelector('#dominance details').open = true")
    await browser.wait("return document.querySelector('#dominance table')")
    assert await browser.run("return !document.querySelector('#dominance .bad')")


async def test_a_pair_is_asked_once_with_its_progress_next_to_the_button(
    browser: Page, address: str
) -> None:
    """Until the answer is there, or the reason why not."""
    await ask(browser, address, WELL, DONE)
    button = "document.querySelector('#alike td button')"
    await browser.run(
        """Object.assign(window, { asked: [], inner: fetch });
        window.fetch = async (url, more) => {
          window.asked.push(String(url));
          if (!more.body.includes("sweep_pair")) return window.inner(url, more);
          await new Promise((done) => (window.answer = done));
          return window.inner(url, more);
        }"""
    )
    await browser.click(button)
    await browser.wait("return !!window.answer")
    told = await browser.run(f"return {button}.nextSibling.textContent")
    await browser.run("window.answer()")
    await browser.wait(SORTED)
    after = await browser.run(f"return {button}.nextSibling.textContent")
    asked = await browser.run("return window.asked")
    await browser.run("window.fetch = window.inner")
    await refuse(browser, "sweep_pair")
    await browser.click(button)
    refused = await browser.wait(FAILED)

    assert told == "Without each of 72 heads: 0 s" and refused == "no room for it"
    assert after == "Heads sorted by what each adds to [SEP] · [SEP]."
    assert [url.endswith("/v1/similarity") for url in asked].count(True) == 1
    assert len(asked) <= 2, "and the map of the head that it opens"


@pytest.mark.prove
async def test_a_scale_that_fails_claims_no_cosine(browser: Page, address: str) -> None:
    """The number of another place of the slider does not stand next to it."""
    await ask(browser, address, WELL)
    await browser.run(f"{labelled('L0H5')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")
    await refuse(browser, '"gates"')
    await browser.run(
        """const slider = document.querySelector(".head input[type=range]");
        slider.value = 0; slider.onchange()"""
    )
    assert await browser.wait(FAILED) == "no room for it"
    assert await browser.run(f"return {labelled('Cosine without L0H5')}.textContent") == "–"


@pytest.mark.prove
async def test_several_texts_need_no_word_of_the_model(browser: Page, address: str) -> None:
    """GET /info fails: its name is missing, and what can be asked can be."""
    source = """window.kept ??= fetch;
      window.fetch = (url, more) => String(url).endsWith("/info")
        ? Promise.resolve(new Response('{"detail": "no room for it"}', { status: 429 }))
        : window.kept(url, more)"""
    async with browser.before(source):
        await fresh(browser, address)
        await browser.wait("return document.querySelector('#status.bad')")
        await browser.run("document.querySelector('#texts details').open = true")
        await browser.wait("return document.getElementById('several')")
        await browser.run(
            f"""document.getElementById("several").value = {json.dumps(f"{WELL}{chr(10)}{DONE}")};
            document.querySelector("#texts button").click()"""
        )
        await browser.wait("return document.querySelectorAll('#texts td').length === 4")
    await browser.run("window.fetch = window.kept")
    await show(browser, WELL)
    await browser.wait("return document.getElementById('model').textContent.includes('6 layers')")
    assert await browser.run("return document.querySelectorAll('#texts td').length") == 4
