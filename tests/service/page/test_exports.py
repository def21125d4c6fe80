"""What GET / gives to take away, as other programs read it: XML's parsers, spreadsheets."""

import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.service.page.browser import NEEDED, Page, ask, labelled, taken

pytestmark = NEEDED

NAMES = "http://www.w3.org/2000/svg"


async def opened(browser: Page, address: str, text: str) -> None:
    """Show a text, and a head by words."""
    await ask(browser, address, text)
    await browser.run(f"{labelled('L0H1')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")
    await browser.run(
        """const select = [...document.querySelectorAll("#looks select")].at(-1);
        select.value = "word"; select.onchange()"""
    )
    await browser.wait("return document.querySelector('.head').ariaBusy === 'false'")


FORBIDDEN = "\x00\x01\x0b\x1f\ufffe\uffff"  # by XML 1.0
SIGNS = "=+-@\uff1d\uff0b\uff0d\uff20"


@pytest.mark.parametrize("odd", [FORBIDDEN, "&<]]>", pytest.param("\r", marks=pytest.mark.prove)])
async def test_a_picture_of_any_text_is_xml(
    browser: Page, address: str, tmp_path: Path, odd: str
) -> None:
    """What XML 1.0 forbids stands as U+FFFD, all else as it is."""
    await opened(browser, address, f"qx{odd}zw well")
    svg = await taken(browser, "SVG of the lines", tmp_path / "L0H1-lines.svg")

    written = ElementTree.fromstring(svg).iter(f"{{{NAMES}}}text")
    texts = [one.text or "" for one in written if one.get("font-family") == "monospace"]
    shown = odd if odd == "&<]]>" else "\ufffd" * len(odd)
    whole = "".join(texts[::2])
    assert whole.startswith("[CLS]qx") and whole.endswith("zwwell[SEP]")
    assert whole.removeprefix("[CLS]qx").removesuffix("zwwell[SEP]") in (shown, "", "\n")


@pytest.mark.parametrize("kind", ["matrix", pytest.param("lines", marks=pytest.mark.prove)])
async def test_a_figure_says_what_it_shows_in_colours_for_print(
    browser: Page, address: str, tmp_path: Path, kind: str
) -> None:
    """Tokens, head, scale, text and model, on white; a dark page gives the same.

    The lines' own SVG is read above; `make prove` holds them to all of this.
    """
    figures = []
    for theme in ("light", "dark"):
        folder = tmp_path / theme
        folder.mkdir()
        async with browser.theme(theme):
            await opened(browser, address, "All is well, quite well")
            title = f"of the {kind}"
            svg = await taken(browser, f"SVG {title}", folder / f"L0H1-{kind}.svg")
            png = await taken(browser, f"PNG {title}", folder / f"L0H1-{kind}.png")
        figures.append((svg, png))

    svg, png = figures[0]
    root = ElementTree.fromstring(svg)
    texts = [one.text for one in root.iter(f"{{{NAMES}}}text")]
    model = "all-MiniLM-L6-v2: 6 layers of 12 heads, width 384"
    said = ["All is well, quite well", "by words", "0.25", "share of attention", model]
    assert str(texts[0]).startswith("Head L0H1") and not {*said} - {*texts}
    assert [texts.count(name) for name in ("[CLS]", "quite", "well")] == [2, 2, 4]
    assert root[0].get("fill") == "#fff" and figures[0] == figures[1]
    sides = [int.from_bytes(png[place : place + 4]) for place in (16, 20)]
    assert sides == [2 * int(root.get(side, "")) for side in ("width", "height")]


@pytest.mark.prove
async def test_a_figure_of_a_long_text_names_some_of_its_tokens(
    browser: Page, address: str, tmp_path: Path
) -> None:
    """As many as have room, and it says so; all values are drawn."""
    await ask(browser, address, "well " * 200)
    await browser.run(f"{labelled('L0H1')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")
    svg = await taken(browser, "SVG of the matrix", tmp_path / "L0H1-matrix.svg")

    root = ElementTree.fromstring(svg)
    texts = [one.text for one in root.iter(f"{{{NAMES}}}text")]
    assert texts.count("well") == 2 * 50 and "Every 4th token is named." in texts
    drawn = sum((one.get("d") or "").count("M") for one in root.iter(f"{{{NAMES}}}path"))
    assert drawn > 10_000, "of 202 x 202 values those that are not next to nothing"


