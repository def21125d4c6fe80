"""What the page draws of itself, and what its address holds for a colleague."""

import json

import pytest

from tests.service.page.browser import COMPARED, NEEDED, SHOWN, SORTED, Page, ask, fresh

pytestmark = NEEDED

HEADS = """return [...document.querySelectorAll("[role=gridcell]")].map(
  (cell) => [cell.dataset.head, cell.lastChild.textContent])"""
# Also of an order that a link holds, which Show brings
ORDERED = "return document.getElementById('status').textContent.includes('sorted')"


async def test_an_example_is_drawn_at_first_sight(browser: Page, address: str) -> None:
    """Computed by the service; the address stays empty, so that it holds what a reader asked.

    Its texts stand in the boxes: Show sends them, and who writes writes over them.
    """
    await fresh(browser, address)
    await browser.wait(SHOWN)
    await browser.wait(COMPARED)

    asked = await browser.run(
        "return performance.getEntriesByType('resource').map(({ name }) => new URL(name).pathname)"
    )
    score = await browser.run("return document.querySelector('#alike .score').textContent")
    assert {"/v1/encode", "/v1/similarity"} <= {*asked} and 0.8 < float(score) < 1
    assert await browser.run("return location.hash") == ""
    boxes = "return ['text', 'other'].map((id) => document.getElementById(id).value)"
    texts = [f"A dog ate the food because it was {word}" for word in ("hungry", "tasty")]
    assert await browser.run(boxes) == texts

    await browser.click("document.getElementById('other')")
    await browser.press("Well done")
    await browser.click("document.querySelector('button[type=submit]')")
    await browser.wait("return location.hash")
    assert await browser.run(boxes) == [texts[0], "Well done"]


@pytest.mark.parametrize(
    "button",
    [
        "#alike td button",
        pytest.param("#alike .bar button", marks=pytest.mark.prove),
        pytest.param("#overview .bar > button", marks=pytest.mark.prove),
    ],
)
async def test_what_was_found_is_in_the_link(browser: Page, address: str, button: str) -> None:
    """The order by a pair, by the score or by worth: a colleague who presses Show sees the same."""
    await ask(browser, address, "All is well", "Well done")
    await browser.click(f"document.querySelector({json.dumps(button)})")
    await browser.wait(SORTED)
    found = await browser.run(HEADS)
    link = await browser.run("return location.hash")

    await fresh(browser, address, link)
    await browser.run("document.querySelector('button[type=submit]').click()")
    await browser.wait(ORDERED)

    assert await browser.run(HEADS) == found
    assert found != sorted(found)


@pytest.mark.prove
@pytest.mark.parametrize(  # a number and a name; `make prove` tries the others
    "order",
    [
        "pair 99 0",
        "toString",
        *(pytest.param(order, marks=pytest.mark.prove) for order in ("pair", "score.")),
    ],
)
async def test_an_order_that_a_link_makes_up_is_left_out(
    browser: Page, address: str, order: str
) -> None:
    """The heads stand in their places, and nothing failed."""
    await fresh(browser, address, f"#text=All+is+well&other=Well+done&order={order}")
    await browser.run("document.querySelector('button[type=submit]').click()")
    await browser.wait(SHOWN)
    await browser.wait(COMPARED)

    assert [name for name, _ in await browser.run(HEADS)][:3] == ["L0H0", "L0H1", "L0H2"]
    assert await browser.complaints() == []
