"""Documents in units, and the texts that lack some, without a model."""

import pytest

from model import packing
from service.questions.highlight.passage import DRAWS, Passage, count_draws, make_passage
from service.questions.highlight.question import prune
from service.shapes.work import Outputs, Work

TEXT = "One.  Two. Three. \n"
SPANS = [(0, 4), (6, 10), (11, 17)]


def test_a_unit_goes_with_what_stands_before_the_next() -> None:
    """And the white space at the text's end goes too."""
    one = Passage(TEXT, 0, len(TEXT), SPANS, SPANS, [])
    assert [one.without([unit]) for unit in range(3)] == [
        "Two. Three.",
        "One.  Three.",
        "One.  Two.",
    ]
    assert one.without([0, 2]) == "Two." and one.without([0, 1, 2]) == ""


def test_what_was_not_read_is_in_no_text() -> None:
    """Of a document that was cut, on either side."""
    one = Passage(TEXT, 6, 10, [(6, 10)], [(0, 1)], [])
    assert (one.without([]), one.without([0])) == ("Two.", "")
    both = Passage(TEXT, 6, 17, [(6, 10), (11, 17)], [(0, 1), (1, 2)], [])
    assert (both.without([0]), both.without([1])) == ("Three.", "Two.")


@pytest.mark.parametrize(
    ("order", "share", "expected"),
    [
        ((1, 0, 2), 0.0, "Two."),
        ((1, 0, 2), 0.6, "One.  Two."),
        ((2, 0, 1), 0.7, "Three."),  # the next does not fit, and the last, which would, is weaker
        ((2, 1, 0), 0.7, "Two. Three."),
        ((2, 1, 0), 1.0, "One.  Two. Three."),
    ],
)
def test_a_pruned_text_has_units_until_one_does_not_fit(
    order: tuple[int, ...], share: float, expected: str
) -> None:
    """The strongest at least, in the document's order."""
    one = Passage(TEXT, 0, len(TEXT), SPANS, SPANS, [])
    assert prune(one, order, share) == expected


def test_a_token_is_of_the_unit_of_its_letters() -> None:
    """Not of what stands before it; white space, special tokens and a query are of none."""
    facts = {
        "offsets": [(0, 0), (0, 4), (0, 0), (0, 4), (4, 8), (8, 10), (0, 0)],
        "special": [True, False, True, False, False, False, True],
        "segments": [0, 0, 0, 1, 1, 1, 1],
        "words": [None, 0, None, 0, 1, 2, None],
    }
    work = Work(packing.Sequence([1] * 7), Outputs(), facts=facts)
    for unit in ("sentence", "word", "token"):
        one = make_passage("One. Two\n ", work, unit, most=9)
        assert one.spans == [(0, 4), (5, 8)]
        assert one.owners[:5] == [-1, -1, -1, 0, 1] and one.owners[6] == -1
    assert one.numbers == [(0, 1), (1, 2)]


def test_no_more_sentences_are_looked_for_than_may_be_used() -> None:
    """However many a text has, which is the client's choice."""
    facts = {"offsets": [(0, 0)], "special": [True], "words": [None]}
    work = Work(packing.Sequence([1]), Outputs(), facts=facts)

    one = make_passage("Go. " * 9, work, "sentence", most=4, whole=True)

    assert one.spans == [(0, 3), (4, 7), (8, 11), (12, 15)]


def test_tokens_that_share_a_character_are_one_unit() -> None:
    """As the bytes of an emoji; they are told by their tokens' numbers."""
    facts = {
        "offsets": [(0, 0), (0, 1), (1, 3), (2, 3), (2, 3), (3, 5)],
        "special": [True, False, False, False, False, False],
        "words": [None, 0, 1, 1, 1, 2],
    }
    one = make_passage(
        "a 😀 b", Work(packing.Sequence([1] * 6), Outputs(), facts=facts), "token", most=9
    )
    assert one.spans == [(0, 1), (2, 3), (4, 5)]
    assert one.numbers == [(0, 1), (1, 4), (4, 5)]
    assert one.owners == [-1, 0, 1, 1, 1, 2]


def test_every_other_unit_may_be_drawn() -> None:
    """As many as are marked, no marked one, no draw twice; the same draws whenever asked."""
    spans, seen = [(place, place + 1) for place in range(7)], set[int]()
    for number in range(50):
        one = Passage(f"{number:07}", 0, 7, spans, spans, [])
        drawn = one.draw_others([2, 5])
        assert len({*drawn}) == len(drawn) == DRAWS and drawn == one.draw_others([2, 5])
        assert all(len({*draw}) == 2 for draw in drawn)
        seen |= {unit for draw in drawn for unit in draw}
        assert {*one.draw_others([3])} == {(0,), (1,), (2,), (4,), (5,), (6,)}
    assert seen == {0, 1, 3, 4, 6}


def test_others_without_two_choices_are_not_drawn() -> None:
    """Their scores would have no deviation."""
    assert [count_draws(others, 3) for others in (-1, 0, 3, 4, 5, 1000)] == [
        0,
        0,
        0,
        4,
        DRAWS,
        DRAWS,
    ]
    assert [count_draws(others, 1) for others in (0, 1, 2, 7, 8)] == [0, 0, 2, 7, DRAWS]
