"""What GET / gives to take away, as other programs read it: XML's parsers, spreadsheets."""

import asyncio
import csv
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.service.page.browser import NEEDED, Page, ask, labelled

pytestmark = [pytest.mark.asyncio(loop_scope="session"), NEEDED]

NAMES = "http://www.w3.org/2000/svg"


async def taken(browser: Page, title: str, file: Path) -> bytes:
    """What a button saves."""
    await browser.downloads(file.parent)
    await browser.run(
        f"""[...document.querySelectorAll("#exports button")].find(
          (button) => button.textContent.startsWith("{title}")).click()"""
    )
    await browser.until(file.exists)
    return await asyncio.to_thread(file.read_bytes)


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


@pytest.mark.parametrize("odd", ["\x00", "\x01", "\x0b", "\x1f", "\ufffe", "\uffff", "&<]]>", "\r"])
async def test_a_picture_of_any_text_is_xml(
    browser: Page, address: str, tmp_path: Path, odd: str
) -> None:
    """What XML 1.0 forbids stands as U+FFFD, all else as it is."""
    await opened(browser, address, f"qx{odd}zw well")
    svg = await taken(browser, "SVG", tmp_path / "L0H1.svg")

    texts = [one.text or "" for one in ElementTree.fromstring(svg).iter(f"{{{NAMES}}}text")]
    shown = odd if odd == "&<]]>" else "\ufffd"
    whole = "".join(texts[::2])
    assert whole.startswith("[CLS]qx") and whole.endswith("zwwell[SEP]")
    assert whole.removeprefix("[CLS]qx").removesuffix("zwwell[SEP]") in (shown, "", "\n")


@pytest.mark.parametrize("sign", ["=", "+", "-", "@", "\uff1d", "\uff0b", "\uff0d", "\uff20"])
async def test_no_cell_of_a_table_is_a_formula(
    browser: Page, address: str, tmp_path: Path, sign: str
) -> None:
    """A spreadsheet shows a word that begins as one does; numbers stay numbers."""
    await opened(browser, address, f'{sign} 1 " well, {sign} 2')
    text = (await taken(browser, "CSV", tmp_path / "L0H1.csv")).decode()

    (_, *across), *rows = csv.reader(text.splitlines(keepends=True), strict=True)
    down = [row[0] for row in rows]
    assert across == down and [name for name in down if sign in name] == [
        f"'{sign} (1)",
        f"'{sign} (2)",
    ]
    assert '"' in down and "," in down
    assert all(abs(sum(map(float, row[1:])) - 1) < 1e-4 for row in rows)


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
