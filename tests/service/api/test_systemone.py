"""TypeSafe's own client, unmodified, and the wire beneath it."""

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import numpy as np
import pytest
import pytest_asyncio
from hypothesis import given
from hypothesis import strategies as st
from laya import Agent
from laya.common import render_options
from safetensors.numpy import load
from typesafe_sdk import (
    AsyncTypeSafeClient,
    Choice,
    Noul,
    RetryPolicy,
    Score,
    TypeSafeClient,
    TypeSafeNotFoundError,
    TypeSafeUnprocessableEntityError,
)
from typesafe_sdk._core.compression import MIN_COMPRESSED_BODY_LENGTH
from typesafe_sdk._core.errors import api_error

from service.api import systemone
from service.questions.decide import MOST_OPTIONS, MOST_QUESTIONS, DecideRequest
from service.shapes.answer import SAFETENSORS
from service.shapes.call import ModelFacts
from service.tables.refusals import REFUSALS, Refused, refusal_of
from tests.conftest import post_of
from tests.laya_models import make_laya, open_library
from tests.served_model import Listen, Outer, Served, serve

PATH, NAME = "/v1/systemone", "all-MiniLM-L6-v2"
FACTS = ModelFacts([NAME], ("decide",), 2, 1 << 21, 64)
(ROUTE,) = systemone.ROUTES
STATE = {"subject": "The refund was refused", "body": "Answer him today.", "n": [1.0, 2, None]}
QUESTIONS: dict[str, Any] = {
    "billing": {"type": "noul", "instructions": "Does the message ask for money back?"},
    "open": {
        "type": "noul",
        "instructions": {"task": "Is it late?"},
        "criteria": {"true": "on its way", "false": ["lost", "broken"]},
    },
    "team": {
        "type": "choice",
        "instructions": "which team answers it",
        "criteria": {"parcels": "lost or late", "money": None, "others": "", "caf\u00e9": {"a": 1}},
    },
    "urgency": {
        "type": "score",
        "instructions": "how urgent",
        "criteria": ["not at all", {"soon": "today"}, "now"],
    },
}
NOUL = {"type": "noul", "instructions": "Is it so?"}


def read(body: Any, **head: str) -> tuple[DecideRequest, dict[str, None]]:
    """The native request of a body, and the fields that were ignored."""
    request = post_of(PATH, **head)
    assert ROUTE.parse
    call = ROUTE.parse(
        body if isinstance(body, bytes) else json.dumps(body).encode(), request, FACTS
    )
    assert isinstance(call.request, DecideRequest)
    return call.request, request.ignored


def refusal(body: Any) -> list[tuple[list[str | int], str, str]]:
    """Where a body is refused, with which code, and why."""
    request = post_of(PATH)
    assert ROUTE.parse
    try:
        ROUTE.parse(json.dumps(body).encode(), request, FACTS)
    except Exception as error:
        word = request.word or ROUTE.api.problem
        told = json.loads(b"".join(word(refusal_of(error), "an-id").pieces))
        return [(each["loc"], each["type"], each["msg"]) for each in told["detail"]]
    raise AssertionError("it was taken")


def asking(question: dict[str, Any], **more: Any) -> dict[str, Any]:
    """A request of one question."""
    return {"state": "a", "questions": {"q": question}, **more}


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=12,
)


@given(st.lists(VALUES) | st.dictionaries(st.text(), VALUES), st.booleans())
def test_a_json_state_is_the_json_of_the_library(state: Any, ascii_only: bool) -> None:
    """Keys in their order, numbers and letters as they were sent."""
    body = json.dumps(asking(NOUL, state=state), ensure_ascii=ascii_only).encode()
    asked, _ = read(body)

    assert asked.state == json.dumps(json.loads(body)["state"], ensure_ascii=False)
    assert asked.turns == isinstance(state, list)


