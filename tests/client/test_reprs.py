"""What a notebook shows of an answer: shapes and tokens, and never a screen of numbers."""

from typing import Any

import numpy as np
import pytest

from headlight_client.reprs import shorten

LONGEST = 700  # characters of an answer's text


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (np.zeros((2, 3), np.float32), "float32(2, 3)"),
        (["[CLS]", None, "well"], "[[CLS] ? well]"),
        (
            [f"t{i}" for i in range(13)],
            "[" + " ".join(f"t{i}" for i in range(12)) + " ... 13 in all]",
        ),
        (["two words", "b"], "['two words', 'b']"),
        ([1, 2, 3, 4], "[1, 2, 3, ... 4 in all]"),
        ((0, 5), "(0, 5)"),
        ({(0, 5): np.zeros(2), "words": [1]}, "{(0, 5): float64(2,)}"),
        (1 / 3, "0.3333"),
        ("x" * 61, f"'{'x' * 57}...'"),
        (True, "True"),
    ],
    ids=str,
)
def test_a_value_is_shown_in_few_characters(value: Any, shown: str) -> None:
    """Whole where it is short."""
    assert shorten(value) == shown


async def test_an_answer_shows_its_tokens_and_shapes(call: Any, address: str) -> None:
    """For each kind of question, and for many inputs."""
    text, options = "All is well", {"attention": {"heads": {"0": [5]}}, "layers": [0]}

    told = await call(address, "encode", [text] * 9, **options)
    many = await call(address, "encode", [text], attention={"form": "stats"})
    alike = await call(address, "similarity", text, [text, "It rains"], form="top")

    assert "tokens=[[CLS] all is well [SEP]], layers={0: float32(5, 384)}" in repr(told.items[0])
    assert "maps={(0, 5): float32(5, 5)}" in repr(told.items[0].attention)
    assert "... 9 in all], pooled=float32(9, 384)" in repr(told)
    assert "Pairs(left=" in repr(alike.right[0])
    for answer in (told.items[0], many, many.items[0], alike, alike.right[0]):
        assert len(repr(answer)) < LONGEST, repr(answer)
    assert len(repr(told)) < 3 * LONGEST
