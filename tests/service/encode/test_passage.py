"""Documents in units, and the texts that lack some, without a model."""

from model import packing
from service.encode.passage import DRAWS, Passage, passage
from service.engine.work import Outputs, Work

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


def test_tokens_that_share_a_character_are_one_unit() -> None:
    """As the bytes of an emoji; they are told by their tokens' numbers."""
    facts = {
        "offsets": [(0, 0), (0, 1), (1, 3), (2, 3), (2, 3), (3, 5)],
        "special": [True, False, False, False, False, False],
        "words": [None, 0, 1, 1, 1, 2],
    }
    one = passage("a 😀 b", Work(packing.Sequence([1] * 6), Outputs(), facts=facts), "token")
    assert one.spans == [(0, 1), (2, 3), (4, 5)]
    assert one.numbers == [(0, 1), (1, 4), (4, 5)]
    assert one.owners == [-1, 0, 1, 1, 1, 2]


def test_every_unit_may_be_drawn() -> None:
    """As many each time and none twice; the last one too; the same draws whenever asked."""
    spans = [(place, place + 1) for place in range(4)]
    seen, last = set[int](), set[int]()
    for number in range(50):
        one = Passage(f"{number:04}", 0, 4, spans, spans, [])
        draws = [*one.draws(2)]
        assert len(draws) == DRAWS and draws == [*one.draws(2)]
        assert all(len({*draw}) == 2 for draw in draws)
        seen |= {unit for draw in draws for unit in draw}
        last |= {draw[0] for draw in one.draws(1)}
    assert seen == last == {0, 1, 2, 3}
