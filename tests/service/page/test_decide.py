"""The page's view of a question: how likely each option is, on which words that rests, and why."""

import json
import shlex
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import numpy as np
import pytest
import pytest_asyncio

from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.conftest import application, listening
from tests.laya_models import make_laya
from tests.service.page.browser import KEYS, NEEDED, SAID, WIDE, Page, fresh, taken
from tests.service.page.test_evidence import violations
from tests.task_heads import checkpoint

pytestmark = NEEDED

STATE = "The parcel is late, \U0001f415\nand the customer is angry.\n\n  Answer him today!"
CHOICE = {
    "text": STATE,
    "other": "Which team answers it?",
    "together": "decide",
    "kind": "choice",
    "options": "refund: money back\n\nparcel\nlevel: how urgent, or: not",
}
OPTIONS = {"refund": "money back", "parcel": None, "level": "how urgent, or: not"}
DECIDED = "return document.querySelector('#decide table, #decide .bad')"
REFUSED = "return document.querySelector('output.bad')"
BARS = """return [...document.querySelectorAll(".options tbody tr")].map(({ cells }) => [
  cells[0].textContent, cells[1].textContent, parseFloat(cells[2].firstChild.style.width)])"""
HEAD = "return document.querySelector('#decide .bar').textContent"
SUM = "return document.querySelector('#decide .equation').textContent"
# Each part's title, and its words with their numbers and how much redder than blue each is
PARTS = """return [...document.querySelectorAll("#decide dt")].map((title) => [
  title.textContent, title.nextSibling.textContent,
  [...title.nextSibling.children].map((word) => {
    const [red, , blue] = getComputedStyle(word).backgroundColor.match(/\\d+/g).map(Number);
    return [word.textContent, word.title, red - blue];
  })])"""
LOOKED = """return [...document.querySelectorAll("#decide h3 ~ div > p.words > span")].map(
  (word) => word.title)"""
ROWS = """const rows = [...document.querySelectorAll("#decide details:last-of-type tbody tr")];
return rows.length && rows.map(({ cells }) => [...cells].map((cell) => cell.textContent))"""


