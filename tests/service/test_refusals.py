"""Errors become refusals: the right code, small, and silent about the input."""

import orjson
import pytest
from pydantic import ValidationError

from model.errors import SequenceTooLong
from service.encode.request import EncodeRequest
from service.refusals import REFUSALS, VALIDATION, Fault, Refused, problem, refusal

SECRET = "canary-7f3a"


def validation_error(body: object) -> ValidationError:
    """What the schema says of a body."""
    with pytest.raises(ValidationError) as error:
        EncodeRequest.model_validate_json(orjson.dumps(body))
    return error.value


def test_a_model_error_gets_its_code_and_an_unknown_one_is_our_fault() -> None:
    """Only what stands in a table is the caller's doing."""
    assert refusal(SequenceTooLong(9, 5)).facts == {"length": 9, "limit": 5}
    assert refusal(RuntimeError(SECRET)).code == "internal"


def test_every_code_named_anywhere_stands_in_the_table() -> None:
    """A code without a status could not be answered."""
    assert {*VALIDATION.values(), "internal", "invalid_type"} <= REFUSALS.keys()


@pytest.mark.parametrize(
    "body",
    [
        {"inputs": [SECRET], SECRET: 1},
        {"inputs": [{"text": 1, "pair": SECRET}]},
        {"inputs": [SECRET], "truncate": SECRET},
        {"inputs": [SECRET], "attention": {"heads": {SECRET: [SECRET]}}},
        {"inputs": [{"embeddings": SECRET}]},
    ],
)
def test_a_refusal_never_repeats_the_input(body: object) -> None:
    """Neither values nor the names of unknown fields."""
    told = problem(refusal(validation_error(body)), "id")

    assert SECRET.encode() not in told


def test_a_refusal_says_where() -> None:
    """Indices and our own field names lead to the place."""
    told = orjson.loads(problem(refusal(validation_error({"inputs": ["a", {"text": 1}]})), "id"))

    assert told["errors"] == [{"loc": ["inputs", 1, "text"], "code": "invalid_type"}]


def test_a_refusal_stays_small() -> None:
    """Ten errors at most, and 4 KiB whatever their places are."""
    many = [Fault(("inputs", index, "x" * 900), "invalid_type") for index in range(99)]

    told = problem(Refused("invalid_type", many), "id")

    assert len(told) <= 4096
    assert 1 <= len(orjson.loads(told)["errors"]) <= 10