@pytest.mark.parametrize(
    ("sent", "reads"),
    [
        (b'{"b": 1.0, "a": 1}', '{"b": 1.0, "a": 1}'),
        (b"[123456789012345678901234567890, -0, -0.0, 1e3]", None),
        (b"[1e-7, 1E+2, 0.1, 1e22, 1e16, 123456789.123456789]", None),
        (b'["\\u00e9", "\\ud83d\\ude00"]', '["\u00e9", "\U0001f600"]'),
        (b'"a text \\u00e9"', "a text \u00e9"),
        (b'""', ""),
        (b'{"a": {"a": {}}}', '{"a": {"a": {}}}'),
    ],
)
def test_a_state_is_read_as_it_was_sent(sent: bytes, reads: str | None) -> None:
    """1.0 stays 1.0, and no integer is too large."""
    asked, _ = read(b'{"questions": {"q": {"type": "noul"}}, "state": %s}' % sent)

    theirs = json.dumps(json.loads(sent), ensure_ascii=False)
    assert asked.state == (theirs if reads is None else reads)


@pytest.mark.parametrize("name", QUESTIONS)
def test_options_are_those_of_the_library(name: str) -> None:
    """Each with its description, as text or as one line of JSON."""
    sent = QUESTIONS[name]
    (question,) = read(asking(sent))[0].questions
    texts = [
        option.name if option.description is None else f"{option.name}: {option.description}"
        for option in question.options
    ]
    if sent["type"] == "score":
        texts = [f"level {text}" for text in texts]
    theirs = render_options({"t": sent["type"], "crit": sent.get("criteria")})

    if sent["type"] == "noul" and not sent.get("criteria"):
        assert texts == ["false", "true"]  # the model's own words follow
    else:
        assert texts == theirs
    told = sent["instructions"]
    assert question.instructions == (told if isinstance(told, str) else json.dumps(told))


def test_labels_and_order_of_laya_are_followed() -> None:
    """And labels without criteria are names alone."""
    noul = {**NOUL, "labels": {"true": " A ", "false": "B"}, "option_order": [1, 0]}
    (question,) = read(asking(noul))[0].questions
    assert (question.labels, question.order) == (("B", "A"), [1, 0])
    choice = {"type": "choice", "criteria": ["a", "b", "c"], "option_order": [2, 0, 1]}
    (question,) = read(asking(choice))[0].questions
    assert [(one.name, one.description) for one in question.options] == [(n, None) for n in "abc"]
    assert question.order == [2, 0, 1]


def test_what_is_not_known_is_ignored_and_null_is_left_out() -> None:
    """In the request and in its questions; own fields are as they are."""
    body = asking({**NOUL, "criteria": None, "weight": 1}, foo=2, truncate=None, reason=None)
    asked, ignored = read(body)
    assert [*ignored] == ["weight", "foo"] or {*ignored} == {"weight", "foo"}
    assert (asked.truncate, asked.reason, asked.orders, asked.attention) == (None, None, 0, None)
    own = {"truncate": "left", "reason": {"method": "input"}, "orders": 3, "attention": {}}
    asked, _ = read(asking(NOUL, **own))
    assert (asked.truncate, asked.orders) == ("left", 3)
    assert asked.reason and asked.reason.method == "input"
    assert asked.attention and asked.attention.layers == "all"


@pytest.mark.parametrize("instructions", ["", [], {}, None])
def test_empty_instructions_are_none(instructions: Any) -> None:
    """As the model's library has it: not the text of an empty object."""
    (question,) = read(asking({**NOUL, "instructions": instructions}))[0].questions

    assert question.instructions is None


def choice(criteria: Any, **more: Any) -> dict[str, Any]:
    """A request of a choice."""
    return asking({"type": "choice", "criteria": criteria, **more})


def score(criteria: Any) -> dict[str, Any]:
    """A request of a score."""
    return asking({"type": "score", "criteria": criteria})


MANY = [f"n{number}" for number in range(MOST_OPTIONS + 1)]


