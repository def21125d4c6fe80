"""Decisions, asked by both clients over real HTTP."""

import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from headlight_client import NoAnswer, Reason, RequestRefused
from headlight_client.decided import read_decisions
from tests.laya_models import make_laya
from tests.served_model import Listen, Outer, Served, serve

STATE = "I was charged twice. Please help."
QUESTIONS: dict[str, dict[str, Any]] = {
    "billing": {"type": "noul", "instructions": "Is it about a bill?"},
    "tone": {
        "type": "choice",
        "instructions": "What is its tone?",
        "criteria": {"calm": None, "angry": "upset or hostile", "sad": None},
    },
    "urgency": {
        "type": "score",
        "instructions": "How urgent is it?",
        "criteria": ["can wait", "needs a look today"],
    },
    "single": {"type": "score", "instructions": "How urgent is it?", "criteria": ["can wait"]},
}


@pytest_asyncio.fixture(scope="module")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Served]:
    """A decision model of random weights."""
    folder = make_laya(tmp_path_factory.mktemp("decide") / "laya")
    async with serve(folder, "laya", listen, outer) as one:
        yield one


async def test_decisions_come_typed(call: Any, served: Served) -> None:
    """By the questions' names, with the numbers of the JSON; other types' fields are None."""
    told = await call(served.url, "decide", STATE, QUESTIONS, model="laya")
    expected = await served.post("/v1/systemone", state=STATE, questions=QUESTIONS)

    rows = expected["answers"]
    assert [*told] == [*QUESTIONS] and len(told) == 4
    billing, tone, urgency, single = told.values()
    assert billing.noul == rows["billing"]["noul"]
    assert billing.probabilities == {"false": 1 - billing.noul, "true": billing.noul}
    assert (billing.choice, billing.score, billing.confidence) == (None, None, None)
    for one in (tone, urgency):
        assert one.probabilities == rows[one.name]["probabilities"]
        assert one.confidence == rows[one.name]["confidence"]
    assert (tone.choice, tone.score, tone.noul) == (rows["tone"]["choice"], None, None)
    assert (urgency.score, urgency.choice) == (rows["urgency"]["score"], None)
    assert single.probabilities == {"0": 1.0} and single.confidence == 1.0
    assert (told.model, told.tokens) == ("laya", expected["usage"]["input_tokens"])
    assert told.weights == (await call(served.url, "info"))["weights"]


async def test_a_state_may_be_json(call: Any, served: Served) -> None:
    """An object or a list, as the route takes them."""
    for state in ({"text": STATE, "age": 3}, [{"role": "user", "content": STATE}]):
        told = await call(served.url, "decide", state, QUESTIONS)
        expected = await served.post("/v1/systemone", state=state, questions=QUESTIONS)

        assert told["tone"].probabilities == expected["answers"]["tone"]["probabilities"]


@pytest.mark.parametrize("method", ["alone", "input"])
async def test_the_reason_comes_typed(call: Any, served: Served, method: str) -> None:
    """Part by part, with its control; a question of one option has none."""
    options = {"reason": {"method": method, "control": True}, "orders": 2}
    told = await call(served.url, "decide", STATE, QUESTIONS, **options)
    body = {"state": STATE, "questions": QUESTIONS}
    expected = (await served.post("/v1/systemone", **body, **options))["answers"]

    assert told["single"].reason is None
    for name in ("billing", "tone", "urgency"):
        reason, row = told[name].reason, expected[name]["reason"]
        assert isinstance(reason, Reason) and flat(reason) == row
        state = reason.parts[-1]
        assert state.part == "state"
        assert all(STATE[slice(*unit.characters)] == unit.text for unit in state.units)
        assert told[name].orders._asdict() == expected[name]["orders"]
    if method == "input":
        parts = sum(part.share for part in reason.parts)
        assert parts + reason.special + reason.rest == pytest.approx(reason.margin, abs=1e-5)


def flat(reason: Reason) -> dict[str, Any]:
    """A reason as the JSON has it."""
    names = ("method", "level", "first", "second", "margin")
    told = {name: getattr(reason, name) for name in names}
    parts = [
        {
            "part": part.part,
            **({"name": part.name} if part.name else {}),
            "share": part.share,
            "units": [{**u._asdict(), "characters": [*u.characters]} for u in part.units],
        }
        for part in reason.parts
    ]
    sums = {} if reason.rest is None else {"special": reason.special, "rest": reason.rest}
    control = None if reason.control is None else reason.control._asdict()
    return {**told, "parts": parts, **sums, "control": control}


async def test_the_strongest_words_are_those_of_the_state(call: Any, served: Served) -> None:
    """Those that speak for the first option, as many as are asked for."""
    told = await call(served.url, "decide", STATE, QUESTIONS, reason={"method": "input"})
    reason = told["tone"].reason
    shares = [unit.share for unit in reason.parts[-1].units]

    words = reason.strongest(2)

    assert [word.share for word in words] == sorted(shares, reverse=True)[:2]
    assert {word.share for word in reason.strongest(99)} == {each for each in shares if each > 0}


