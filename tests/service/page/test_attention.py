"""GET / in a real browser: what every head attends to."""

import json
import re
import shlex
from collections import Counter
from pathlib import Path
from statistics import median
from typing import Any

import httpx
import pytest
import pytest_asyncio
from transformers import AutoTokenizer, BertConfig, BertModel

from service.files.weights import BUNDLED_MODEL, locate_model
from service.pipeline.replica import Replica
from service.tables import keys
from service.tables.settings import Settings
from tests.conftest import application, listening
from tests.replica_internals import pooled_by, under
from tests.service.page.browser import (
    AXE,
    COMPARED,
    FAILED,
    KEYS,
    NEEDED,
    SHOWN,
    SORTED,
    WIDE,
    Page,
    ask,
    fresh,
    labelled,
    saved,
)
from tests.task_heads import checkpoint

pytestmark = NEEDED

DOG = "A dog ate the food because it was hungry"
FORM = "[aria-label='Head L5H11']"
CELL = "document.querySelector('[role=gridcell]')"
SETTLED = f"return document.querySelector(`{FORM}`).ariaBusy === 'false'"


@pytest_asyncio.fixture(scope="module")
async def page(browser: Page, address: str) -> Page:
    """The page, with the sentence of the source texts and one head open."""
    await ask(browser, address, DOG)
    await browser.run(f"{labelled('L5H11')}.click()")
    await browser.wait(f"return document.querySelector(`{FORM} table`)")
    return browser


