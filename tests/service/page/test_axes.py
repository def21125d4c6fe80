"""The tokens along a matrix, its values by finger, and boxes that say that they scroll."""

import pytest

from tests.service.page.browser import NEEDED, Page, ask, labelled

pytestmark = NEEDED

NAMED = """return ["down", "across"].map((way) =>
  [...document.querySelectorAll(`.axis.${way} span`)].map((label) => label.textContent))"""


async def opened(browser: Page, address: str, text: str) -> None:
    """Show a text, and a head."""
    await ask(browser, address, text)
    await browser.run(f"{labelled('L0H1')}.click()")
    await browser.wait("return document.querySelector('.axis span')")


async def test_each_row_and_column_stands_next_to_its_token(browser: Page, address: str) -> None:
    """In the middle of it, above the columns turned."""
    await opened(browser, address, "All is well")

    off = await browser.run(
        """const middle = (one, from, length) => one[from] + one[length] / 2;
        const box = document.querySelector(".head canvas").getBoundingClientRect();
        const labels = (way) => [...document.querySelectorAll(`.axis.${way} span`)].map(
          (label) => label.getBoundingClientRect());
        const off = (way, from, length) => Math.max(...labels(way).map((label, i) =>
          Math.abs(middle(label, from, length) - box[from] - (i + 0.5) * box[length] / 5)));
        const across = labels("across")[0];
        return [off("down", "y", "height"), off("across", "x", "width"),
                across.height / across.width]"""
    )

    assert await browser.run(NAMED) == [["[CLS]", "All", "is", "well", "[SEP]"]] * 2
    assert max(off[:2]) < 2 and off[2] > 2


@pytest.mark.prove
async def test_of_many_tokens_those_are_named_that_have_room(browser: Page, address: str) -> None:
    """No name lies on another; in a narrower window there are fewer."""
    await opened(browser, address, "well " * 100)
    wide = await browser.run(NAMED)
    beyond = await browser.run(
        """const bottom = (name) => document.querySelector(name).getBoundingClientRect().bottom;
        return bottom(".axis.down span:last-child") - bottom(".head canvas")"""
    )
    await browser.resize(250, 800)
    await browser.wait(
        f"return document.querySelectorAll('.axis.down span').length < {len(wide[0])}"
    )
    apart = await browser.run(
        """const tops = [...document.querySelectorAll(".axis.down span")].map(
          (label) => label.getBoundingClientRect().y);
        return Math.min(...tops.slice(1).map((top, i) => top - tops[i]))"""
    )
    await browser.resize(0, 0)

    assert 10 < len(wide[0]) == len(wide[1]) < 40 and apart >= 12
    assert beyond < 2, "each stands next to its row, whose height is less than a line's"


@pytest.mark.prove
async def test_a_finger_on_a_cell_says_its_value(browser: Page, address: str) -> None:
    """Which cannot point without touching; on the matrix and on the tokens of the lines."""
    await opened(browser, address, "All is well")
    table = """[...document.querySelectorAll(".head .exact td")].map((cell) => cell.textContent)"""
    values = await browser.run(f"return {table}")
    said = "return document.querySelector('.head .value').textContent"

    await browser.tap("document.querySelector('.head canvas')", (0.5, 0.7))
    cell = await browser.run(said)
    await browser.tap("document.querySelector('.lines ol:last-child li:nth-child(2) span')")
    line = await browser.run(said)

    assert cell.startswith("well → is  ") and cell.split()[-1].startswith(values[3 * 5 + 2][:5])
    assert line.startswith("well → All  ") and line.split()[-1].startswith(values[3 * 5 + 1][:5])


@pytest.mark.prove
async def test_a_table_wider_than_its_place_says_that_it_scrolls(
    browser: Page, address: str
) -> None:
    """At 400 pixels; where all of it is seen, nothing is said."""
    await browser.resize(1280, 800)
    await ask(browser, address, "All is well, and it was so before", "Well done, and it was so")
    said = "return !document.querySelector('#alike .scroll .more').hidden"
    hidden = not await browser.run(said)
    await browser.resize(400, 800)
    await browser.wait(said)
    seen = await browser.run(
        """const box = document.querySelector("#alike .scroll");
        box.scrollLeft = 1000;
        const { left, right } = box.querySelector(".more").getBoundingClientRect();
        return [left >= 0, right <= 400, box.scrollLeft > 0]"""
    )
    await browser.resize(0, 0)

    assert hidden and seen == [True, True, True]