@pytest.mark.parametrize(
    ("body", "place", "code", "why"),
    [
        (asking({"type": "box"}), "questions.q.type", "out_of_range", "picture"),
        (asking({"type": "point"}), "questions.q.type", "out_of_range", "noul"),
        (asking({}), "questions.q.type", "missing_field", "missing"),
        (asking(NOUL, assets={"a": {}}), "assets", "unknown_field", "changes answers"),
        (asking(NOUL, lang="de"), "lang", "unknown_field", "changes answers"),
        (asking(NOUL, min_confidence=0.5), "min_confidence", "unknown_field", "changes"),
        (asking(NOUL, max_len=2048), "max_len", "unknown_field", "changes answers"),
        (asking(NOUL, head_max_len=9), "head_max_len", "unknown_field", "changes answers"),
        (asking(NOUL, truncate="middle"), "truncate", "out_of_range", "refuse"),
        (asking(NOUL, orders=17), "orders", "out_of_range", "at most 16"),
        (asking(NOUL, reason={"method": "why"}), "reason.method", "out_of_range", "alone"),
        ({"questions": {"q": NOUL}}, "state", "missing_field", "missing"),
        (asking(NOUL, state=None), "state", "missing_field", "missing"),
        (asking(NOUL, state=7), "state", "invalid_type", "an integer"),
        ({"state": "a"}, "questions", "missing_field", "missing"),
        ({"state": "a", "questions": {}}, "questions", "batch_empty", "none"),
        ({"state": "a", "questions": [NOUL]}, "questions", "invalid_type", "a list"),
        (
            {"state": "a", "questions": {f"q{n}": NOUL for n in range(MOST_QUESTIONS + 1)}},
            "questions",
            "batch_too_large",
            "401",
        ),
        (choice(None), "questions.q.criteria", "missing_field", "by name"),
        (choice({}), "questions.q.criteria", "batch_empty", "none"),
        (choice({"a": None}), "questions.q.criteria", "out_of_range", "2 options"),
        (choice(MANY), "questions.q.criteria", "batch_too_large", "255"),
        (choice(dict.fromkeys(MANY)), "questions.q.criteria", "batch_too_large", "255"),
        (choice(["a", "a"]), "questions.q.criteria.1", "out_of_range", "repeats"),
        (choice(["a", 7]), "questions.q.criteria.1", "invalid_type", "an integer"),
        (
            choice({"a": "b: c", "a: b": "c", "d": None}),
            "questions.q.criteria.1",
            "out_of_range",
            "option 0",
        ),
        (choice({"a: b": "", "a": "b"}), "questions.q.criteria.1", "out_of_range", "0"),
        (choice("a"), "questions.q.criteria", "invalid_type", "string"),
        (
            choice(["a", "b"], labels={"true": "a", "false": "b"}),
            "questions.q.labels",
            "out_of_range",
            "noul",
        ),
        (
            choice(["a", "b"], option_order=[0]),
            "questions.q.option_order",
            "out_of_range",
            "0 to 1",
        ),
        (
            choice(["a", "b"], option_order=[0, 0]),
            "questions.q.option_order",
            "out_of_range",
            "once",
        ),
        (score([]), "questions.q.criteria", "batch_empty", "none"),
        (score(MANY), "questions.q.criteria", "batch_too_large", "255"),
        (score({"a": "b"}), "questions.q.criteria", "invalid_type", "list of levels"),
        (score(["a", None]), "questions.q.criteria.1", "invalid_type", "null"),
        (
            asking({**NOUL, "criteria": {"yes": "a"}}),
            "questions.q.criteria",
            "unknown_field",
            "true",
        ),
        (asking({**NOUL, "criteria": ["a"]}), "questions.q.criteria", "invalid_type", "true"),
        (
            asking({**NOUL, "labels": {"true": "a"}}),
            "questions.q.labels.false",
            "missing_field",
            "missing",
        ),
        (
            asking({**NOUL, "labels": {"true": " a", "false": "a "}}),
            "questions.q.labels",
            "out_of_range",
            "differ",
        ),
        (
            asking({**NOUL, "instructions": 7}),
            "questions.q.instructions",
            "invalid_type",
            "integer",
        ),
        (
            {"state": "a", "questions": {"a b": NOUL, "?": {"type": "x"}}},
            "questions.1.type",
            "out_of_range",
            "noul",
        ),
        (
            {"state": "a", "questions": {"a b": NOUL, "?": {"type": "box"}}},
            "questions.1.type",
            "out_of_range",
            "picture",
        ),
    ],
)
def test_each_fault_is_told_with_its_place(body: Any, place: str, code: str, why: str) -> None:
    """A question by its name where that is plain, else by its number: it may be a text."""
    (told,) = refusal(body)

    assert (".".join(map(str, told[0])), told[1]) == (f"body.{place}", code)
    assert why in told[2]