async def encode(client: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """What the API says of the first input."""
    answer = await client.post("/v1/encode", json=body)
    first: dict[str, Any] = answer.raise_for_status().json()["data"][0]
    return first


async def test_every_number_of_a_heads_table_is_the_apis(
    page: Page, client: httpx.AsyncClient
) -> None:
    """Rows and columns by the tokens' names."""
    shown = await page.run(
        f"""return [...document.querySelectorAll(`{FORM} tbody tr`)].map(
          (row) => [...row.querySelectorAll("td")].map((cell) => Number(cell.textContent)))"""
    )
    attention = {"form": "full", "layers": [5], "heads": [11]}
    first = await encode(client, inputs=[DOG], pooled=False, attention=attention)

    maps = first["attention"]["maps"]["5"]["11"]
    assert shown == [[round(value, 4) for value in row] for row in maps]


async def test_every_number_of_the_overviews_table_is_the_apis(
    page: Page, client: httpx.AsyncClient
) -> None:
    """Of all heads; a head's role is the measured one."""
    await page.wait("return !document.getElementById('overview').innerText.includes('available')")
    await page.run("""[...document.querySelectorAll("#overview details")].at(-1).open = true""")
    rows = await page.wait(
        """const rows = [...document.querySelectorAll("#overview tbody tr")];
        const texts = (row) => [...row.children].map((cell) => cell.textContent);
        return rows.length && rows.map(texts)"""
    )
    stats = (await encode(client, inputs=[DOG], pooled=False, attention={"form": "stats"}))[
        "attention"
    ]["stats"]
    heads = (await client.get("/v1/heads")).json()["heads"]

    columns = ("contribution", "entropy", "previous", "next", "self", "cls", "sep", "distance")
    for (name, role, *values), head in zip(rows, heads, strict=True):
        of = stats["values"][str(head["layer"])][str(head["head"])]
        by_name = dict(zip(stats["fields"], of, strict=True))
        assert name == f"L{head['layer']}H{head['head']}" and role == (head["role"] or "none")
        assert values == [f"{by_name[column]:.4f}" for column in columns]
    made = next(head for head in heads if head["layer"] == 0 and head["mechanism"])
    by, name = made["mechanism"], f"L0H{made['head']}"
    assert f"goes by {by['query']}→{by['key']} ({by['share']:.2f} of" in await page.run(
        f"return {labelled(name)}.title"
    )


@pytest.mark.parametrize(
    ("weight", "specials", "level"),
    [
        ("value_norm", "keep", "token"),
        ("probability", "drop", "word"),
        ("value_norm", "drop", "word"),
        ("probability", "renormalize", "token"),
    ],
)
async def test_each_way_to_look_at_a_head_shows_the_apis_numbers(
    page: Page, client: httpx.AsyncClient, weight: str, specials: str, level: str
) -> None:
    """Weight, special tokens and level, chosen on the page."""
    for label, value in (("Weight", weight), ("Special tokens", specials), ("Level", level)):
        await page.run(
            f"""const select = [...document.querySelectorAll("#looks label")].find(
              (label) => label.textContent.startsWith("{label}")).querySelector("select");
            select.value = "{value}"; select.onchange()"""
        )
    form = (
        {"form": "full"} if weight == "probability" else {"form": "top", "k": 11, "weight": weight}
    )
    attention = {**form, "layers": [5], "heads": [11], "specials": specials, "level": level}
    told = (await encode(client, inputs=[DOG], pooled=False, attention=attention))["attention"]

    await page.wait(SETTLED)
    shown = await page.run(
        f"""return [...document.querySelectorAll(`{FORM} tbody tr`)].map(
          (row) => [...row.querySelectorAll("td")].map((cell) => Number(cell.textContent)))"""
    )
    assert shown == matrix(told)


def matrix(told: dict[str, Any]) -> list[list[float]]:
    """A head's map, whichever form it came in, as the page rounds it."""
    if "maps" in told:
        return [[round(value, 4) for value in row] for row in told["maps"]["5"]["11"]]
    edges = told["edges"]["5"]["11"]
    axis = told.get("axis") or list(range(len(edges["keys"])))
    rows = [
        dict(zip(*pair, strict=True)) for pair in zip(edges["keys"], edges["values"], strict=True)
    ]
    return [[round(row[key], 4) for key in axis] for row in rows]


async def test_a_click_on_the_matrix_chooses_its_row(page: Page) -> None:
    """The token of the row is in focus in columns, equation and lines."""
    await page.run(
        """for (const select of document.querySelectorAll("#looks select")) {
          select.selectedIndex = 0; select.onchange() }"""
    )
    await page.wait(SETTLED)
    await page.click(f"document.querySelector(`{FORM} canvas`)", at=(0.5, 7.5 / 11))

    equation = await page.run(f"return document.querySelector(`{FORM} .equation`).textContent")
    assert equation.startswith("Z_it = 0.60 V_dog")


async def test_the_lines_of_all_tokens_are_the_maps(page: Page, client: httpx.AsyncClient) -> None:
    """One from each token to each, as opaque as its weight is large; next to nothing has none."""
    await page.run(
        """const select = document.querySelectorAll("#looks select")[1];
        select.value = "all"; select.onchange()"""
    )
    await page.wait(SETTLED)
    lines = await page.run(
        f"""const height = document.querySelector(`{FORM} svg`).viewBox.baseVal.height;
        const place = (y) => Math.floor(y.baseVal.value / height * 11);
        return [...document.querySelectorAll(`{FORM} .lines line`)].map((line) =>
          [place(line.y1), place(line.y2), Number(line.getAttribute("stroke-opacity"))])"""
    )
    told = await encode(client, inputs=[DOG], pooled=False, attention={"heads": "L5H11"})
    rows = told["attention"]["maps"]["5"]["11"]

    shares = {(i, j): x for i, row in enumerate(rows) for j, x in enumerate(row) if x > 0.005}
    assert {(i, j): x for i, j, x in lines} == pytest.approx(shares, abs=1e-6)
    assert len(lines) == len(shares) > 2 * 11


async def test_a_scaled_head_moves_the_encoding_as_the_api_says(
    page: Page, client: httpx.AsyncClient
) -> None:
    """The slider at 0 is the gate at 0."""
    await page.run(
        f"""const slider = document.querySelector(`{FORM} input[type=range]`);
        slider.value = 0; slider.onchange()"""
    )
    shown = await page.wait(
        """const text = document.querySelector("[aria-label='Cosine without L5H11']").textContent;
        return text !== "1.0000" && text"""
    )
    gates = [{"layer": 5, "head": 11, "scale": 0.0}]
    plain = (await encode(client, inputs=[DOG]))["pooled"]
    gated = (await encode(client, inputs=[DOG], gates=gates))["pooled"]

    assert abs(float(shown) - sum(a * b for a, b in zip(plain, gated, strict=True))) < 1e-4


async def test_the_pipeline_shows_every_step_of_a_layer(
    page: Page, client: httpx.AsyncClient
) -> None:
    """One step at a time, each with its shape and the API's numbers."""
    await page.click("document.querySelector('#pipeline .bar button')")
    await page.wait("return document.querySelector('#pipeline .steps')")
    told = (await client.post("/v1/explain", json={"text": DOG, "layer": 0})).json()

    for name, shape in told["shapes"].items():
        text = await page.run("return document.querySelector('#pipeline').textContent")
        assert f"Shape {' × '.join(map(str, shape))}." in text, name
        first = told[name][0][0]
        values = first if isinstance(first, list) else told[name][0]
        shown = await page.run(
            """return [...document.querySelectorAll("#pipeline tbody tr:first-child td")].map(
              (cell) => cell.textContent)"""
        )
        assert shown == [f"{value:.4f}" for value in values[: len(shown)]], name
        await page.run(
            """[...document.querySelectorAll("#pipeline button")].find(
              (button) => button.textContent === "Next step").click()"""
        )


async def test_who_dominates_whom_is_the_apis(page: Page, client: httpx.AsyncClient) -> None:
    """How often each token's value is the largest part of another's, and in how many heads."""
    await page.run("document.querySelector('#dominance details').open = true")
    shown = await page.wait(
        """const rows = [...document.querySelectorAll("#dominance tbody tr")].slice(0, 11);
        return rows.length && rows.map((row) => [row.children[2], row.lastChild].map(
          (cell) => parseInt(cell.textContent)))"""
    )
    told = (await encode(client, inputs=[DOG], pooled=False, attention={"form": "dominance"}))[
        "attention"
    ]

    heads = [rows for layer in told["dominance"].values() for rows in layer.values()]
    leaders = [Counter(rows[i]["dominant"] for rows in heads) for i in range(len(told["wins"]))]
    most = [max(each.values()) for each in leaders]
    assert shown == [[*pair] for pair in zip(most, told["wins"], strict=True)]


async def test_several_texts_show_their_cosines(page: Page, client: httpx.AsyncClient) -> None:
    """Each with each."""
    texts = [DOG, "All is well", "The cat sleeps"]
    await page.run("document.querySelector('#texts details').open = true")
    await page.wait("return document.getElementById('several')")
    await page.run(
        f"""document.getElementById("several").value = {json.dumps(chr(10).join(texts))};
        document.querySelector("#texts button").click()"""
    )
    shown = await page.wait(
        """const cells = [...document.querySelectorAll("#texts td")];
        return cells.length === 9 && cells.map((cell) => Number(cell.textContent))"""
    )
    body = {"inputs": texts}
    vectors = [one["pooled"] for one in (await client.post("/v1/encode", json=body)).json()["data"]]

    cosines = [sum(a * b for a, b in zip(u, v, strict=True)) for u in vectors for v in vectors]
    assert shown == pytest.approx(cosines, abs=1e-4)


async def test_what_is_shown_can_be_taken_away(page: Page, tmp_path: Path) -> None:
    """CSV, SVG, PNG, JSON and a page that stands alone."""
    await page.downloads(tmp_path)
    for title in ("PNG of the matrix", "SVG of the lines", "CSV", "JSON", "HTML"):
        await page.run(
            f"""[...document.querySelectorAll("#exports button")].find(
              (button) => button.textContent.startsWith("{title}")).click()"""
        )
    equation = await page.run(f"return document.querySelector(`{FORM} .equation`).textContent")
    figures = {"L5H11-matrix.png", "L5H11-lines.svg"}
    names = {*figures, "L5H11.csv", "headlight.json", "headlight.html"}
    await page.until(lambda: saved(*(tmp_path / name for name in names)))

    lines = (tmp_path / "L5H11.csv").read_text().splitlines()
    assert len(lines) == 12 and lines[8].startswith('"it",0.13')
    png = (tmp_path / "L5H11-matrix.png").read_bytes()
    assert png.startswith(b"\x89PNG") and int.from_bytes(png[16:20]) >= 512, "its width"
    drawn = (tmp_path / "L5H11-lines.svg").read_text()
    assert ">hungry</text>" in drawn and drawn.count("<line") > 2 * 11, "of all tokens, as shown"
    assert json.loads((tmp_path / "headlight.json").read_text())["blocks"]["data"][0]["tokens"]
    alone = (tmp_path / "headlight.html").read_text()
    assert equation in alone and "<script" not in alone and not re.search(r"https?://", alone)
    assert f'<blockquote dir="auto">{DOG}<' in alone and not re.search("<(button|select)", alone)


async def test_the_command_asks_for_the_map_that_is_shown(
    page: Page, client: httpx.AsyncClient
) -> None:
    """It stands on the page where there is no clipboard; what it asks for is the head's map."""
    await page.run(
        """navigator.clipboard.writeText = () => Promise.reject(new Error());
        [...document.querySelectorAll("#exports button")].at(-1).click()"""
    )
    command = shlex.split(
        await page.wait("return document.querySelector('#exports pre').innerText")
    )
    first = (await client.post(command[1], json=json.loads(command[-1]))).json()["data"][0]

    assert command[0] == "curl" and command[2:4] == ["-H", "Content-Type: application/json"]
    assert first["attention"]["maps"]["5"]["11"][7][2] == pytest.approx(0.5993, abs=1e-4)


async def test_the_page_keeps_to_its_policy(page: Page, client: httpx.AsyncClient) -> None:
    """No script or style but its files', no address but the service's; it is small."""
    answer = await client.get("/")
    policy = answer.headers["content-security-policy"]
    parts = re.findall(r'="(/page/[^"]+)"', answer.text)

    assert "default-src 'none'" in policy and "unsafe" not in policy and "http" not in policy
    assert not re.search(r"https?://", answer.text) and len(parts) == 2
    assert await page.complaints() == []


async def test_the_page_is_used_with_the_keyboard_alone(browser: Page, address: str) -> None:
    """Write, show, walk to a head with the arrows, open it, and look at another token."""
    await fresh(browser, address)
    await browser.run("document.getElementById('text').focus()")
    await browser.press("All is well", KEYS["tab"], KEYS["tab"], KEYS["tab"], KEYS["enter"])
    await browser.wait(SHOWN)

    await browser.run("document.querySelector('[role=gridcell][tabindex=\"0\"]').focus()")
    await browser.press(*[KEYS["right"]] * 5, KEYS["enter"])
    equation = await browser.wait(
        "return document.querySelector(`[aria-label='Head L0H5'] .equation`)?.textContent"
    )
    assert equation.startswith("Z_well = 0.62 V_All"), "the word that has most of another"
    await browser.run(
        """[...document.querySelectorAll("[aria-label='Head L0H5'] .lines button")][3].focus()"""
    )
    await browser.press(KEYS["down"])
    focused = "return document.activeElement.textContent"
    assert await browser.run(focused) == "[SEP]", "the keyboard keeps its place"
    await browser.press(*[KEYS["tab"]] * 2)
    assert await browser.run("return !document.activeElement.closest('.lines')"), "one tab stop"


async def test_a_control_that_redraws_a_view_keeps_the_focus(page: Page) -> None:
    """The next step, and the step after it, are one key each."""
    await page.run("document.querySelector('#pipeline select').onchange()")
    next_step = """[...document.querySelectorAll('#pipeline button')].find(
      (button) => button.textContent === 'Next step')"""
    await page.wait(f"return {next_step}")
    await page.run("""document.querySelector("#pipeline .steps button").click()""")
    await page.run(f"{next_step}.focus()")
    await page.press(KEYS["enter"], KEYS["enter"])
    step = "return document.querySelector('#pipeline [aria-current]').textContent"
    assert await page.run(step) == "K"


@pytest.mark.prove
async def test_the_pipeline_takes_a_pair(
    browser: Page, address: str, client: httpx.AsyncClient
) -> None:
    """Both texts' tokens go through the layer together."""
    await fresh(browser, address, "#text=All+is+well&other=Well+done&together=pair")
    await browser.click("document.querySelector('button[type=submit]')")
    await browser.wait(SHOWN)
    await browser.click("document.querySelector('#pipeline .bar button')")
    await browser.wait("return document.querySelector('#pipeline tbody')")
    shown = await browser.run(
        """return [...document.querySelectorAll("#pipeline tbody tr")].map(
          ({ cells }) => cells[1].textContent)"""
    )
    body = {"text": "All is well", "pair": "Well done", "layer": 0}
    told = (await client.post("/v1/explain", json=body)).json()

    assert shown == [f"{row[0]:.4f}" for row in told["x"]] and len(shown) == 8


async def test_why_two_texts_are_alike_is_the_apis(
    browser: Page, address: str, client: httpx.AsyncClient
) -> None:
    """The score, every pair of words, what each word adds, and the pairs in order."""
    left, right = "unbelievable dogs bark", "A dog barks unbelievably"
    await ask(browser, address, left, right)
    told = (
        await client.post("/v1/similarity", json={"left": left, "right": [right], "level": "word"})
    ).json()["right"][0]
    score = await browser.wait(f"return {labelled('Similarity')}?.textContent")
    tables = """return [...document.querySelectorAll("#alike tbody")].map(({ rows }) =>
      [...rows].map(({ cells }) => [...cells].map((cell) => cell.textContent)))"""
    cells, pairs = await browser.run(tables)

    assert score == f"{told['score']:.4f}"
    assert [row[1:] for row in cells] == [[f"{x:.4f}" for x in row] for row in told["matrix"]]
    assert [row[0] for row in cells] == ["[CLS]", "unbelievable", "dogs", "bark", "[SEP]"]
    strongest = max((x, i, j) for i, row in enumerate(told["matrix"]) for j, x in enumerate(row))
    assert pairs[0][1] == f"{strongest[0]:.4f}"
    assert pairs[0][0].startswith(cells[strongest[1]][0])

    by = {"left": left, "right": [right], "level": "word", "by": "input"}
    told = (await client.post("/v1/similarity", json=by)).json()["right"][0]
    await browser.run(
        """const select = document.querySelector("#alike select");
        select.value = "input"; select.onchange()"""
    )
    await browser.wait(COMPARED)
    cells, _ = await browser.run(tables)
    assert [row[1:] for row in cells] == [[f"{x:.4f}" for x in row] for row in told["matrix"]]
    assert "told of the last layer alone" in await browser.run(
        "return document.getElementById('alike').innerText"
    ), "heads carry no pair of these"
    assert not await browser.run("return document.querySelector('#alike td button')")
    assert "by=input" in await browser.run("return location.hash")

    by = {"left": left, "right": [right], "by": "head"}
    told = (await client.post("/v1/similarity", json=by)).json()["right"][0]
    heads = f"{labelled('Which heads make them alike?')}.querySelectorAll('button')"
    await browser.click(f"{heads}[1]")
    shares = await ranked(browser)
    of_each = [w for layer in told["worth"] for w in layer]
    assert sorted(shares.values(), reverse=True) == [*shares.values()]
    assert [shares[f"L{i // 12}H{i % 12}"] for i in range(72)] == [round(w, 4) for w in of_each]
    await browser.click(f"{heads}[0]")
    await browser.wait("return document.querySelector('#overview select').value === 'score'")
    first = await browser.run("return document.querySelector('[role=gridcell]').title")
    assert re.search(r"patterns kept -?0\.\d{4}; .*removing it 0\.\d{4}\.$", first), "both"


@pytest.mark.prove
async def test_a_score_that_is_no_sum_of_words_stands_alone(
    browser: Page, address: str, replica: Replica
) -> None:
    """With the service's reason in place of the matrix; words as they go in have one."""
    with pooled_by(replica, "cls"):
        await ask(browser, address, "All is well", "Well done")
        shown = await browser.run("return document.getElementById('alike').textContent")
        assert re.match(r"Why alike0\.\d{4}cosine", shown) and 'pooling "cls"' in shown
        await browser.run(
            """const select = document.querySelector("#alike select");
            select.value = "input"; select.onchange()"""
        )
        await browser.wait(COMPARED)
        assert await browser.run("return document.querySelectorAll('#alike table').length") == 2


@pytest.mark.prove
async def test_a_pair_of_words_leads_to_the_heads_that_carry_it(
    browser: Page, address: str, client: httpx.AsyncClient
) -> None:
    """They stand in the order of what the pair loses without each."""
    left, right = "All is well", "Well done"
    await ask(browser, address, left, right)
    pair = await browser.run("return document.querySelector('#alike td button').ariaLabel")
    await browser.click("document.querySelector('#alike td button')")
    await browser.wait(SORTED)
    first = await browser.run("return document.querySelector('[role=gridcell]').dataset.head")
    said = await browser.run("return document.querySelector('[role=gridcell]').title")

    layer, head = map(int, first[1:].split("H"))
    body = {"left": left, "right": [right], "level": "word"}
    gates = [{"layer": layer, "head": head, "scale": 0}]
    whole, without = [
        (await client.post("/v1/similarity", json=body | more)).json()["right"][0]["matrix"]
        for more in ({}, {"gates": gates})
    ]
    names = [["[CLS]", "All", "is", "well", "[SEP]"], ["[CLS]", "Well", "done", "[SEP]"]]
    i, j = (
        axis.index(name)
        for axis, name in zip(names, re.findall(r"carry (.*) and (.*)\?", pair)[0], strict=True)
    )
    assert said.endswith(f" {whole[i][j] - without[i][j]:.4f}.")
    assert await browser.run(f"return !!{labelled(f'Head {first}')}")


@pytest.mark.prove
async def test_what_each_head_is_worth_is_the_apis(
    browser: Page, address: str, client: httpx.AsyncClient
) -> None:
    """How far the encoding moves without each, in order; the page asks once."""
    await ask(browser, address, DOG)
    await browser.run("performance.clearResourceTimings()")
    await browser.run(
        """[...document.querySelectorAll("#overview button")].find(
          (button) => button.textContent === "What each head is worth").click()"""
    )
    worth = await ranked(browser)
    requests = await browser.run("return performance.getEntriesByType('resource').length")

    plain = (await encode(client, inputs=[DOG]))["pooled"]
    gates = [{"layer": 5, "head": 11, "scale": 0.0}]
    gated = (await encode(client, inputs=[DOG], gates=gates))["pooled"]
    moved = 1 - sum(a * b for a, b in zip(plain, gated, strict=True))
    assert abs(worth["L5H11"] - moved) < 1e-4
    assert list(worth.values()) == sorted(worth.values(), reverse=True) and requests == 1


@pytest.mark.prove
async def test_a_score_leads_to_the_heads_that_carry_it(
    browser: Page, address: str, client: httpx.AsyncClient
) -> None:
    """They stand in the order of what the score loses without each; the page asks once."""
    left, right = "All is well", "Well done"
    await ask(browser, address, left, right)
    await browser.run("performance.clearResourceTimings()")
    await browser.click("document.querySelector('#alike .bar button')")
    worth = await ranked(browser)
    requests = await browser.run("return performance.getEntriesByType('resource').length")

    body: dict[str, Any] = {"left": left, "right": [right], "form": "score"}
    gates = [{"layer": 5, "head": 11, "scale": 0.0}]
    whole, without = [
        (await client.post("/v1/similarity", json=body | more)).json()["right"][0]["score"]
        for more in ({}, {"gates": gates})
    ]
    assert abs(worth["L5H11"] - (whole - without)) < 1e-4
    assert list(worth.values()) == sorted(worth.values(), reverse=True) and requests == 1


async def test_a_change_of_theme_repaints_the_maps_and_nothing_else(
    browser: Page, address: str
) -> None:
    """A found order stays, as do all cells; nothing is asked again."""
    await ask(browser, address, "well")
    await browser.run(
        """[...document.querySelectorAll("#overview button")].find(
          (button) => button.textContent === "What each head is worth").click()"""
    )
    worth = await ranked(browser)
    await browser.run(f"{CELL}.click()")
    await browser.wait("return document.querySelector('.head')?.ariaBusy === 'false'")
    canvases = "[...document.querySelectorAll('canvas')].map((one) => one.toDataURL())"
    light = await browser.run(f"return window.light = {canvases}")
    await browser.run(f"window.cell = {CELL}; performance.clearResourceTimings()")

    async with browser.theme("dark"):
        await browser.wait(f"return {canvases}[0] !== window.light[0]")
        dark = await browser.run(f"return {canvases}")

    assert len(dark) == len(light) == 73 and not {*dark} & {*light}
    assert await browser.run(f"return {CELL} === window.cell")
    assert await ranked(browser) == worth
    assert await browser.run("return performance.getEntriesByType('resource').length") == 0


async def ranked(browser: Page) -> dict[str, float]:
    """The heads in the order of a number, with the number that each shows."""
    await browser.wait(SORTED)
    cells = await browser.run(
        """return [...document.querySelectorAll("[role=gridcell]")].map(
          (cell) => [cell.dataset.head, Number(cell.querySelector(".badge").textContent)])"""
    )
    return dict(cells)


@pytest.mark.prove
async def test_a_reranker_orders_texts_by_a_query(browser: Page, tmp_path: Path) -> None:
    """Where the checkpoint has that head; the scores are the API's."""
    checkpoint(tmp_path, head="ForSequenceClassification", num_labels=1)
    settings = Settings(model=str(tmp_path), device="cpu", threads=1)
    ranker = await Replica.start(settings, "ranker-1")
    texts = ["All is well", "A dog ate the food"]
    try:
        async with listening(application(ranker)) as url, httpx.AsyncClient(base_url=url) as client:
            await fresh(browser, url)
            await browser.wait("return document.querySelector('#texts details')")
            await browser.run("document.querySelector('#texts details').open = true")
            await browser.wait("return document.getElementById('query')")
            await browser.run(
                f"""document.getElementById("query").value = "Why is the dog here?";
                document.getElementById("several").value = {json.dumps(chr(10).join(texts))};
                document.querySelectorAll("#texts button")[1].click()"""
            )
            shown = await browser.wait(
                """const rows = [...document.querySelectorAll("#texts tbody tr")];
                const texts = ({ cells }) => [...cells].map((cell) => cell.textContent);
                return rows.length && rows.map(texts)"""
            )
            body = {"query": "Why is the dog here?", "documents": texts}
            ranks = (await client.post("/v1/rerank", json=body)).json()["results"]
            await browser.open("about:blank")
    finally:
        await ranker.close()

    assert shown == [[texts[one["index"]], f"{one['relevance_score']:.4f}"] for one in ranks]


async def test_markup_and_odd_characters_are_shown_as_text(browser: Page, address: str) -> None:
    """Nothing that people type becomes part of the page."""
    hostile = "<img src=x onerror=document.title='taken'> \u202egnp.exe</bdi><script>1</script>"
    await ask(browser, address, hostile, hostile)
    await browser.run(f"{labelled('L0H0')}.click()")
    await browser.wait("return document.querySelector(`[aria-label='Head L0H0'] table`)")

    assert (
        await browser.run("return document.querySelectorAll('main img, main script').length") == 0
    )
    assert await browser.run("return document.title") == "Headlight: what every head attends to"
    assert [line for line in await browser.complaints() if "422" not in line] == []


@pytest.mark.prove
async def test_a_text_that_is_too_long_is_refused_in_words(browser: Page, address: str) -> None:
    """What the service says stands on the page."""
    await fresh(browser, address)
    await browser.run(
        """document.getElementById("text").value = "word ".repeat(10000);
        document.querySelector("button[type=submit]").click()"""
    )

    said = await browser.wait("return document.querySelector('#status.bad')?.textContent")
    assert "10002" in said.replace(",", "") and "256" in said


@pytest.mark.prove
async def test_a_head_whose_map_does_not_come_shows_nothing_of_another(
    browser: Page, address: str
) -> None:
    """The small map stays, and the page says why; with an answer all is there again."""
    await ask(browser, address, "All is well")
    await browser.run(f"{labelled('L0H0')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")
    await browser.run("window.kept = fetch; window.fetch = () => Promise.reject(new TypeError())")
    await browser.run(f"{labelled('L0H1')}.click()")
    await browser.wait(FAILED)
    shown = "return document.querySelector('.head').innerText"
    said = await browser.run(shown)
    assert "Z_" not in said and "could not be loaded" in said

    await browser.run(f"window.fetch = window.kept; {labelled('L0H2')}.click()")
    await browser.wait("return document.querySelector('.head').innerText.includes('Z_')")


@pytest.mark.prove
async def test_a_head_that_is_left_at_once_leaves_no_table_to_fill(
    browser: Page, address: str
) -> None:
    """A browser tells that a table is open only later; by then another head's map is loading."""
    await ask(browser, address, "All is well")
    for name in ("L0H0", "L0H1"):
        await browser.run(f"{labelled(name)}.click()")
        await browser.wait("return document.querySelector('.head .equation')?.checkVisibility()")

    await browser.run(f"{labelled('L0H0')}.click(); {labelled('L0H2')}.click()")
    await browser.wait("return document.querySelector('.head tbody')?.checkVisibility()")

    assert await browser.complaints() == []


async def test_opening_a_permalink_sends_no_text(browser: Page, address: str) -> None:
    """It fills the boxes, and waits until the reader agrees."""
    await fresh(browser, address, "#text=A+secret+text&heads=L5H11&level=word")
    await browser.wait("return document.getElementById('text').value === 'A secret text'")

    asked = "return performance.getEntriesByType('resource').map(({ name }) => name)"
    await browser.wait("return document.getElementById('model').textContent.includes('6 layers')")
    assert not [name for name in await browser.run(asked) if "/v1/" in name]

    await browser.click("document.querySelector('button[type=submit]')")
    await browser.wait("return document.querySelector(`[aria-label='Head L5H11'] table`)")
    assert all(name.startswith(f"{address}/") for name in await browser.run(asked))


@pytest.mark.prove
async def test_a_permalink_that_is_pasted_into_an_open_page_is_followed(
    browser: Page, address: str
) -> None:
    """As if it were opened: the boxes hold its texts, nothing of another's is shown or sent."""
    await ask(browser, address, "All is well")
    await browser.run(f"{labelled('L0H0')}.click()")
    await browser.wait("return document.querySelector('.head .equation')")
    await browser.run("document.querySelector('.lines button').click()")
    first = await browser.run("return location.hash")
    await browser.run("performance.clearResourceTimings()")
    await browser.open(
        f"{address}/#text=A+dog&other=A+cat&together=pair&heads=L5H11,L0H2&specials=drop"
    )
    await browser.wait("return document.getElementById('text').value === 'A dog'")
    assert await browser.run("return document.getElementById('views').hidden")
    assert await browser.run("return performance.getEntriesByType('resource').length") == 0
    boxes = "return [document.getElementById('other').value, {}]".format(
        "document.querySelector('input[name=together]:checked').value"
    )
    assert await browser.run(boxes) == ["A cat", "pair"]

    await browser.click("document.querySelector('button[type=submit]')")
    await browser.wait(f"return document.querySelector(`{FORM} table`)")
    heads = "return [...document.querySelectorAll('.head h2')].map((one) => one.textContent)"
    assert await browser.run(heads) == ["L5H11", "L0H2"]
    await browser.wait("return document.querySelectorAll('.head .equation').length === 2")
    said = "return document.querySelector('.head .equation').textContent"
    assert not (await browser.run(said)).startswith("Z_A "), "the token that was of another text"
    assert "specials=drop" in await browser.run("return location.hash")

    await browser.run("history.back()")
    await browser.wait("return document.getElementById('text').value === 'All is well'")
    assert await browser.run("return location.hash") == first
    assert await browser.run("return document.getElementById('other').value") == ""

    await browser.click("document.querySelector('button[type=submit]')")
    await browser.wait("return !document.getElementById('views').hidden")
    await browser.run("location.hash = ''")
    await browser.wait("return document.getElementById('text').value === ''")
    assert await browser.run("return document.getElementById('views').hidden")
    assert await browser.run("return document.getElementById('status').textContent") == ""
    assert await browser.run("return document.querySelectorAll('.head').length") == 0


@pytest.mark.prove
async def test_an_answer_to_what_was_asked_before_a_permalink_is_not_drawn(
    browser: Page, address: str
) -> None:
    """The reader has gone on."""
    await fresh(browser, address)
    await browser.run(
        """window.waiting = 0;
        const inner = fetch;
        window.fetch = async (...all) => {
          window.waiting++;
          await new Promise((done) => (window.release = [...(window.release ?? []), done]));
          try { return await inner(...all); } finally { window.waiting--; }
        };
        document.getElementById("text").value = "All is well";
        document.querySelector("button[type=submit]").click();"""
    )
    await browser.wait("return window.waiting > 1")
    await browser.open(f"{address}/#text=A+dog")
    await browser.wait("return document.getElementById('text').value === 'A dog'")
    await browser.run("for (const done of window.release) done()")
    await browser.wait("return !window.waiting")

    assert await browser.run("return document.getElementById('views').hidden")
    assert "Press Show" in await browser.run("return document.getElementById('status').textContent")


async def test_a_service_with_keys_asks_for_one(browser: Page, replica: Replica) -> None:
    """The page is public, its calls are not; the key stays in memory."""
    keyed = under(replica, api_keys=keys.parse_keys("a-key-of-a-reader"))
    async with listening(application(keyed)) as url:
        await browser.open(f"{url}/")
        await browser.wait("return !document.getElementById('keys').hidden")
        await browser.run(
            """document.getElementById("key").value = "a-key-of-a-reader";
            document.getElementById("text").value = "All is well";
            document.querySelector("button[type=submit]").click()"""
        )
        await browser.wait(SHOWN)
        stored = "return JSON.stringify([{...localStorage}, {...sessionStorage}, document.cookie])"
        assert await browser.run(stored) == '[{},{},""]'
        await browser.open("about:blank")
    await browser.complaints()  # of the 401 that made it ask


@pytest.mark.prove
async def test_axe_finds_no_violation(browser: Page, address: str) -> None:
    """Names, roles, contrast, order: Deque's rules, all of them, with every view open."""
    await everything(browser, address)
    await browser.run(AXE.read_text())
    await browser.run(
        "axe.run({ resultTypes: ['violations'] }).then((found) => (window.found = found))"
    )

    found = await browser.wait("return window.found")
    assert [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]] == []
    assert len(found["passes"]) > 20


