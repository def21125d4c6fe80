"""The page's view of a query and a document: what carries the score, next to a control."""

import json
import shlex
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx
import pytest

from tests.service.page.browser import (
    AXE,
    NEEDED,
    SAID,
    SHOWN,
    WIDE,
    Page,
    ask,
    fresh,
    labelled,
    taken,
)

pytestmark = NEEDED

QUERY = "Why did the dog eat?"
DOCUMENT = (
    "The sun rose over the hill. \U0001f415 A dog ate the food, because it was hungry. 猫は寝た。"
    "Nobody  saw it.\n\nThe cat slept. A train left for Rome. Rain fell."
)
EVIDENCE = "return document.getElementById('evidence').innerText"
MARKS = """return [...document.querySelectorAll("mark")].map(
  (mark) => [Number(mark.dataset.rank), mark.textContent])"""
SHADES = """return [...document.querySelectorAll("mark")].map(
  (mark) => getComputedStyle(mark).backgroundColor)"""
MARKED = "return document.querySelector('#evidence mark')"
LIST = """return [...document.querySelectorAll(".ranked li")].map(
  ({ children: [share, text] }) => [share.textContent, text.textContent])"""
SHORTENED = "return [...document.querySelectorAll('#evidence .whole')].at(-1).textContent"
EXPORTS = """return [...document.querySelectorAll("#exports:not([hidden]) button")].map(
  (button) => button.textContent)"""
EXACT = "Found by", "exact"
SETTLED = "return document.getElementById('evidence').ariaBusy === 'false'"


async def mark(browser: Page, address: str, document: str, query: str = QUERY) -> None:
    """Open the page anew, choose the view, write both texts and press Show."""
    await fresh(browser, address)
    await browser.run("document.querySelector('input[value=evidence]').click()")
    await show(browser, query, document)
    await browser.wait(SETTLED)


async def show(browser: Page, query: str, document: str) -> None:
    """Write both texts and press Show."""
    await browser.run(
        f"""document.getElementById("text").value = {json.dumps(query)};
        document.getElementById("other").value = {json.dumps(document)};
        document.querySelector("button[type=submit]").click()"""
    )


async def choose(browser: Page, label: str, value: str) -> None:
    """Choose a value, and wait for what it brings."""
    await browser.run(
        f"""const select = [...document.querySelectorAll("#evidence label")].find(
          (label) => label.textContent.startsWith("{label}")).querySelector("select");
        select.focus(); select.value = "{value}"; select.onchange()"""
    )
    await browser.wait(SETTLED)


async def told(client: httpx.AsyncClient, document: str = DOCUMENT, **how: Any) -> dict[str, Any]:
    """What the API says of the same."""
    body = {"query": QUERY, "documents": [document], "top": 3, "prune": 0.3, **how}
    answer = await client.post("/v1/highlight", json=body)
    result: dict[str, Any] = answer.raise_for_status().json()["results"][0]
    return result


async def test_every_number_and_every_mark_is_the_apis(
    browser: Page, address: str, client: httpx.AsyncClient
) -> None:
    """In a text of several scripts: each mark has its place, and nothing is lost."""
    await mark(browser, address, DOCUMENT)
    result = await told(client)
    ranked = result["highlights"]
    said = await browser.run(EVIDENCE)

    score = await browser.run(f"return {labelled('Score')}.textContent")
    assert score == f"{result['score']:.4f}"
    assert await browser.run(LIST) == [[f"{one['share']:.4f}", one["text"]] for one in ranked]
    shown = await browser.run(MARKS)
    by_place = sorted(range(len(ranked)), key=lambda i: ranked[i]["characters"])
    assert shown == [[i + 1, ranked[i]["text"]] for i in by_place] and len(shown) == 3
    whole = await browser.run("return document.querySelector('#evidence .whole').textContent")
    assert whole == DOCUMENT
    random = result["control"]
    assert (
        f"Removing the 3 marked sentences takes the score from {score} to {result['without']:.4f}; "
        f"removing 3 others at random takes it to {random['without_random']:.4f} on average "
        f"(standard deviation {random['deviation']:.4f})."
    ) in said
    assert "Each share is the score of that sentence by itself." in said
    assert await browser.run(SHORTENED) == result["pruned"]