async def test_what_was_cut_is_told(call: Any, served: Served) -> None:
    """In tokens, where cutting was asked for; else it is refused, with its place and room."""
    long = "word " * 600
    cut = await call(served.url, "decide", long, QUESTIONS, truncate="right")
    with pytest.raises(RequestRefused) as refused:
        await call(served.url, "decide", long, QUESTIONS)

    told = cut["tone"].truncated
    assert told["state_tokens"] > told["state_tokens_kept"] > 0
    error = refused.value
    assert (error.status, error.code) == (422, "sequence_too_long")
    assert error.errors[0].loc == ("state",) and error.detail.startswith("state: It has ")
    assert error.facts["length"] > error.facts["limit"] and error.request_id


async def test_a_refusal_says_where(call: Any, served: Served) -> None:
    """In the form that TypeSafe's API has of each."""
    faulty = {"tone": {**QUESTIONS["tone"], "criteria": {"calm": None}}}
    with pytest.raises(RequestRefused) as options:
        await call(served.url, "decide", STATE, faulty)
    with pytest.raises(RequestRefused) as model:
        await call(served.url, "decide", STATE, QUESTIONS, model="jev-latest")

    assert options.value.errors[0].loc == ("questions", "tone", "criteria")
    assert options.value.detail.startswith("questions.tone.criteria: ")
    assert (model.value.status, model.value.code) == (404, "model_not_found")
    assert '"laya"' in model.value.detail and model.value.request_id


async def test_a_model_without_decisions_says_so(call: Any, address: str) -> None:
    """The bundled one."""
    with pytest.raises(RequestRefused) as refused:
        await call(address, "decide", STATE, QUESTIONS)

    assert (refused.value.status, refused.value.code) == (404, "task_not_found")


@pytest.mark.parametrize(
    ("questions", "options", "said"),
    [
        ([QUESTIONS["tone"]], {}, "must be a mapping"),
        (QUESTIONS, {"reasons": {}}, "option: reasons"),
    ],
)
async def test_what_would_be_misread_is_refused_before_it_is_sent(
    call: Any, questions: Any, options: dict[str, Any], said: str
) -> None:
    """Questions without names, and an option that there is not."""
    with pytest.raises(TypeError, match=said):
        await call("http://127.0.0.1:9", "decide", STATE, questions, **options)


ODD: list[Any] = [None, [], {}, {"answers": []}, {"answers": {"a": {}}, "model": "m"}]
ODD += [{"answers": {"a": {"type": "noul", "noul": "high"}}, "model": "m", "usage": {}}]


@pytest.mark.parametrize("told", ODD)
async def test_another_answer_is_none(told: Any) -> None:
    """Of a service that is not Headlight's."""
    with pytest.raises(NoAnswer):
        read_decisions(told, None)


async def test_a_decision_shows_itself_in_a_line(call: Any, served: Served) -> None:
    """What it decided and how sure; no field of another type."""
    told = await call(served.url, "decide", STATE, QUESTIONS, reason={"method": "input"})

    shown = repr(told["tone"])
    assert shown.startswith("Decision(name='tone', type='choice', probabilities={'calm': ")
    assert "noul" not in shown and "score" not in shown
    assert repr(told).startswith("Decisions(model='laya', answers={'billing': Decision(")
    reason = told["tone"].reason
    words = ", ".join(f"{word.text} {word.share:+.2f}" for word in reason.strongest(3))
    over = f"{reason.first!r} over {reason.second!r} by {reason.margin:.2f}"
    assert f"reason=Reason({over}: {words})" in shown
    assert len(shown) < 300 and len(repr(told)) < 1000


async def test_the_picture_has_every_word_and_the_shares_that_are_not_small(
    call: Any, served: Served, tmp_path: Path
) -> None:
    """Below the names of their parts; a decision without a reason has no picture."""
    told = await call(served.url, "decide", STATE, QUESTIONS, reason={"method": "input"})
    told["tone"].plot().save(tmp_path / "tone.svg")
    told["tone"].plot().save(tmp_path / "tone.png")

    drawn = re.findall(r"<text[^>]*>([^<]+)</text>", (tmp_path / "tone.svg").read_text("utf-8"))
    reason = told["tone"].reason
    words = [unit.text for part in reason.parts for unit in part.units]
    largest = max(abs(unit.share) for part in reason.parts for unit in part.units)
    numbers = [
        f"{unit.share:+.2f}"
        for part in reason.parts
        for unit in part.units
        if abs(unit.share) >= 0.05 * largest
    ]
    assert [one for one in drawn if re.fullmatch(r"[+-]\d\.\d\d", one)] == numbers
    assert all(word in drawn for word in words)
    assert {"instructions", "option calm", "option angry", "state"} <= {*drawn}
    with pytest.raises(ValueError, match="single has no reason"):
        told["single"].plot()
