"""What is said of probabilities, and which questions are refused before anything is read."""

import math

import numpy as np
import pytest

from service.pipeline.replica import Replica
from service.questions.decide import (
    MOST_OPTIONS,
    MOST_QUESTIONS,
    DecideRequest,
    DecisionOption,
    DecisionQuestion,
)
from service.questions.decide.asked import count_orders, draw_orders
from service.questions.decide.question import measure_confidence
from service.tables.refusals import Refused

Fields = dict[str, object]


def question(*names: str, **more: object) -> DecisionQuestion:
    """A question with options of these names."""
    fields: Fields = {"name": "q", "type": "choice", "instructions": "Which?", **more}
    return DecisionQuestion(options=[DecisionOption(name=name) for name in names], **fields)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("kind", "probabilities", "expected"),
    [
        ("choice", [0.25] * 4, 0.0),
        ("choice", [0.0, 1.0], 1.0),
        ("choice", [0.7, 0.2, 0.1], (0.7 - 1 / 3) / (2 / 3)),
        ("score", [1.0], 1.0),
        ("score", [0.1, 0.8, 0.1], 1 - 0.2 / (2 / 3)),
        ("score", [0.5, 0.0, 0.5], 0.0),
        ("score", [0.2, 0.3, 0.5], 1 - (2 * 0.2 + 0.3) / 1),
    ],
)
def test_confidence_is_by_typesafes_formulas(
    kind: str, probabilities: list[float], expected: float
) -> None:
    """0 of equal ones, 1 of a certain one; of levels, further ones count more."""
    names = [str(place) for place in range(len(probabilities))]
    asked = question(*names, type=kind)

    told = measure_confidence(asked, np.array(probabilities))

    assert told == pytest.approx(expected, abs=1e-12)


@pytest.mark.parametrize("options", [1, 2, 3, 4, 5, 60])
def test_other_orders_are_distinct_and_no_more_than_there_are(options: int) -> None:
    """And the same in each call."""
    asked = question(*map(str, range(options)))

    drawn = draw_orders(asked, 16)

    assert len({*map(tuple, drawn)}) == len(drawn) == count_orders(asked, 16)
    assert len(drawn) == min(16, math.factorial(options) - 1)
    assert all(sorted(order) == [*range(options)] != [*order] for order in drawn)
    assert draw_orders(asked, 16) == drawn


@pytest.mark.parametrize(
    ("questions", "code"),
    [
        ([question("a")], "out_of_range"),
        ([question(type="score")], "out_of_range"),
        ([question(*map(str, range(MOST_OPTIONS + 1)))], "batch_too_large"),
        ([question("a", "b")] * (MOST_QUESTIONS + 1), "batch_too_large"),
        ([], "batch_empty"),
        ([question("a", "b")], "task_not_found"),
    ],
    ids=["one", "none", "options", "questions", "empty", "model"],
)
def test_a_question_that_cannot_be_asked_is_refused(
    replica: Replica, questions: list[DecisionQuestion], code: str
) -> None:
    """Before the state is read; the last by a model that decides nothing."""
    with pytest.raises(Refused) as refused:
        replica.gateway.question(DecideRequest(state="It rains", questions=questions))

    assert refused.value.code == code