@pytest.mark.parametrize("unit", ["word", pytest.param("token", marks=pytest.mark.prove)])
async def test_a_choice_marks_anew_and_stays_in_the_link(
    browser: Page, address: str, client: httpx.AsyncClient, unit: str
) -> None:
    """Another unit, more of them, and a longer rest; a colleague who presses Show sees the same."""
    await mark(browser, address, DOCUMENT)
    for label, value in (("Unit", unit), ("Mark the strongest", "10"), ("Keep", "0.5"), EXACT):
        await choose(browser, label, value)
        focused = await browser.run("return document.activeElement.value")
        assert focused == value, "the keyboard keeps its place"
    result = await told(client, unit=unit, top=10, prune=0.5, method="sum")
    assert f"The rest adds {result['rest']:.4f}" in await browser.run(EVIDENCE)
    expected = [[f"{one['share']:.4f}", one["text"]] for one in result["highlights"]]
    assert await browser.run(LIST) == expected and len(expected) == 10
    link = await browser.run("return location.hash")

    await fresh(browser, address, link)
    assert not await browser.run(MARKED), "nothing is sent before Show is pressed"
    labels = "return [...document.querySelectorAll('.field > label')].map((one) => one.innerText)"
    assert (await browser.run(labels))[:2] == ["Query", "Document"]
    await browser.run("document.querySelector('button[type=submit]').click()")
    await browser.wait(MARKED)
    await browser.wait(SETTLED)
    assert await browser.run(LIST) == expected


@pytest.mark.prove
async def test_the_strongest_is_the_darkest_and_is_led_to(browser: Page, address: str) -> None:
    """In either theme; a piece of the list brings its mark into view and into focus."""
    await mark(browser, address, DOCUMENT)
    for theme, darker in (("light", 1), ("dark", -1)):
        async with browser.theme(theme):
            lightness = await browser.run(
                """return [...document.querySelectorAll("#evidence mark")]
                  .sort((a, b) => a.dataset.rank - b.dataset.rank)
                  .map((mark) => getComputedStyle(mark).backgroundColor.match(/\\d+/g)
                    .reduce((sum, channel) => sum + Number(channel), 0))"""
            )
        assert darker * lightness[0] < darker * lightness[1] < darker * lightness[2], theme
    await browser.click("document.querySelectorAll('#evidence .ranked button')[1]")
    assert await browser.run("return document.activeElement.dataset.rank") == "2"


@pytest.mark.prove
async def test_what_takes_from_the_score_is_not_dark(browser: Page, address: str) -> None:
    """Where no piece adds to it; each is still marked by a line."""
    await fresh(browser, address)
    shades = await browser.run(
        """const { draw } = await import("/page/evidence.js");
        const ranked = [-0.1, -0.2].map(
          (share, i) => ({ characters: [i, i + 1], text: "ab"[i], share }));
        const result = { score: -0.4, highlights: ranked, rest: -0.1, without: -0.1, pruned: "a" };
        const request = { documents: ["abc"], unit: "word" }, section = document.body;
        draw(section, { request, answer: { results: [result] } }, {}, () => {});
        return [...section.querySelectorAll("mark")].map(
          (mark) => getComputedStyle(mark).backgroundColor)"""
    )

    assert shades == ["rgb(255, 255, 255)"] * 2


async def test_what_was_found_by_leaving_it_out_is_called_no_part_of_a_sum(
    browser: Page, address: str
) -> None:
    """As a reranker's is: such an answer has no rest."""
    await fresh(browser, address)
    said = await browser.run(
        """const { draw } = await import("/page/evidence.js");
        const ranked = [{ characters: [0, 1], text: "a", share: 0.2 }];
        const result = { score: 0.4, method: "occlusion", highlights: ranked, rest: null };
        const request = { documents: ["abc"], unit: "word" }, section = document.body;
        const answer = { results: [{ ...result, without: 0.2, control: null, pruned: "a" }] };
        draw(section, { request, answer }, {}, () => {});
        return section.innerText"""
    )

    assert "A share is what the score loses without it alone" in said and "adds" not in said
    assert "the score from 0.4000 to 0.2000; there are too few words for a control" in said


@pytest.mark.prove
async def test_what_is_too_short_for_a_control_says_so(browser: Page, address: str) -> None:
    """One sentence: nothing is left without it."""
    await mark(browser, address, "A dog ate the food.")
    said = await browser.run(EVIDENCE)

    assert "Without the marked sentence, nothing is left to score." in said
    assert await browser.run(MARKS) == [[1, "A dog ate the food."]]


