"""How a request names layers, heads and hidden states."""

import pytest

from service.pipeline.find.heads import chosen_heads, chosen_hidden_states
from service.shapes.inputs import Attention


@pytest.mark.parametrize(
    ("asked", "named"),
    [
        ({}, {0: (0, 1, 2), 1: (0, 1, 2)}),
        ({"layers": [1], "heads": [2, 0]}, {1: (0, 2)}),
        ({"heads": {"1": [2], "0": [1]}}, {0: (1,), 1: (2,)}),
        ({"layers": [1], "heads": {"1": [2]}}, {1: (2,)}),
        ({"layers": [-1], "heads": [2]}, {1: (2,)}),
        ({"layers": [1, -2]}, {0: (0, 1, 2), 1: (0, 1, 2)}),
        ({"heads": {"-1": [2], "0": [1]}}, {0: (1,), 1: (2,)}),
        ({"layers": [-1], "heads": {"1": [2]}}, {1: (2,)}),
    ],
)
def test_heads_are_named_by_layer(asked: dict[str, object], named: dict[int, object]) -> None:
    """All of them, the same of every layer, or some of each; layers count from either end."""
    assert chosen_heads(Attention.model_validate(asked), 2, 3) == named


@pytest.mark.parametrize(
    "asked",
    [
        {"layers": [2]},
        {"layers": [0, 0]},
        {"heads": [3]},
        {"heads": {"01": [1]}},
        {"heads": {"-3": [1]}},
        {"heads": {"-1": [1], "1": [1]}},
        {"heads": {"-0": [1]}},
        {"layers": [-3]},
        {"layers": [1, -1]},
        {"heads": [-1]},
        {"layers": [0], "heads": {"1": [2]}},
        {"layers": []},
        {"heads": []},
    ],
)
def test_a_head_that_does_not_exist_is_an_index_error(asked: dict[str, object]) -> None:
    """Nothing is guessed or left out."""
    with pytest.raises(IndexError):
        chosen_heads(Attention.model_validate(asked), 2, 3)


def test_hidden_states_count_from_either_end() -> None:
    """Of 2 layers there are 3 states, and -1 is the last."""
    assert chosen_hidden_states([0, -1], 2) == {0, 2}
