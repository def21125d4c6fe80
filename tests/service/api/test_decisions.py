"""OpenAI's own client of decisions, unmodified, and the wire beneath it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI

from service.api import decisions
from service.questions.decide import MOST_OPTIONS, MOST_QUESTIONS, DecideRequest, DecisionQuestion
from service.shapes.call import ModelFacts
from service.tables.refusals import refusal_of
from tests.conftest import post_of
from tests.laya_models import make_laya, open_library
from tests.served_model import Listen, Outer, Served, serve

PATH, NAME = "/v1/decisions", "all-MiniLM-L6-v2"
FACTS = ModelFacts([NAME], ("decide",), 2, 1 << 21, 64)
(ROUTE,) = decisions.ROUTES
PREDICATE = {"type": "predicate", "instructions": "Is it so?"}
BREAKPOINT = {"prompt_cache_breakpoint": {"mode": "explicit"}}
TEXT, IMAGE = {"type": "input_text", "text": "a"}, {"type": "input_image", "image_url": "b"}
TALK: list[dict[str, Any]] = [
    {"role": "system", "content": "You answer mail."},
    {"type": "message", "role": "developer", "content": [{**TEXT, **BREAKPOINT}]},
    {
        "role": "user",
        "content": [TEXT, {"type": "input_json", "data": {"n": 1.0, "\u00e9": [None, True]}}],
    },
    {
        "role": "assistant",
        "phase": "commentary",
        "content": [{"type": "output_text", "text": "b"}, {"type": "refusal", "refusal": "c"}],
    },
    {"type": "function_call", "call_id": "1", "name": "find", "arguments": "{}"},
    {"type": "function_call_output", "call_id": "1", "output": [TEXT]},
    {"type": "custom_tool_call", "call_id": "1", "name": "sum", "input": "1 + 1"},
    {"type": "custom_tool_call_output", "call_id": "1", "output": "2", "status": "completed"},
    {"role": "user", "content": "Where is my parcel?"},
]


def read(body: Any) -> tuple[DecideRequest, dict[str, None]]:
    """The native request of a body, and the fields that were ignored."""
    request = post_of(PATH)
    assert ROUTE.parse
    call = ROUTE.parse(json.dumps(body).encode(), request, FACTS)
    assert isinstance(call.request, DecideRequest)
    return call.request, request.ignored


def refusal(body: Any) -> tuple[int, dict[str, Any]]:
    """The status with which a body is refused, and the error."""
    request = post_of(PATH)
    assert ROUTE.parse
    try:
        ROUTE.parse(json.dumps(body).encode(), request, FACTS)
    except Exception as error:
        reply = (request.word or ROUTE.api.problem)(refusal_of(error), "an-id")
        return reply.status, json.loads(b"".join(reply.pieces))["error"]
    raise AssertionError("it was taken")


def asking(*questions: Any, **more: Any) -> dict[str, Any]:
    """A request of some questions."""
    return {"input": "a", "questions": [*questions], **more}


def question(body: Any) -> DecisionQuestion:
    """The only question of a body."""
    (one,) = read(body)[0].questions
    return one


def choice(*choices: Any, **more: Any) -> dict[str, Any]:
    """A request of a choice; a text or boolean stands for its option."""
    options = [one if isinstance(one, dict) else {"value": one} for one in choices]
    return asking({"type": "choice", "instructions": "b", "choices": options, **more})


def score(*levels: Any, **more: Any) -> dict[str, Any]:
    """A request of a score; a text stands for its level."""
    told = [one if isinstance(one, dict) else {"label": one} for one in levels]
    return asking({"type": "score", "instructions": "b", "levels": told, **more})


def talk(*items: Any) -> dict[str, Any]:
    """A request about some messages."""
    return asking(PREDICATE, input=[*items])


def test_messages_are_a_list_state_without_the_marks_of_caches() -> None:
    """Each as JSON, in the order given, so that a cut keeps the end."""
    asked, ignored = read(talk(*TALK))
    expected = json.loads(json.dumps(TALK))
    del expected[1]["content"][0]["prompt_cache_breakpoint"]

    assert asked.state == json.dumps(expected, ensure_ascii=False)
    assert asked.turns and not ignored
    asked, _ = read(asking(PREDICATE))
    assert (asked.state, asked.turns) == ("a", False)


def test_each_type_of_question_is_one_of_ours() -> None:
    """A predicate without criteria, a choice with descriptions, a level with its label."""
    assert question(asking(PREDICATE)).type == "noul"
    assert [one.name for one in question(asking(PREDICATE)).options] == ["false", "true"]
    described = choice({"value": "a", "description": "b"}, {"value": "c", "description": ""}, False)
    assert [(one.name, one.description) for one in question(described).options] == [
        ("a", "b"),
        ("c", None),
        ("false", None),
    ]
    levels = question(score("low", {"label": "high", "description": "b"}))
    assert [(one.name, one.description) for one in levels.options] == [
        ("low", None),
        ("high", "high: b"),
    ]


def test_instructions_in_parts_are_lines() -> None:
    """Texts as they are, JSON as one line of it."""
    parts = [TEXT, {"type": "input_json", "data": [{"a": 1.0}]}, {**TEXT, **BREAKPOINT}]
    asked = question(asking({"type": "predicate", "instructions": parts}))

    assert asked.instructions == 'a\n[{"a": 1.0}]\na'


def test_a_boolean_and_its_text_may_both_stand_where_they_read_differently() -> None:
    """Equal texts are refused, as the model could not tell them apart."""
    apart = choice({"value": True, "description": "a"}, {"value": "true", "description": "b"})
    assert len(question(apart).options) == 2
    for same in (choice(True, "true"), choice("a", "a"), choice(True, True)):
        status, error = refusal(same)
        assert (status, error["code"], error["param"]) == (400, "out_of_range", "questions")
        assert error["message"].startswith("questions[0].choices[1]: the model would read it as")


def test_what_changes_no_answer_is_taken_and_what_is_not_known_is_named() -> None:
    """Also in a question and in an option."""
    cache = {"prompt_cache_key": "k", "prompt_cache_options": {"mode": "explicit", "ttl": "30m"}}
    asked, ignored = read(asking(PREDICATE, **cache, safety_identifier="me"))
    assert not ignored and asked == read(asking(PREDICATE))[0]
    body = choice({"value": "a", "weight": 1, "description": None}, "b", shuffle=True)
    asked, ignored = read({**body, "store": True})
    assert {*ignored} == {"weight", "shuffle", "store"}
    own = {"truncate": "right", "reason": {"method": "alone", "control": True}, "orders": 16}
    asked, _ = read(asking(PREDICATE, **own))
    assert asked.reason and asked.reason.control and (asked.truncate, asked.orders) == ("right", 16)
    assert "attention" in read(asking(PREDICATE, attention={}))[1]


OUTPUT = {"type": "function_call_output", "call_id": "1", "output": "2"}
CALL = {"type": "function_call", "call_id": "1", "name": "f", "arguments": "{}"}
MANY = [f"n{number}" for number in range(MOST_OPTIONS + 1)]
BOXED = {"type": "output_text", "text": "b"}


@pytest.mark.parametrize(
    ("body", "place", "code", "why"),
    [
        (asking(), "questions", "batch_empty", "none"),
        (asking(*[PREDICATE] * (MOST_QUESTIONS + 1)), "questions", "batch_too_large", "401"),
        ({"questions": [PREDICATE]}, "input", "missing_field", "missing"),
        ({"input": "a"}, "questions", "missing_field", "missing"),
        (asking(PREDICATE, input=7), "input", "invalid_type", "an integer"),
        (asking({"type": "predicate"}), "questions[0].instructions", "missing_field", "missing"),
        (asking({"instructions": "a"}), "questions[0].type", "missing_field", "missing"),
        (asking({**PREDICATE, "type": "noul"}), "questions[0].type", "out_of_range", "predicate"),
        (asking({**PREDICATE, "choices": []}), "questions[0].choices", "out_of_range", "has none"),
        (score("a", choices=[]), "questions[0].choices", "out_of_range", "score has none"),
        (choice(levels=[]), "questions[0].levels", "out_of_range", "choice has none"),
        (
            asking({**PREDICATE, "type": "choice"}),
            "questions[0].choices",
            "missing_field",
            "a list",
        ),
        (choice(), "questions[0].choices", "batch_empty", "none"),
        (choice("a"), "questions[0].choices", "out_of_range", "2 choices"),
        (choice(*MANY), "questions[0].choices", "batch_too_large", "255 choices"),
        (choice("a", 7), "questions[0].choices[1].value", "invalid_type", "an integer"),
        (choice("a", {}), "questions[0].choices[1].value", "missing_field", "a boolean"),
        (
            choice("a", {"value": "b", "description": 7}),
            "questions[0].choices[1].description",
            "invalid_type",
            "a string",
        ),
        (
            asking({**PREDICATE, "type": "choice", "choices": ["a", "b"]}),
            "questions[0].choices[0]",
            "invalid_type",
            "an object",
        ),
        (score(), "questions[0].levels", "batch_empty", "none"),
        (score(*MANY), "questions[0].levels", "batch_too_large", "255 levels"),
        (score({"label": True}), "questions[0].levels[0].label", "invalid_type", "a string"),
        (
            asking({"type": "predicate", "instructions": [IMAGE]}),
            "questions[0].instructions[0].type",
            "out_of_range",
            "picture",
        ),
        (talk(), "input", "batch_empty", "none"),
        (talk("a"), "input[0]", "invalid_type", "an object"),
        (talk({"role": "user"}), "input[0].content", "missing_field", "a string or a list"),
        (talk({"role": "tool", "content": "a"}), "input[0].role", "out_of_range", "assistant"),
        (talk({"type": "reasoning"}), "input[0].type", "out_of_range", "custom_tool_call"),
        (talk({"role": "user", "content": 7}), "input[0].content", "invalid_type", "an integer"),
        (
            talk({"role": "user", "content": [TEXT, IMAGE]}),
            "input[0].content[1].type",
            "out_of_range",
            "picture",
        ),
        (
            talk({"role": "user", "content": [BOXED]}),
            "input[0].content[0].type",
            "out_of_range",
            "input_json",
        ),
        (
            talk({"role": "system", "content": [{"type": "input_json", "data": {}}]}),
            "input[0].content[0].type",
            "out_of_range",
            "input_text",
        ),
        (
            talk({"role": "assistant", "content": [TEXT]}),
            "input[0].content[0].type",
            "out_of_range",
            "output_text",
        ),
        (
            talk({"role": "user", "content": [{"type": "input_text"}]}),
            "input[0].content[0].text",
            "missing_field",
            "a string",
        ),
        (
            talk({"role": "user", "content": [{"type": "input_json", "data": "a"}]}),
            "input[0].content[0].data",
            "invalid_type",
            "an object or a list",
        ),
        (talk({**CALL, "name": None}), "input[0].name", "missing_field", "missing"),
        (talk({**CALL, "arguments": {}}), "input[0].arguments", "invalid_type", "an empty object"),
        (talk(OUTPUT), "input[0].call_id", "out_of_range", "no function_call before it"),
        (talk(OUTPUT, CALL), "input[0].call_id", "out_of_range", "no function_call before it"),
        (
            talk(CALL, {**OUTPUT, "type": "custom_tool_call_output"}),
            "input[1].call_id",
            "out_of_range",
            "no custom_tool_call before it",
        ),
        (
            talk(CALL, {**OUTPUT, "output": [IMAGE]}),
            "input[1].output[0].type",
            "out_of_range",
            "picture",
        ),
        (asking(PREDICATE, orders=17), "orders", "out_of_range", "at most 16"),
        (asking(PREDICATE, max_len=2048), "max_len", "unknown_field", "changes answers"),
    ],
)
def test_each_fault_is_told_with_its_place(body: Any, place: str, code: str, why: str) -> None:
    """In OpenAI's words and with its status."""
    status, error = refusal(body)

    assert (status, error["code"]) == (400, code)
    assert error["message"].startswith(f"{place}: ") and why in error["message"]
    assert error["param"] == place.partition("[")[0] and error["type"] == "invalid_request_error"