async def test_no_cell_of_a_table_is_a_formula(browser: Page, address: str, tmp_path: Path) -> None:
    """A spreadsheet shows a word that begins as one does; numbers stay numbers."""
    await opened(browser, address, '" well, ' + " ".join(f"{sign} 1 {sign} 2" for sign in SIGNS))
    text = (await taken(browser, "CSV", tmp_path / "L0H1.csv")).decode()

    (_, *across), *rows = csv.reader(text.splitlines(keepends=True), strict=True)
    down = [row[0] for row in rows]
    assert across == down
    for sign in SIGNS:
        assert [name for name in down if sign in name] == [f"'{sign} (1)", f"'{sign} (2)"]
    assert '"' in down and "," in down
    assert all(abs(sum(map(float, row[1:])) - 1) < 1e-4 for row in rows)


@pytest.mark.prove
async def test_the_page_that_stands_alone_follows_its_readers_theme(
    browser: Page, address: str, tmp_path: Path
) -> None:
    """Tables and pictures, from whichever theme it was saved."""
    shown = {}
    for saved in ("light", "dark"):
        (tmp_path / saved).mkdir()
        async with browser.theme(saved):
            await opened(browser, address, "All is well")
            await taken(browser, "HTML", tmp_path / saved / "headlight.html")
        for read in ("light", "dark"):
            async with browser.theme(read):
                await browser.open(f"file://{tmp_path}/{saved}/headlight.html")
                shown[saved, read] = await browser.run(
                    """const cell = getComputedStyle(document.querySelector(".head td"));
                    return [getComputedStyle(document.body).backgroundColor, cell.color,
                      cell.backgroundColor, ...[...document.images].map((one) => one.currentSrc)]"""
                )
    await browser.open("about:blank")

    for read in ("light", "dark"):
        assert shown["light", read] == shown["dark", read] and len(shown["dark", read]) == 3 + 73
    light, dark = shown["light", "light"], shown["light", "dark"]
    assert all(one != other for one, other in zip(light[2:], dark[2:], strict=True))


@pytest.mark.prove
async def test_the_page_that_stands_alone_says_how_it_was_looked_at(
    browser: Page, address: str, tmp_path: Path
) -> None:
    """The order of the heads, the choices and the step, in words; nothing to operate."""
    await opened(browser, address, "All is well")
    await browser.run(
        """const order = document.querySelector("#overview select");
        order.value = "entropy";
        order.onchange();
        document.querySelector("#pipeline .bar button").click()"""
    )
    await browser.wait("return document.querySelector('#pipeline table')")
    heads = """return [...document.querySelectorAll("[role=gridcell]")].map(
      (cell) => cell.textContent)"""
    captions = """return [...document.querySelectorAll("caption")].map(
      (caption) => caption.textContent)"""
    seen = [await browser.run(heads), await browser.run(captions)]
    await taken(browser, "HTML", tmp_path / "headlight.html")
    await browser.open(f"file://{tmp_path}/headlight.html")
    kept = [await browser.run(heads), await browser.run(captions)]
    said = await browser.run("return document.body.innerText")
    controls = await browser.run("return document.querySelectorAll('button, select, input').length")
    await browser.open("about:blank")

    assert kept == seen and controls == 0
    told = ("Order: entropy, least first", "Level: words", "Weight: probability", "Layer: 0", "X'")
    assert not [one for one in told if one not in said]
    assert "Arrow keys" not in said and "tap" not in said


async def test_the_page_that_stands_alone_has_the_texts_that_were_shown(
    browser: Page, address: str, tmp_path: Path
) -> None:
    """Not what was written since; its style needs no further answer."""
    await opened(browser, address, "All is well")
    await browser.run("document.getElementById('text').value = 'Not asked'")
    await browser.run("window.fetch = () => Promise.reject(new TypeError())")
    alone = (await taken(browser, "HTML", tmp_path / "headlight.html")).decode()

    assert '<blockquote dir="auto">All is well<' in alone and "Not asked" not in alone
    assert "--paper: #fff" in alone and "max-width: 40rem" in alone.replace(
        "max-width:40rem", "max-width: 40rem"
    )