@pytest.mark.prove
async def test_a_magnified_page_is_cut_nowhere(browser: Page, address: str) -> None:
    """WCAG 1.4.4 and 1.4.10, in a window of 1280 pixels: tables scroll, the page does not."""
    await everything(browser, address)
    wide = {}
    for zoom in (2, 4):
        await browser.resize(1280 // zoom, 512, zoom)
        wide[zoom] = await browser.run(WIDE)
    await browser.resize(0, 0)

    assert wide == {2: [], 4: []}


async def everything(browser: Page, address: str) -> None:
    """Open the page anew, with two texts and every view."""
    await ask(browser, address, "All is well", "Well done")
    await browser.run(f"{labelled('L5H11')}.click()")
    await browser.wait(f"return document.querySelector(`{FORM} table`)")
    await browser.run(
        """for (const details of document.querySelectorAll("details")) details.open = true;
        for (const name of ["#pipeline .bar button", ".why button", "#alike [role=group] button"])
          document.querySelector(name).click()"""
    )
    await browser.wait("return document.querySelector('#pipeline table')")
    await browser.wait("return document.querySelector('#dominance table')")
    await browser.wait("return document.querySelector('.why table')")
    await browser.wait(SORTED)


@pytest.mark.prove
async def test_a_long_text_in_a_large_model_is_drawn_at_once(browser: Page, tmp_path: Path) -> None:
    """512 tokens, 12 layers of 12 heads: the overview, another head, and what it all holds."""
    tokenizer = AutoTokenizer.from_pretrained(locate_model(BUNDLED_MODEL).folder)
    sizes = {"hidden_size": 192, "num_hidden_layers": 12, "num_attention_heads": 12}
    config = BertConfig(vocab_size=len(tokenizer), intermediate_size=384, **sizes)
    BertModel(config).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    settings = Settings(model=str(tmp_path), device="cpu", threads=1)
    large = await Replica.start(settings, "replica-1")
    try:
        async with listening(application(large)) as url:
            await browser.open("about:blank")
            await browser.open(f"{url}/")
            await browser.run(WATCH_OVERVIEW)
            await browser.wait("return window.drawn")
            drawn = await browser.run(
                """const answers = performance.getEntriesByType("resource");
                return window.drawn - Math.max(...answers.map((one) => one.responseEnd))"""
            )
            await browser.run(WATCH_CLICKS)
            names = [f"L5H{head}" for head in range(12)]
            fetched, kept = [[await switched(browser, name) for name in names] for _ in range(2)]
            await browser.wait("return document.querySelector('.head').ariaBusy === 'false'")
            heap = await browser.heap()
            await browser.open("about:blank")
    finally:
        await large.close()

    first, fetched = fetched[0], fetched[1:]
    print(f"overview {drawn:.0f} ms, {heap / 2**20:.0f} MiB, the first head {first} ms")
    print(f"another head: map not yet fetched {sorted(fetched)} ms, kept {sorted(kept)} ms")
    assert drawn < 500 and heap < 100 * 2**20
    assert max(median(fetched), median(kept)) <= 50


async def switched(browser: Page, name: str) -> int:
    """Milliseconds from a click on a head to the next frame that the browser presents."""
    await browser.run("window.clicks.length = 0")
    await browser.click(labelled(name))
    await browser.wait("return document.querySelector('.head').ariaBusy === 'false'")
    return int(await browser.wait("return window.clicks[0]"))


WATCH_OVERVIEW = """
new MutationObserver(() => {
  if (document.querySelectorAll("[role=gridcell]").length === 144 && !window.drawn)
    requestAnimationFrame(() => setTimeout(() => (window.drawn = performance.now())));
}).observe(document.getElementById("overview"), { childList: true });
document.getElementById("text").value = "dog ".repeat(510);
document.querySelector("button[type=submit]").click();
"""
# Event Timing: each click's time until the next frame is presented, to 8 ms
WATCH_CLICKS = """
window.clicks = [];
new PerformanceObserver((list) => {
  for (const one of list.getEntries()) if (one.name === "click") window.clicks.push(one.duration);
}).observe({ type: "event", durationThreshold: 16 });
"""