ASKED: list[Any] = [
    {"type": "predicate", "name": "late", "instructions": "Is it late?"},
    {
        "type": "choice",
        "instructions": [TEXT],
        "choices": [
            {"value": True, "description": "lost or late"},
            {"value": "true", "description": "broken"},
            {"value": "others"},
        ],
    },
    {
        "type": "score",
        "name": "urgency",
        "instructions": "how urgent",
        "levels": [{"label": "low"}, {"label": "high", "description": "now"}],
    },
]
THEIRS: dict[str, Any] = {  # the same questions, as the laya library reads them
    "late": {"type": "noul", "instructions": "Is it late?"},
    "urgency": {"type": "score", "instructions": "how urgent", "criteria": ["low", "high: now"]},
}


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(
    tmp_path_factory: pytest.TempPathFactory, listen: Listen, outer: Outer
) -> AsyncIterator[Served]:
    """A Laya checkpoint of random weights, over HTTP."""
    folder = make_laya(tmp_path_factory.mktemp("decisions") / "laya")
    async with serve(folder, "laya", listen, outer) as model:
        yield model


@pytest_asyncio.fixture
async def theirs(served: Served) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's asynchronous client."""
    url = f"{served.url}/v1"
    async with AsyncOpenAI(base_url=url, api_key="none", max_retries=0) as client:
        yield client


