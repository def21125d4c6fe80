"""Why a head looks where it does, as GET / shows it: the parts that a row's scores are made of."""

import csv
import json
import shlex
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import httpx
import numpy as np

from tests.service.page.browser import NEEDED, Page, ask, labelled, saved

pytestmark = NEEDED

DOG = "A dog ate the food because it was hungry"
TOKENS = ["[CLS]", *DOG.split(), "[SEP]"]
PARTS = ("word", "position", "rest")
SHOWN = """return [...document.querySelectorAll(".why table")].map(({ rows }) =>
  [...rows].slice(1).map(({ cells }) => [...cells].map((cell) => cell.textContent)))"""


async def shown(browser: Page, head: str) -> list[list[list[str]]]:
    """Open a head, ask why the token in focus looks where it does, and read both tables."""
    await browser.run(f"{labelled(head)}.click()")
    await browser.wait(
        f"""return {labelled(f"Head {head}")}?.ariaBusy === 'false'
          && document.querySelector('.why > button')"""
    )
    await browser.run("document.querySelector('.why > button').click()")
    await browser.wait("return document.querySelector('.why details')")
    await browser.run("document.querySelector('.why details').open = true")
    await browser.wait("return document.querySelectorAll('.why table').length === 2")
    tables: list[list[list[str]]] = await browser.run(SHOWN)
    return tables


async def told(client: httpx.AsyncClient, head: str, word: str) -> dict[str, Any]:
    """What the API says of a word's row."""
    attention = {"form": "why", "heads": head, "rows": [TOKENS.index(word)]}
    body = {"inputs": [DOG], "pooled": False, "attention": attention}
    why = (await client.post("/v1/encode", json=body)).json()["data"][0]["attention"]["why"]
    layer, number = head[1:].split("H")
    made: dict[str, Any] = why[layer][number]
    return made


async def test_why_a_head_looks_there_is_the_apis(
    browser: Page, address: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """In layer 0 by pairs of parts, above it by the input's tokens; and so in what is saved."""
    await ask(browser, address, DOG)
    for head, names in (
        ("L0H2", [f"{query}→{key}" for query in PARTS for key in PARTS]),
        ("L5H11", [*TOKENS, "biases"]),
    ):
        strongest, parts = await shown(browser, head)
        word = await browser.run("return document.querySelector('.why h3 bdi').textContent")
        made = await told(client, head, word)
        of_parts = np.array(made["rows"][0]["scores"])
        of_parts = of_parts.reshape(len(names), len(TOKENS))
        scores = of_parts.sum(0)
        order = np.argsort(-scores)[:5]
        assert parts == [
            [name, *(f"{score:.4f}" for score in row)]
            for name, row in zip(names, of_parts, strict=True)
        ]
        assert [row[:2] for row in strongest] == [[TOKENS[i], f"{scores[i]:.1f}"] for i in order]
        most = np.abs(of_parts[:, order[0]]).argmax()
        assert strongest[0][2].startswith(f"{of_parts[most, order[0]]:.1f} {names[most]}, ")
        share = np.array(made["share"]).reshape(-1)
        said = await browser.run("return document.querySelector('.why .note').textContent")
        assert f"goes with {names[share.argmax()]} by {100 * share.max():.0f} %" in said

    await browser.downloads(tmp_path)
    files = [tmp_path / f"L5H11-why.{kind}" for kind in ("png", "svg", "csv")]
    await browser.run(
        """navigator.clipboard.writeText = () => Promise.reject(new Error());
        for (const button of document.querySelectorAll(".why .bar button")) button.click()"""
    )
    await browser.until(lambda: saved(*files))
    png, svg, table = (file.read_bytes() for file in files)
    texts = [
        one.text for one in ElementTree.fromstring(svg).iter("{http://www.w3.org/2000/svg}text")
    ]
    assert png.startswith(b"\x89PNG") and {"biases", "dog", "parts", "keys"} <= {*texts}
    (_, *keys), *rows = csv.reader(table.decode().splitlines())
    assert keys == TOKENS and [row[0] for row in rows] == names
    np.testing.assert_allclose(np.array([row[1:] for row in rows], float), of_parts, atol=1e-6)
    command = shlex.split(await browser.run("return document.querySelector('.why pre').innerText"))
    answer = (await client.post(command[1], json=json.loads(command[-1]))).json()["data"][0]
    assert answer["attention"]["why"]["5"]["11"] == made

    await browser.run("document.querySelectorAll('.head .lines button')[2].click()")
    offered = "return document.querySelector('.why').textContent"
    assert await browser.run(offered) == "Why does 'dog' look there?", "no longer of that row"