@pytest.mark.prove
async def test_a_refusal_stands_in_its_place_and_leaves_nothing_of_another_text(
    browser: Page, address: str
) -> None:
    """In the service's words; the next document is marked as if nothing had been."""
    await mark(browser, address, DOCUMENT)
    await show(browser, QUERY, "well " * 300)
    said = await browser.wait("return document.querySelector('#evidence .bad')?.textContent")
    assert "256" in said
    assert not await browser.run(MARKED) and "dog" not in await browser.run(EVIDENCE)
    assert await browser.run(EXPORTS) == [], "there is no answer to take away"

    await show(browser, QUERY, DOCUMENT)
    await browser.wait(MARKED)
    assert not await browser.run("return document.querySelector('#evidence .bad')")


@pytest.mark.prove
async def test_a_document_is_asked_for_where_there_is_none(browser: Page, address: str) -> None:
    """Before anything is sent."""
    await fresh(browser, address)
    await browser.run("document.querySelector('input[value=evidence]').click()")
    await show(browser, QUERY, "")

    status = "return document.getElementById('status').textContent"
    assert await browser.run(status) == "Enter a document first."


@pytest.mark.prove
async def test_the_views_leave_nothing_of_each_other(browser: Page, address: str) -> None:
    """Heads and likeness go where evidence comes, and evidence where they come."""
    await ask(browser, address, QUERY, DOCUMENT)
    await browser.run("document.querySelector('input[value=evidence]').click()")
    await browser.run("document.querySelector('button[type=submit]').click()")
    await browser.wait(MARKED)
    views = await browser.run("return document.getElementById('views').innerText")
    assert "All heads" not in views and "Why alike" not in views
    assert await browser.run(EXPORTS) == ["JSON of the answers", "HTML of the page"]

    await browser.run("document.querySelector('input[value=compare]').click()")
    await browser.run("document.querySelector('button[type=submit]').click()")
    await browser.wait(SHOWN)
    views = await browser.run("return document.getElementById('views').innerText")
    assert "Evidence" not in views and "All heads" in views
    assert len(await browser.run(EXPORTS)) == 8
    assert "together" not in await browser.run("return location.hash")


@pytest.mark.prove
@pytest.mark.parametrize("made_up", ["unit=page&top=0&prune=2", "together=proof"])
async def test_a_choice_that_a_link_makes_up_is_left_out(
    browser: Page, address: str, made_up: str
) -> None:
    """The default stands in its place, and nothing failed."""
    fields = {"text": QUERY, "other": DOCUMENT, "together": "evidence"}
    name, *_ = made_up.split("=")
    fields.pop(name, None)
    await fresh(browser, address, f"#{urlencode(fields)}&{made_up}")
    chosen = await browser.run(
        "return document.querySelector('input[name=together]:checked').value"
    )
    await browser.run("document.querySelector('button[type=submit]').click()")
    await browser.wait(SHOWN if name == "together" else MARKED)

    assert chosen == ("compare" if name == "together" else "evidence")
    if name != "together":
        assert len(await browser.run(MARKS)) == 3
    assert await browser.complaints() == []


@pytest.mark.prove
async def test_what_is_shown_can_be_copied(
    browser: Page, address: str, client: httpx.AsyncClient
) -> None:
    """The shortened text to the clipboard, and the command that asks for the same."""
    await mark(browser, address, DOCUMENT)
    await browser.run(
        """navigator.clipboard.writeText = async (text) => { window.copied = text };
        window.press = (name) => [...document.querySelectorAll("#evidence button")].find(
          (button) => button.textContent === name).click();
        window.press("Copy the shortened text")"""
    )
    await browser.wait(f"{SAID}.startsWith('Copied the shortened text')")
    pruned = await browser.run("return window.copied")
    await browser.run("window.press('Copy curl')")
    await browser.wait(f"{SAID}.includes('Copied the curl')")
    command = shlex.split(await browser.run("return window.copied"))
    result = (await client.post(command[1], json=json.loads(command[-1]))).json()["results"][0]

    assert pruned == result["pruned"] and result == await told(client)