@pytest.mark.client("openai", "decisions")
@pytest.mark.parametrize("state", ["The parcel is late. It is urgent!", TALK])
async def test_the_client_reads_the_answers_of_the_library(
    served: Served, theirs: AsyncOpenAI, state: Any
) -> None:
    """Of a text and of messages of every kind; in the order of the questions, named or not."""
    library = open_library(Path(served.replica.settings.model))
    told = await theirs.decisions.create(
        model="laya", input=state, questions=ASKED, extra_body={"truncate": "left"}
    )
    reads = read({"input": state, "questions": ASKED})[0].state
    kept = json.loads(reads) if isinstance(state, list) else state
    expected = library.predict(kept, THEIRS)["answers"]
    predicate, choice, score = told.answers

    assert [answer.name for answer in told.answers] == ["late", None, "urgency"]
    assert predicate.type == "predicate" and choice.type == "choice" and score.type == "score"
    assert predicate.probability == pytest.approx(expected["late"]["noul"], abs=6e-5)
    assert [one.value for one in choice.probabilities] == [True, "true", "others"]
    best = max(choice.probabilities, key=lambda one: one.probability)
    assert choice.choice == best.value and type(choice.choice) is type(best.value)
    assert sum(one.probability for one in choice.probabilities) == pytest.approx(1, abs=1e-6)
    assert [one.probability for one in score.probabilities] == pytest.approx(
        [*expected["urgency"]["probabilities"].values()], abs=6e-5
    )
    assert [(one.label, one.value) for one in score.probabilities] == [("low", 0), ("high", 1)]
    assert score.score == pytest.approx(expected["urgency"]["score"], abs=2e-4)
    assert 0 <= score.confidence <= 1 and 0 <= choice.confidence <= 1
    usage = told.usage
    assert usage.input_tokens == usage.total_tokens > 0
    assert usage.output_tokens == usage.input_tokens_details.cached_tokens == 0


