"""What stands next to what the page shows: legends with numbers, headings, words for its terms."""

import pytest

from tests.service.page.browser import NEEDED, Page, ask, labelled

pytestmark = NEEDED

TEXTS = "A dog ate the food because it was hungry", "A dog ate the food because it was tasty"
LEGENDS = """return [...document.querySelectorAll("%s .legend")].map((one) =>
  [...one.querySelectorAll(".ticks span")].map((tick) => Number(tick.textContent)))"""
SHARES = [0, 0.05, 0.25, 0.5, 1]
EXPORTS = """return [...document.querySelectorAll("#exports button")].filter(
  (button) => button.disabled).map((button) => button.textContent)"""


async def test_every_map_has_a_legend_with_numbers(browser: Page, address: str) -> None:
    """Attention from 0 to 1 on one scale; what has a sign up to its largest, either way."""
    await ask(browser, address, *TEXTS)
    await browser.run(f"{labelled('L5H11')}.click()")
    await browser.wait("return document.querySelector('.why button')")
    await browser.run("document.querySelector('.why button').click()")
    await browser.wait("return document.querySelector('.why summary')")
    await browser.run("document.querySelector('.why summary').click()")
    await browser.wait("return document.querySelector('.why .legend')")
    await browser.run("document.querySelector('#pipeline button').click()")
    await browser.wait("return document.querySelector('#pipeline .legend')")

    for place in ("#overview", ".head .matrix"):
        assert await browser.run(LEGENDS % place) == [SHARES], place
    for place in ("#alike", ".why", "#pipeline"):
        ((least, middle, most),) = await browser.run(LEGENDS % place)
        assert least == -most and middle == 0 < most, place
    cells = await browser.run(
        """return [...document.querySelectorAll("#alike td.shade")].map(
          (cell) => Math.abs(cell.textContent))"""
    )
    ((_, _, most),) = await browser.run(LEGENDS % "#alike")
    assert most == pytest.approx(max(cells), abs=1e-4)


async def test_numbers_with_signs_have_two_hues(browser: Page, address: str) -> None:
    """In a step of a layer, too: what is below zero is redder than blue, what is above bluer."""
    await ask(browser, address, "All is well")
    await browser.run("document.querySelector('#pipeline button').click()")
    await browser.wait("return document.querySelector('#pipeline canvas')")

    hues = await browser.run(
        """const canvas = document.querySelector("#pipeline canvas"), { width, height } = canvas;
        const { data } = canvas.getContext("2d").getImageData(0, 0, width, height);
        return Array.from({ length: 40 }, (_, i) => {
          const pixel = 4 * (Math.floor(i / 8) * width + (i % 8));
          return Math.sign(data[pixel] - data[pixel + 2]);
        })"""
    )
    numbers = await browser.run(
        """return [...document.querySelectorAll("#pipeline tbody td")].map(
          (cell) => Number(cell.textContent))"""
    )

    large = [i for i, number in enumerate(numbers) if abs(number) > 0.05]
    assert {numbers[i] < 0 for i in large} == {True, False}
    assert [hues[i] > 0 for i in large] == [numbers[i] < 0 for i in large]


async def test_the_heads_stand_in_rows_of_their_layer_below_their_name(
    browser: Page, address: str
) -> None:
    """In the model's order; in another one a row is of several layers."""
    await ask(browser, address, *TEXTS)
    headings = """return [...document.querySelectorAll("#overview [role=row]")].map(
      (row) => row.querySelector("[role=rowheader]")?.textContent ?? "")"""
    assert await browser.run(headings) == [f"L{layer}" for layer in range(6)]
    over = "return document.querySelector('#alike thead th').textContent"
    assert await browser.run(over) == "Other text"

    await browser.run(
        """const select = document.querySelector("#overview select");
        select.value = "entropy"; select.onchange()"""
    )
    assert await browser.run(headings) == [""] * 6


async def test_no_letter_of_an_axis_is_cut(browser: Page, address: str) -> None:
    """A line is as high as its letters, those that reach below it included."""
    await ask(browser, address, "jumpy dogs")
    await browser.run(f"{labelled('L0H1')}.click()")
    await browser.wait("return document.querySelector('.axis.down span')")

    cut = await browser.run(
        """return [...document.querySelectorAll(".axis.down span")].map((one) => {
          const line = parseFloat(getComputedStyle(one).lineHeight);
          const ruler = document.createElement("canvas").getContext("2d");
          ruler.font = getComputedStyle(one).font;
          const box = ruler.measureText("jg");
          return [line, box.fontBoundingBoxAscent + box.fontBoundingBoxDescent];
        })"""
    )
    assert all(line >= letters for line, letters in cut) and cut


async def test_only_the_last_order_says_that_the_heads_are_sorted(
    browser: Page, address: str
) -> None:
    """What each order's numbers mean stays, as the numbers of both do."""
    await ask(browser, address, *TEXTS)
    buttons = f"{labelled('Which heads make them alike?')}.querySelectorAll('button')"
    for place in (0, 1):
        await browser.click(f"{buttons}[{place}]")
        await browser.wait(
            f"return {buttons}[{place}].nextElementSibling?.textContent.includes('Heads sorted')"
        )

    said = await browser.run(
        """return [...document.querySelectorAll("output.said")].map((one) => one.textContent)
          .filter((text) => text.startsWith("Heads sorted"))"""
    )
    assert len(said) == 1 and "attention patterns kept" in said[0]
    meanings = (
        "return [...document.querySelectorAll('#overview > .note')].map((n) => n.textContent)"
    )
    told = " ".join(await browser.run(meanings))
    assert "measured by removing it: What the score loses" in told
    assert "attention patterns kept: How fast the score falls" in told


async def test_what_needs_an_open_head_is_off_until_there_is_one(
    browser: Page, address: str
) -> None:
    """And again when it is closed."""
    await ask(browser, address, *TEXTS)
    off = await browser.run(EXPORTS)
    assert {"PNG of the matrix", "SVG of the lines", "CSV of the matrix", "Copy curl"} <= {*off}
    assert not {"JSON of the answers", "HTML of the page"} & {*off}

    await browser.run(f"{labelled('L0H1')}.click()")
    await browser.wait("return document.querySelector('.axis.down span')")
    assert await browser.run(EXPORTS) == []

    await browser.run(f"{labelled('Close L0H1')}.click()")
    assert await browser.run(EXPORTS) == off


async def test_a_term_is_explained_where_it_stands(browser: Page, address: str) -> None:
    """Roles, what a head goes by, and the rest of an equation; on hover, a head's numbers."""
    await ask(browser, address, *TEXTS)
    await browser.wait(
        """return [...document.querySelectorAll("#overview option")].some(
          ({ value }) => value === "broad")"""
    )
    roles = await browser.run(
        """return Object.fromEntries([...document.querySelectorAll("#overview option")].map(
          ({ value, textContent }) => [value, textContent]))"""
    )
    assert roles["broad"] == "broad: looks everywhere alike"
    assert roles["delimiter sink"] == "delimiter sink: looks at special tokens"

    await browser.click(labelled("L0H2"))
    await browser.wait("return document.querySelector('.equation')")
    told = await browser.run("return document.querySelector('.head').textContent")
    assert "goes by position\u2192position (0." in told
    assert "of how its scores vary comes from these parts of query and key" in told
    assert "The rest: all other tokens." in told
    hovered = await browser.run(
        f"""{labelled("L3H4")}.dispatchEvent(new PointerEvent("pointerenter"));
        return document.querySelector("#overview .help").textContent"""
    )
    assert hovered.startswith("L3H4: ") and "contribution 0." in hovered