@pytest.mark.prove
async def test_what_is_shown_can_be_taken_away(
    browser: Page, address: str, client: httpx.AsyncClient, tmp_path: Path
) -> None:
    """The answer as JSON; the view as a page: query, marks by their shares, list and choices."""
    async with browser.theme("dark"):
        await mark(browser, address, DOCUMENT)
        await choose(browser, "Unit", "word")
        await browser.run("document.getElementById('text').value = 'Not asked'")
        saved = json.loads(await taken(browser, "JSON", tmp_path / "headlight.json"))
        seen = [await browser.run(script) for script in (MARKS, LIST, SHADES)]
        await taken(browser, "HTML", tmp_path / "headlight.html")
        await browser.open(f"file://{tmp_path}/headlight.html")
        kept = [await browser.run(script) for script in (MARKS, SHADES)]
    said = await browser.run("return document.body.innerText")
    light = await browser.run(SHADES)
    controls = await browser.run("return document.querySelectorAll('button, select, input').length")
    axe = await violations(browser)
    await browser.open("about:blank")

    (result,) = saved["highlight"]["results"]
    assert result == await told(client, unit="word")
    assert kept == [seen[0], seen[2]] and light != seen[2] and controls == 0 and axe == []
    shares = [f"{share} {text}" for share, text in seen[1]]
    rest = ["Mark the strongest: 3", "Unit: words", "Keep: 30 %", result["pruned"], QUERY]
    plain = " ".join(said.split())
    assert not [one for one in shares + rest if " ".join(one.split()) not in plain]
    assert "Not asked" not in said and "Export" not in said


@pytest.mark.prove
async def test_an_answer_that_a_reader_did_not_wait_for_is_not_drawn(
    browser: Page, address: str
) -> None:
    """What was asked last stands, whichever comes last."""
    await mark(browser, address, DOCUMENT)
    await browser.run(
        """window.inner = fetch;
        window.fetch = async (url, more) => {
          const held = String(more?.body).includes("The sun rose");
          if (held) await new Promise((done) => (window.release = done));
          const answer = await window.inner(url, more), told = await answer.json();
          if (held) setTimeout(() => (window.late = true)); // after what it would draw
          return { ok: true, json: async () => told };
        }"""
    )
    await browser.run(
        """const select = document.querySelectorAll("#evidence select")[1];
        select.value = "word"; select.onchange()"""
    )
    await show(browser, QUERY, "The cat slept. It was dark.")
    await browser.wait(
        "return document.querySelector('#evidence .whole')?.innerText.includes('dark')"
    )
    await browser.run("window.release()")
    await browser.wait("return window.late")

    assert "dog" not in await browser.run(EVIDENCE)
    assert (
        await browser.run("return document.querySelectorAll('#evidence select')[1].value") == "word"
    )


@pytest.mark.parametrize("theme", ["light", pytest.param("dark", marks=pytest.mark.prove)])
async def test_the_example_finds_the_answer_and_axe_no_violation(
    browser: Page, address: str, theme: str
) -> None:
    """Marked first, and kept of 30 %; in either theme the ink on each mark has contrast enough."""
    answer = (
        "The world will little note, nor long remember what we say here, but it can never forget "
    )
    async with browser.theme(theme):
        await fresh(browser, address)
        examples = "[...document.querySelectorAll('#examples button:not(.deciding)')]"
        await browser.run(f"{examples}.at(-1).click()")
        await browser.wait(MARKED)
        (_, first), *_ = await browser.run(LIST)
        kept = await browser.run(SHORTENED)
        assert first.startswith(answer) and answer in kept
        assert await violations(browser) == []


async def violations(browser: Page) -> list[tuple[str, str]]:
    """What axe finds wrong with what is open."""
    await browser.run(AXE.read_text())
    await browser.run(
        "axe.run({ resultTypes: ['violations'] }).then((found) => (window.found = found))"
    )
    found = await browser.wait("return window.found")
    assert len(found["passes"]) > 15
    return [(one["id"], one["nodes"][0]["html"]) for one in found["violations"]]


@pytest.mark.prove
async def test_a_telephone_cuts_nothing(browser: Page, address: str) -> None:
    """Not a word longer than the window either."""
    await mark(browser, address, f"{DOCUMENT} {'o' * 80}.")
    await browser.resize(400, 800)
    wide = await browser.run(WIDE)
    beyond = await browser.run(
        """return [...document.querySelectorAll("#evidence .scroll")].filter(
          (box) => box.scrollWidth > box.clientWidth).length"""
    )
    await browser.resize(0, 0)

    assert wide == [] and beyond == 0