@pytest.mark.client("openai", "decisions, synchronous client")
async def test_the_synchronous_client_is_answered_with_own_fields_too(served: Served) -> None:
    """An answer with them is read as one without; unasked there is none."""

    def ask(**more: Any) -> Any:
        with OpenAI(base_url=f"{served.url}/v1", api_key="none", max_retries=0) as client:
            return client.decisions.with_raw_response.create(
                model="laya",
                input="It is late",
                questions=ASKED[:1],
                prompt_cache_key="k",
                safety_identifier="me",
                extra_body=more,
            )

    plain = await asyncio.to_thread(ask)
    more = await asyncio.to_thread(
        lambda: ask(reason={"method": "input"}, orders=1, truncate="right")
    )
    (sent,), (asked,) = (json.loads(raw.content)["answers"] for raw in (plain, more))

    assert {*sent} == {"type", "name", "probability"}
    assert {*asked} - {*sent} == {"reason", "orders"}
    assert more.parse().answers[0].probability == plain.parse().answers[0].probability
    assert {"x-headlight-ignored", "x-headlight-space"}.isdisjoint(plain.headers)


@pytest.mark.client("openai", "decisions, errors")
async def test_errors_are_those_of_the_client(theirs: AsyncOpenAI) -> None:
    """With the field and the code of OpenAI's API."""
    with pytest.raises(openai.NotFoundError, match='this service has "laya"'):
        await theirs.decisions.create(model="gpt-6-luna", input="a", questions=ASKED)
    with pytest.raises(openai.BadRequestError, match=r"input: it has \d,\d+ tokens") as long:
        await theirs.decisions.create(model="laya", input="parcel " * 2000, questions=ASKED)
    assert (long.value.code, long.value.param) == ("context_length_exceeded", "input")
    untold: list[Any] = [{"type": "choice", "instructions": "", "choices": [{"value": "a"}] * 2}]
    with pytest.raises(openai.BadRequestError, match=r"questions\[0\]\.choices\[1\]"):
        await theirs.decisions.create(model="laya", input="a", questions=untold)
    untold[0]["choices"] = [{"value": "a"}, {"value": "b"}]
    with pytest.raises(openai.BadRequestError, match=r"questions\[0\]\.instructions"):
        await theirs.decisions.create(model="laya", input="a", questions=untold)
