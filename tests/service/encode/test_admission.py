"""What is foreseen of a request before it is read."""

import pytest

from model import packing
from service.encode.admission import Estimate
from service.encode.request import Input
from service.engine.work import Outputs, Work


def outcome(tokens: int, length: int) -> Work:
    """A text that turned out to be so many tokens, of which so many are run."""
    sequence = packing.Sequence([7] * tokens, [0] * tokens)
    return Work(sequence, Outputs(), length=length)


def test_texts_hold_as_many_tokens_by_character_as_those_before_them() -> None:
    """With the two around each; what was cut teaches nothing, and ids are counted."""
    estimate = Estimate(longest=100, most=151)
    for _ in range(200):
        read = [Input("x" * 30), Input(token_ids=[7] * 9)]
        estimate.learn(read, [outcome(12, 12), outcome(9, 9)])
        estimate.learn([Input("x" * 1000)], [outcome(100, 5000)])

    def tokens(*inputs: Input) -> int:
        return estimate.tokens(inputs)[0]

    assert tokens(Input("x" * 60)) == pytest.approx(22, abs=1)
    assert tokens(Input(text="x" * 30, pair="x" * 30)) == pytest.approx(22, abs=1)
    assert tokens(Input("x" * 9000), Input(token_ids=[7] * 51)) == 151
    assert tokens(*[Input("x" * 9000)] * 50) == 151  # one that holds more is refused
    assert tokens(Input(embeddings=[[0.0] * 4])) <= 2