@pytest.mark.parametrize("code", REFUSALS)
def test_the_client_reads_every_refusal(code: str) -> None:
    """Of each status, with where it is; a list of faults is what 422 has alone."""
    refused = Refused.at(code, "questions", "a name", "options", 1, detail="it is so")
    reply = systemone.problem(refused, "an-id", names={"a name": "q"})
    headers = httpx2.Headers([(k.decode(), v.decode()) for k, v in reply.headers])
    error = api_error(reply.status, json.loads(b"".join(reply.pieces)), headers)

    assert error.status == REFUSALS[code].status and error.request_id == "an-id"
    assert "t is so." in str(error)
    if reply.status == 422:
        assert "questions.q.criteria.1: It is so." in str(error)
    whole = systemone.problem(Refused(code), "an-id")
    read_back = api_error(whole.status, json.loads(b"".join(whole.pieces)), headers)
    assert REFUSALS[code].title in str(read_back)


def test_numbers_that_help_stand_in_the_context() -> None:
    """As FastAPI puts them there."""
    refused = Refused.at("sequence_too_long", "state", length=900, limit=512)
    told = json.loads(b"".join(systemone.problem(refused, "an-id").pieces))

    assert told["detail"] == [
        {
            "loc": ["body", "state"],
            "msg": "It has 900 tokens, and the model takes at most 512.",
            "type": "sequence_too_long",
            "ctx": {"length": 900, "limit": 512},
        }
    ]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Laya checkpoint of random weights."""
    return make_laya(tmp_path_factory.mktemp("systemone") / "laya")


@pytest.fixture(scope="module")
def library(folder: Path) -> Agent:
    """What the laya library makes of it."""
    return open_library(folder)


@pytest_asyncio.fixture(scope="module", loop_scope="session")
async def served(folder: Path, listen: Listen, outer: Outer) -> AsyncIterator[Served]:
    """The same, over HTTP."""
    async with serve(folder, "laya", listen, outer) as model:
        yield model


@pytest_asyncio.fixture
async def theirs(served: Served) -> AsyncIterator[AsyncTypeSafeClient]:
    """TypeSafe's asynchronous client."""
    url, once = served.url, RetryPolicy(max_retries=0)
    async with AsyncTypeSafeClient(
        base_url=url, api_key="none", model="laya", retry=once
    ) as client:
        yield client


def near(told: Any, expected: Any) -> None:
    """Hold an answer of the client to one of the library, which rounds to four places."""
    if told.type == "noul":
        assert told.noul == pytest.approx(expected["noul"], abs=6e-5)
        return
    probabilities = {str(name): value for name, value in told.probabilities.items()}
    assert probabilities == pytest.approx(expected["probabilities"], abs=6e-5)
    if told.type == "choice":
        assert told.choice == expected["choice"]
        assert [*probabilities] == [*expected["probabilities"]]
        values, count = [*probabilities.values()], len(probabilities)
        margin = (max(values) - 1 / count) / (1 - 1 / count)
        assert told.confidence == pytest.approx(margin, abs=1e-6)
        return
    assert told.score == pytest.approx(expected["score"], abs=3e-4)


