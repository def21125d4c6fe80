"""Answers for people."""

import pytest

from service import show


@pytest.mark.parametrize(("name", "found"), [("L5H11", (5, 11)), ("l0h3", (0, 3))])
def test_a_head_is_named_by_layer_and_number(name: str, found: tuple[int, int]) -> None:
    """As the papers write it."""
    assert show.head(name) == found


@pytest.mark.parametrize("name", ["5.11", "L5", "H11L5", "L-1H2", ""])
def test_anything_else_names_no_head(name: str) -> None:
    """And the refusal shows how it is done."""
    with pytest.raises(ValueError, match="L5H11"):
        show.head(name)


def test_a_service_that_is_not_there_is_said_in_one_line() -> None:
    """Not by a stack of exceptions."""
    with pytest.raises(show.Unreachable, match="no answer from http://127.0.0.1:9"):
        show.ask("http://127.0.0.1:9", {})
