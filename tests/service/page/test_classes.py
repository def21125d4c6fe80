"""The page of a model that scores or classifies: what it says of a text, and on which words."""

import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.conftest import application, listening
from tests.service.page.browser import NEEDED, SHOWN, WIDE, Page, fresh
from tests.service.page.test_evidence import violations
from tests.task_heads import checkpoint

pytestmark = NEEDED

QUERY, DOCUMENT = "Why did the dog eat the food?", "A dog ate the food because it was hungry"
READY = f"{SHOWN} && document.getElementById('classes').ariaBusy === 'false'"
TOLD = """const section = document.getElementById("classes");
return [section.querySelector("h2").textContent, section.querySelector(".score").textContent,
  section.querySelector(".equation").textContent.replaceAll("\\u2212", "-")]"""
WORDS = """return [...document.querySelectorAll("#classes dd")].map((part) =>
  [part.textContent, [...part.children].map((word) => [word.textContent, word.title])])"""
SEEN = """const shown = (one) => one && one.offsetParent !== null;
const compare = document.querySelector("[value=compare]");
return [shown(document.getElementById("alike")), shown(compare)]"""


@asynccontextmanager
async def serving(folder: Path, **choices: Any) -> AsyncIterator[str]:
    """A small model with a head behind real HTTP; the address."""
    checkpoint(folder, "ForSequenceClassification", **choices)
    replica = await Replica.start(Settings(model=str(folder), threads=1), "replica-1")
    async with listening(application(replica)) as url:
        yield url
    await replica.close()


async def told(address: str, item: Any) -> dict[str, Any]:
    """What the API says of the same."""
    body = {"inputs": [item], "pooled": False, "classify": True, "reason": {"level": "word"}}
    async with httpx.AsyncClient(base_url=address) as client:
        answer = await client.post("/v1/encode", json=body)
    one: dict[str, Any] = answer.raise_for_status().json()["data"][0]
    return one


def check_words(shown: list[Any], reason: dict[str, Any], texts: list[str]) -> None:
    """Hold the words in their places to the API's shares."""
    assert [whole for whole, _ in shown] == texts
    for segment, (_, words) in enumerate(shown):
        units = [unit for unit in reason["units"] if unit["segment"] == segment]
        assert words == [[unit["text"], f"{unit['share']:.4f}"] for unit in units]


def read_terms(equation: str) -> tuple[float, list[float]]:
    """The sum of an equation, and its terms."""
    total, _, terms = equation.partition(" = ")
    numbers = re.findall(r"(-?) ?(\d+\.\d{4})", terms)
    return float(total), [float(sign + number) for sign, number in numbers]


async def test_a_reranker_opens_with_its_score(browser: Page, tmp_path: Path) -> None:
    """Of a query and a document, as the API has it; and with no cosine of vectors it lacks."""
    async with serving(tmp_path, num_labels=1) as address:
        await fresh(browser, address)
        await browser.wait(READY)
        api = await told(address, {"text": QUERY, "pair": DOCUMENT})
        title, score, equation = await browser.run(TOLD)
        words, seen = await browser.run(WORDS), await browser.run(SEEN)
        found = await violations(browser)
        await browser.resize(320, 800)
        wide = await browser.run(WIDE)
        await browser.resize(0, 0)
        complaints = await browser.complaints()
        await browser.open("about:blank")

    assert (title, score) == ("Score", f"{api['classes'][0]['score']:.4f}")
    check_words(words, api["reason"], [QUERY, DOCUMENT])
    total, terms = read_terms(equation)
    assert total == pytest.approx(api["reason"]["logit"], abs=1e-4)
    assert sum(terms) == pytest.approx(total, abs=3e-4) and len(terms) == 4
    assert seen == [False, False], "vectors are not compared"
    assert not found and not wide and complaints == []


async def test_a_classifier_opens_with_its_classes(browser: Page, tmp_path: Path) -> None:
    """All of them with their scores, and what speaks for the first against the second."""
    names = {0: "joy", 1: "anger", 2: "fear"}
    async with serving(tmp_path, id2label=names) as address:
        await fresh(browser, address)
        await browser.wait(READY)
        api = await told(address, DOCUMENT)
        title, first, equation = await browser.run(TOLD)
        words, seen = await browser.run(WORDS), await browser.run(SEEN)
        rows = await browser.run(
            """const rows = [...document.querySelectorAll("#classes .options tbody tr")];
            return rows.map(({ cells }) => [...cells].slice(0, 3).map((c) => c.textContent))"""
        )
        await browser.open("about:blank")

    assert rows == [
        [one["label"], f"{one['score']:.4f}", f"{one['logit']:.4f}"] for one in api["classes"]
    ]
    best = max(api["classes"], key=lambda one: one["logit"])
    assert (title, first) == ("Classes", best["label"])
    check_words(words, api["reason"], [DOCUMENT])
    assert read_terms(equation)[0] == pytest.approx(api["reason"]["margin"], abs=1e-4)
    assert seen == [False, False], "vectors are not compared"


async def test_a_score_whose_reason_is_refused_stands_alone(browser: Page, tmp_path: Path) -> None:
    """With the service's words in place of the shares."""
    refused = """const real = window.fetch;
    window.fetch = (path, how) => how?.body?.includes('"reason"')
      ? Promise.resolve(new Response('{"detail": "no reason here", "code": "x"}', { status: 422 }))
      : real(path, how)"""
    async with serving(tmp_path, num_labels=1) as address, browser.before(refused):
        await fresh(browser, address)
        await browser.wait(READY)
        shown = await browser.run("return document.getElementById('classes').textContent")
        await browser.open("about:blank")

    assert re.match(r"Score0\.\d{4}score of the document for the query", shown)
    assert "no reason here" in shown