@pytest.mark.client("typesafe-sdk", "synchronous client, zstd")
@pytest.mark.parametrize("compression", ["zstd", False])
@pytest.mark.parametrize("state", [STATE, "Where is my parcel? " * 70, [{"turn": 1}, "It is late"]])
async def test_the_synchronous_client_reads_the_answers_of_the_library(
    served: Served, library: Agent, state: Any, compression: Any
) -> None:
    """Compressed or not; of every type of question at once."""
    settings = {"api_key": "none", "model": "laya", "compression": compression}

    def ask() -> Any:
        with TypeSafeClient(base_url=served.url, **settings) as client:
            return client.system_one(state, QUESTIONS, extra_body={"truncate": "right"})

    told = await asyncio.to_thread(ask)
    expected = library.predict(state, QUESTIONS)["answers"]

    assert told.model == "laya" and [*told.answers] == [*QUESTIONS]
    for name, answer in told.answers.items():
        near(answer, expected[name])
    assert told.usage.input_tokens > 0 and told.usage.output_tokens == 0
    legend = told.scores["urgency"].legend
    assert legend == dict(enumerate(QUESTIONS["urgency"]["criteria"]))


@pytest.mark.client("typesafe-sdk", "asynchronous client, question objects")
async def test_the_asynchronous_client_reads_them_too(
    theirs: AsyncTypeSafeClient, library: Agent
) -> None:
    """With questions as objects, and names that are no plain names."""
    questions = {
        "is it so?": Noul(instructions="Is it late?", criteria={"true": "on its way"}),
        "\u6f22": Choice(instructions="which team answers it", criteria={"a b": None, "c": ""}),
        "?": Score(instructions="how urgent", criteria=["a", "b", "c"]),
    }
    state = "The parcel is lost. " * 60
    assert len(state) > MIN_COMPRESSED_BODY_LENGTH
    told = await theirs.system_one(state, questions)
    plain = {name: question.model_dump() for name, question in questions.items()}
    expected = library.predict(state, plain)["answers"]

    for name, answer in told.answers.items():
        near(answer, expected[name])


@pytest.mark.client("typesafe-sdk", "errors")
async def test_errors_are_those_of_the_client(theirs: AsyncTypeSafeClient) -> None:
    """It shows which question, what is wrong, and the request's id."""
    with pytest.raises(
        TypeSafeUnprocessableEntityError, match=r"questions\.team\.criteria\.1: "
    ) as e:
        await theirs.system_one("a", {"team": {"type": "choice", "criteria": ["a", "a"]}})
    assert e.value.request_id
    with pytest.raises(TypeSafeUnprocessableEntityError, match="state") as long:
        await theirs.system_one("parcel " * 3000, {"q": NOUL})
    assert long.value.body["detail"][0]["type"] == "sequence_too_long"
    assert long.value.body["detail"][0]["ctx"]["limit"] < 512
    with pytest.raises(TypeSafeUnprocessableEntityError, match=r"questions\.q\.instructions: "):
        await theirs.system_one("a", {"q": {"type": "choice", "criteria": ["a", "b"]}})
    with pytest.raises(TypeSafeNotFoundError, match='this service has "laya"'):
        await theirs.system_one("a", {"q": NOUL}, model="jev-latest")


async def test_a_model_without_a_head_answers_404(address: str) -> None:
    """It names what the model can do."""
    once = RetryPolicy(max_retries=0)
    async with AsyncTypeSafeClient(base_url=address, api_key="none", retry=once) as client:
        with pytest.raises(TypeSafeNotFoundError, match="Decisions need a checkpoint"):
            await client.system_one("a", {"q": NOUL}, model=NAME)