@pytest_asyncio.fixture(scope="module")
async def decider(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[str]:
    """Where a small decision model of random weights answers over real HTTP."""
    folder = make_laya(tmp_path_factory.mktemp("laya") / "model")
    async with serving(folder) as url:
        yield url


@pytest_asyncio.fixture
async def entailing(tmp_path: Path) -> AsyncIterator[str]:
    """Where a small model of entailment answers."""
    classes = {"contradiction": 0, "neutral": 1, "entailment": 2}
    names = {"label2id": classes, "id2label": {place: name for name, place in classes.items()}}
    checkpoint(tmp_path, "ForSequenceClassification", **names)
    async with serving(tmp_path) as url:
        yield url


@asynccontextmanager
async def serving(folder: Path) -> AsyncIterator[str]:
    """A model behind real HTTP; the address."""
    replica = await Replica.start(Settings(model=str(folder), threads=1), "replica-1")
    async with listening(application(replica)) as url:
        yield url
    await replica.close()


async def decide(browser: Page, address: str, fields: dict[str, str]) -> None:
    """Open a link to a question, and press Show."""
    await fresh(browser, address, f"#{urlencode(fields)}")
    await browser.run("document.querySelector('button[type=submit]').click()")
    await browser.wait("return document.getElementById('decide').ariaBusy === 'false'")


async def told(
    address: str, kind: str = "choice", criteria: Any = OPTIONS, **more: Any
) -> dict[str, Any]:
    """What the API says of the same."""
    question = {"type": kind, "instructions": CHOICE["other"], "criteria": criteria}
    reason = {"method": "input", "level": "word"}
    body = {"state": STATE, "questions": {"asked": question}, "reason": reason, **more}
    async with httpx.AsyncClient(base_url=address) as client:
        answer = await client.post("/v1/systemone", json=body)
    one: dict[str, Any] = answer.raise_for_status().json()["answers"]["asked"]
    return one


def called(names: dict[str, str], part: dict[str, Any]) -> str:
    """What the page calls a part of the sequence."""
    kinds = {"state": "State", "instructions": "Question"}
    return kinds.get(part["part"], f"Option '{names.get(part.get('name', ''))}'")


async def check_reason(browser: Page, reason: dict[str, Any], names: dict[str, str]) -> None:
    """Hold the words, their colours, the sum and the table to the API's numbers."""
    place = ["state", "instructions", "option"].index
    parts = sorted(reason["parts"], key=lambda part: place(part["part"]))
    shown = await browser.run(PARTS)
    assert [title for title, _, _ in shown] == [
        f"{called(names, part)}: {part['share']:.4f}" for part in parts
    ]
    assert shown[0][1] == STATE, "nothing between the words is lost"
    most = max(abs(unit["share"]) for part in parts for unit in part["units"])
    for (_, _, words), part in zip(shown, parts, strict=True):
        units = part["units"]
        assert [word[:2] for word in words] == [[u["text"], f"{u['share']:.4f}"] for u in units]
        for (_, _, redder), unit in zip(words, units, strict=True):
            if abs(unit["share"]) > most / 100:
                assert (redder > 0) == (unit["share"] < 0), unit
    sums = {
        word: sum(part["share"] for part in parts if part["part"] == kind)
        for kind, word in (("state", "state"), ("instructions", "question"), ("option", "options"))
    }
    sums |= {"special tokens": reason["special"], "rest": reason["rest"]}
    terms = [f"{'+-'[one < 0]} {abs(one):.4f} {word}" for word, one in sums.items()]
    equal = " ".join(terms).removeprefix("+ ")
    assert (await browser.run(SUM)).replace("\u2212", "-") == f"{reason['margin']:.4f} = {equal}"
    np.testing.assert_allclose(sum(sums.values()), reason["margin"], atol=1e-5)
    await browser.run("[...document.querySelectorAll('#decide summary')].at(-1).click()")
    assert await browser.wait(ROWS) == [
        [unit["text"], called(names, part), f"{unit['share']:.4f}"]
        for part in parts
        for unit in part["units"]
    ]


async def test_every_number_and_every_word_is_the_apis(browser: Page, decider: str) -> None:
    """Options with their bars, the words of all parts in their colours, the sum, and the table."""
    await decide(browser, decider, CHOICE)
    answer = await told(decider)
    likely = answer["probabilities"]

    assert (await browser.run(HEAD)).startswith(
        f"{answer['choice']}confidence {answer['confidence']:.4f}"
    )
    assert await browser.run(BARS) == [
        [name, f"{likely[name]:.4f}", pytest.approx(100 * likely[name], abs=1e-3)]
        for name in OPTIONS
    ]
    await check_reason(browser, answer["reason"], {name: name for name in OPTIONS})
    pulls = await browser.run("return document.querySelector('#decide .words').textContent")
    first, second = answer["reason"]["first"], answer["reason"]["second"]
    assert f"of '{first}' over '{second}'" in pulls and f"toward '{first}' or" in pulls
    assert await browser.complaints() == []


async def test_a_pressed_option_shows_what_its_mark_looked_at(browser: Page, decider: str) -> None:
    """By the mouse, and by the keyboard another; the mean of the last layer's heads, or one."""
    await decide(browser, decider, CHOICE)
    shown = (await told(decider, attention={"layers": [-1]}))["attention"]
    ((layer, rows),) = shown["layers"].items()
    weights = np.array(rows)  # (heads, options, tokens)
    names = list(OPTIONS)
    assert shown["options"] == names and weights.shape[1:] == (3, len(shown["tokens"]))

    await browser.click("document.querySelectorAll('.options button')[0]")
    mean = weights.mean(0)
    assert await browser.run(LOOKED) == [f"{weight:.4f}" for weight in mean[0]]
    await browser.press(KEYS["tab"], KEYS["enter"])
    assert await browser.run(LOOKED) == [f"{weight:.4f}" for weight in mean[1]]
    pressed = """return [...document.querySelectorAll('.options [aria-pressed=true]')].map(
      (button) => button.textContent)"""
    assert await browser.run(pressed) == ["parcel"]
    await browser.press(KEYS["tab"], KEYS["tab"])
    label = "return document.activeElement.labels[0].textContent"
    assert (await browser.run(label)).startswith("Heads of the last layer")
    await browser.press(KEYS["down"], KEYS["down"], KEYS["enter"])
    chosen = await browser.run("return document.activeElement.selectedOptions[0].textContent")
    assert chosen == f"L{layer}H0"
    assert await browser.run(LOOKED) == [f"{weight:.4f}" for weight in weights[0, 1]]
    read = await browser.run("return document.querySelector('#decide div > .words').textContent")
    assert "[MASK] parcel [MASK] level: how urgent, or: not [SEP] The parcel" in read


@pytest.mark.parametrize(
    ("kind", "options", "criteria", "names"),
    [
        ("noul", "Yes: a team can", {"true": "a team can"}, {"true": "yes", "false": "no"}),
        ("score", "not at all\nnow", ["not at all", "now"], {"0": "0: not at all", "1": "1: now"}),
    ],
)
async def test_yes_or_no_and_levels_are_asked_for_too(
    browser: Page, decider: str, kind: str, options: str, criteria: Any, names: dict[str, str]
) -> None:
    """In the reader's words, not in the API's."""
    await decide(browser, decider, CHOICE | {"kind": kind, "options": options})
    answer = await told(decider, kind, criteria)
    likely = answer.get("probabilities") or {"true": answer["noul"], "false": 1 - answer["noul"]}

    bars = await browser.run(BARS)
    assert [bar[:2] for bar in bars] == [[names[n], f"{likely[n]:.4f}"] for n in names]
    head = await browser.run(HEAD)
    assert head.startswith(names[max(likely, key=lambda name: likely[name])])
    if kind == "score":
        assert (
            f"expected level {answer['score']:.2f}, confidence {answer['confidence']:.4f}" in head
        )
    await check_reason(browser, answer["reason"], names)


async def test_one_level_has_nothing_to_be_told_from(browser: Page, decider: str) -> None:
    """It is certain, and the page says why there are no words."""
    await decide(browser, decider, CHOICE | {"kind": "score", "options": "now"})

    assert await browser.run(BARS) == [["0: now", "1.0000", 100]]
    said = await browser.run("return document.getElementById('decide').innerText")
    answer = await told(decider, "score", ["now"])
    assert answer["reason"] is None and f"{answer['reason_missing']}." in said


@pytest.mark.parametrize(
    ("fields", "box", "said"),
    [
        ({"text": "well " * 600}, "text", "tokens"),
        ({"other": ""}, "other", "instructions"),
        ({"options": "parcel"}, "options", "2 options"),
        ({"options": "parcel: one\nparcel: other"}, "options", "repeats"),
    ],
    ids=["long", "without a question", "one option", "an option twice"],
)
async def test_a_refusal_stands_at_its_field(
    browser: Page, decider: str, fields: dict[str, str], box: str, said: str
) -> None:
    """In the service's words, and it goes with the next press; nothing old is left to be read."""
    await decide(browser, decider, CHOICE)
    await browser.run(
        "".join(
            f"document.getElementById('{name}').value = {json.dumps(value)};"
            for name, value in fields.items()
        )
        + "document.querySelector('button[type=submit]').click()"
    )
    await browser.wait(REFUSED)
    place = "return document.querySelector('output.bad').previousElementSibling.id"
    assert await browser.run(place) == box
    assert said in await browser.run("return document.querySelector('output.bad').textContent")
    assert await browser.run("return document.getElementById('decide').children.length") == 0

    await browser.run(
        "".join(
            f"document.getElementById('{name}').value = {json.dumps(CHOICE[name])};"
            for name in fields
        )
        + "document.querySelector('button[type=submit]').click()"
    )
    await browser.wait(DECIDED)
    assert not await browser.run(REFUSED)


async def test_a_link_holds_the_question_and_sends_nothing_by_itself(
    browser: Page, decider: str
) -> None:
    """A colleague who presses Show sees the same; what a link makes up is left out."""
    await decide(browser, decider, CHOICE)
    bars, link = await browser.run(BARS), await browser.run("return location.hash")

    await fresh(browser, decider, link)
    await browser.wait("return !document.querySelector('.deciding').hidden")
    assert not await browser.run(DECIDED)
    labels = "return [...document.querySelectorAll('.field label')].map((one) => one.textContent)"
    assert (await browser.run(labels))[:4] == [
        "State",
        "Question",
        "Answer",
        "Options, one per line (name: description)",
    ]
    await browser.run("document.querySelector('button[type=submit]').click()")
    await browser.wait(DECIDED)
    assert await browser.run(BARS) == bars

    await fresh(browser, decider, f"#{urlencode(CHOICE | {'kind': 'toString'})}")
    assert await browser.run("return document.getElementById('kind').value") == "choice"


async def test_a_model_that_does_not_decide_offers_no_question(browser: Page, address: str) -> None:
    """Neither the mode, nor its example, nor a word of it."""
    await fresh(browser, address, "#text=All+is+well")
    await browser.wait("return document.getElementById('model').textContent.includes('layers')")

    assert await browser.run(
        "return [...document.querySelectorAll('.deciding')].map((one) => one.checkVisibility())"
    ) == [False, False, False]


async def test_a_model_of_entailment_decides_too(browser: Page, entailing: str) -> None:
    """Its options are no buttons, as no mark of theirs looks at anything; nobody calibrated it."""
    await decide(browser, entailing, CHOICE)
    answer = await told(entailing)

    assert [bar[:2] for bar in await browser.run(BARS)] == [
        [name, f"{answer['probabilities'][name]:.4f}"] for name in OPTIONS
    ]
    await check_reason(browser, answer["reason"], {name: name for name in OPTIONS})
    assert not await browser.run("return document.querySelector('.options button')")
    said = await browser.run("return document.getElementById('decide').innerText")
    assert "Nobody has calibrated this model's probabilities." in said


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.prove)])
async def test_a_telephone_cuts_nothing_and_axe_finds_no_violation(
    browser: Page, decider: str, theme: str
) -> None:
    """360 pixels wide, with a long name and a long word; in either theme all ink can be read."""
    long = {"text": f"The parcel {'o' * 60}", "options": f"parcel\n{'o' * 40}"}
    async with browser.theme(theme):
        await browser.resize(360, 800)
        await decide(browser, decider, CHOICE | long)
        await browser.click("document.querySelectorAll('.options button')[1]")
        await browser.run(
            """for (const one of document.querySelectorAll("#decide details")) one.open = true"""
        )
        await browser.wait("return document.querySelectorAll('#decide table').length === 3")
        wide, found = await browser.run(WIDE), await violations(browser)
        beyond = await browser.run(
            """const { scrollWidth, clientWidth } = document.querySelector(".options");
            return scrollWidth - clientWidth"""
        )
        await browser.resize(0, 0)

    assert wide == [] and found == [] and beyond <= 1


async def test_what_is_shown_can_be_taken_away(browser: Page, decider: str, tmp_path: Path) -> None:
    """The command that asks for the same; the answer as JSON; a page with the options' names."""
    await decide(browser, decider, CHOICE)
    bars = await browser.run(BARS)
    answer = json.loads(await taken(browser, "JSON", tmp_path / "headlight.json"))["decide"]
    await browser.run(
        """navigator.clipboard.writeText = async (text) => { window.copied = text };
        [...document.querySelectorAll("#decide button")].at(-1).click()"""
    )
    await browser.wait(f"{SAID}.includes('Copied the curl')")
    command = shlex.split(await browser.run("return window.copied"))
    async with httpx.AsyncClient() as client:
        again = (await client.post(command[1], json=json.loads(command[-1]))).json()
    await taken(browser, "HTML", tmp_path / "headlight.html")
    await browser.open(f"file://{tmp_path}/headlight.html")
    kept = await browser.run(BARS)
    await browser.open("about:blank")

    assert kept == bars and again == answer
