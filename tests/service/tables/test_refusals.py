"""Errors become refusals: the right code, small, and silent about the input."""

from typing import Any

import orjson
import pytest
from pydantic import ValidationError

from model.errors import SequenceTooLong
from service.questions.encode import EncodeRequest
from service.tables.refusals import REFUSALS, Refused, problem_details, refusal_of
from service.tables.wording.schema import ERROR_CODES
from service.tables.wording.words import LONGEST_NAME, Fault, suggest_name

SECRET, NUMBER = "canary-7f3a", 7355608


def validation_error(body: object) -> ValidationError:
    """What the schema says of a body."""
    with pytest.raises(ValidationError) as error:
        EncodeRequest.model_validate_json(orjson.dumps(body))
    return error.value


def test_a_model_error_gets_its_code_and_an_unknown_one_is_our_fault() -> None:
    """Only what stands in a table is the caller's doing."""
    assert refusal_of(SequenceTooLong(9, 5)).facts == {"length": 9, "limit": 5}
    assert refusal_of(RuntimeError(SECRET)).code == "internal"


def test_every_code_named_anywhere_stands_in_the_table() -> None:
    """A code without a status could not be answered."""
    assert {*ERROR_CODES.values(), "internal", "invalid_type"} <= REFUSALS.keys()


@pytest.mark.parametrize(
    ("body", "loc"),
    [
        (r'{"inputs":["ok","x\udc4d"]}', ("inputs", 1)),
        (r'{"inputs":["ok","\ud84d\u0041"]}', ("inputs", 1)),
        ('{"inputs":["\u00e9\u00e9",\n{"text":"\\\\u \\" \\ud800 x"}]}', ("inputs", 1, "text")),
        (r'{"inputs":["ok"],"pooled":{"mode":"\ud800"}}', ("pooled", "mode")),
        (r'{"inputs":["ok"],"canary-7f3a":"\ud800"}', ()),
        (r'{"inputs":["ok"],"\ud800":1}', ()),
        (r'"\udc00"', ()),
    ],
)
def test_half_a_surrogate_pair_is_named_by_its_place(body: str, loc: tuple[object, ...]) -> None:
    """The parser stops there and knows lines and columns alone; a key has no place."""
    with pytest.raises(ValidationError) as error:
        EncodeRequest.model_validate_json(body.encode())

    (fault,) = refusal_of(error.value).faults
    assert (fault.code, fault.loc) == ("invalid_text", loc)


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [SECRET], SECRET: 1},
        {"inputs": [{"text": 1, "pair": SECRET}]},
        {"inputs": [SECRET], "truncate": SECRET},
        {"inputs": [SECRET], "attention": {"heads": {SECRET: [SECRET]}}},
        {"inputs": [{"embeddings": SECRET}]},
        {"inputs": [SECRET], "layers": SECRET, "pooled": {"mode": SECRET}, "tokens": NUMBER},
        {"inputs": [SECRET], "gates": [{"layer": SECRET, "head": 0, "scale": NUMBER}]},
        {"inputs": [SECRET], "attention": {"form": "top", "k": -NUMBER, "rows": [NUMBER] * 2}},
        {"inputs": [SECRET], f"inputs {SECRET}": 1, f"{SECRET}s": 1},
    ],
)
def test_a_refusal_never_repeats_the_input(body: object) -> None:
    """Neither values, nor numbers, nor names of unknown fields that may be a key or a text."""
    told = problem_details(refusal_of(validation_error(body)), "id")

    assert SECRET.encode() not in told and str(NUMBER).encode() not in told


def test_an_unknown_field_is_named_where_its_name_is_plain() -> None:
    """Of any other the length is said."""
    for name, shown in (
        ("poled", '"poled"; did you mean "pooled"?'),
        ("a text", "of 6 characters."),
    ):
        (fault,) = refusal_of(validation_error({"inputs": ["a"], name: 1})).faults
        assert fault.detail.startswith(f"unknown field {shown}")


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (
            {"pooled": {"mode": "average"}},
            'pooled.mode: expected "model", "mean", "cls", "max", "last", "mean_sqrt_len" or '
            '"weightedmean", received a string of 7 characters.',
        ),
        (
            {"gates": [{"layer": 0, "head": 0}]},
            "gates[0].scale: this field is missing; it takes a number.",
        ),
        (
            {"gates": [{"layer": 0, "head": 0, "scale": 101}]},
            "gates[0].scale: expected a number of at most 100.",
        ),
    ],
    ids=str,
)
def test_a_refusal_says_what_is_expected_and_what_came(body: Any, detail: str) -> None:
    """Types and allowed values of the place; kind and size; the nearest name, if one is near."""
    told = orjson.loads(
        problem_details(refusal_of(validation_error({"inputs": ["a"]} | body)), "id")
    )

    assert told["detail"] == detail


@pytest.mark.parametrize(
    ("body", "detail"),
    [
        (b'{"inputs":\n["a",]}', "A value is missing after a comma at line 2 column 6."),
        (b'{"inputs":["a"', "The body ends within a list at line 1 column 14."),
        (b'{"inputs":["a"]} {', "Expected nothing more after the value at line 1 column 18."),
    ],
)
def test_what_is_no_json_is_refused_with_its_line_and_column(body: bytes, detail: str) -> None:
    """And with what is wrong there."""
    with pytest.raises(ValidationError) as error:
        EncodeRequest.model_validate_json(body)

    assert orjson.loads(problem_details(refusal_of(error.value), "id"))["detail"] == detail


def test_of_many_faults_three_are_put_into_words() -> None:
    """The others are counted."""
    faults = [Fault(("inputs", index), "invalid_type", f"wrong {index}") for index in range(7)]

    told = orjson.loads(problem_details(Refused("invalid_type", faults), "id"))

    assert told["detail"] == (
        "inputs[0]: wrong 0. inputs[1]: wrong 1. inputs[2]: wrong 2. The errors name 4 more."
    )


def test_a_name_is_suggested_where_one_is_clearly_nearest() -> None:
    """Whatever its case; neither of two alike, nor anything for a name too long to be misspelt."""
    names = ("layers", "heads", "float16", "float32")

    assert suggest_name("LAYER", names) == '; did you mean "layers"?'
    assert (
        suggest_name("float64", names)
        == suggest_name("text", names)
        == suggest_name(7, names)
        == ""
    )
    assert suggest_name("layers" * LONGEST_NAME, names) == ""


def test_a_refusal_says_where() -> None:
    """Indices and our own field names lead to the place."""
    told = orjson.loads(
        problem_details(refusal_of(validation_error({"inputs": ["a", {"text": 1}]})), "id")
    )

    assert told["errors"] == [{"loc": ["inputs", 1, "text"], "code": "invalid_type"}]


def test_a_refusal_stays_small() -> None:
    """Ten errors at most, and 4 KiB whatever their places are."""
    many = [Fault(("inputs", index, "x" * 900), "invalid_type") for index in range(99)]

    told = problem_details(Refused("invalid_type", many), "id")

    assert len(told) <= 4096
    assert 1 <= len(orjson.loads(told)["errors"]) <= 10