@pytest.mark.client("typesafe-sdk", "reason, orders, attention as extra_body")
async def test_own_fields_stand_in_each_answer_and_nowhere_unasked(
    theirs: AsyncTypeSafeClient,
) -> None:
    """The client reads an answer with them as one without."""
    own = {"reason": {"method": "alone"}, "orders": 2, "attention": {"layers": [-1]}}
    questions = {"team": QUESTIONS["team"]}
    plain = await theirs.system_one("The parcel is late", questions)
    more = await theirs.system_one("The parcel is late", questions, extra_body=own)
    sent = json.loads(plain.raw_http_response.content)["answers"]["team"]
    asked = json.loads(more.raw_http_response.content)["answers"]["team"]

    assert more.answers == plain.answers
    assert {*sent} == {"type", "choice", "confidence", "probabilities"}
    assert {*asked} - {*sent} == {"reason", "orders", "attention"}
    rows = next(iter(asked["attention"]["layers"].values()))
    assert len(rows[0]) == len(QUESTIONS["team"]["criteria"])  # heads, markers, tokens
    assert len(rows[0][0]) == len(asked["attention"]["tokens"])


async def test_one_option_says_why_it_has_no_reason(theirs: AsyncTypeSafeClient) -> None:
    """Null, and a sentence."""
    one = {"level": {"type": "score", "instructions": "How?", "criteria": ["only"]}}
    told = await theirs.system_one("a", one, extra_body={"reason": {"method": "input"}})
    answer = json.loads(told.raw_http_response.content)["answers"]["level"]

    assert answer["reason"] is None and "one option" in answer["reason_missing"]


async def test_a_file_has_the_answers_in_its_metadata_and_the_rows_as_arrays(
    served: Served,
) -> None:
    """Each by the number of its question; what the client does not accept is refused."""
    body = {"state": "The parcel is late", "questions": QUESTIONS, "attention": {"layers": [0, -1]}}
    plain = await served.http.post(PATH, json=body)
    file = await served.http.post(PATH, json=body, headers={"accept": SAFETENSORS})
    arrays = load(file.content)
    length = int.from_bytes(file.content[:8], "little")
    told = json.loads(json.loads(file.content[8 : 8 + length])["__metadata__"]["headlight"])

    assert file.headers["content-type"] == SAFETENSORS
    expected = plain.json()
    for number, answer in enumerate(expected["answers"].values()):
        for layer, rows in answer["attention"].pop("layers").items():
            np.testing.assert_array_equal(
                arrays.pop(f"{number}.attention.L{layer}"), np.array(rows, np.float32)
            )
    assert not arrays and told == expected
    refused = await served.http.post(PATH, json=body, headers={"accept": "text/html"})
    assert (refused.status_code, "Accept header" in refused.json()["detail"]) == (406, True)


async def test_what_is_cut_is_told_in_the_answer_and_in_the_header(served: Served) -> None:
    """Of the question that it was cut for."""
    body = {"state": "parcel " * 900, "questions": {"q": NOUL}, "truncate": "right"}
    answer = await served.http.post(PATH, json=body)

    cut = answer.json()["answers"]["q"]["truncated"]
    assert cut["state_tokens"] > cut["state_tokens_kept"] > 0
    assert answer.headers["x-headlight-truncated"] == "1"
    assert "x-headlight-space" not in answer.headers  # it has no vectors


async def test_pictures_in_several_parts_are_refused(served: Served) -> None:
    """The type of the body is named."""
    refused = await served.http.post(PATH, files={"request": b"{}", "asset-0": b"png"})

    assert refused.status_code == 415
    assert "multipart/form-data" in refused.json()["detail"]


async def test_the_route_is_counted_by_its_name(served: Served) -> None:
    """As every other."""
    await served.http.post(PATH, json={"state": "a", "questions": {"q": NOUL}})
    served.replica.observer.report()
    page = served.replica.freeze_metrics(False)().decode()

    counts = [line for line in page.splitlines() if line.startswith("headlight_requests_total{")]
    assert any(f'route="{PATH}"' in line and not line.endswith(" 0.0") for line in counts)
