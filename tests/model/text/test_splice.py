"""Labels and a text in one sequence, where a tokenizer drops words."""

import pytest
from tokenizers import Tokenizer as Library
from tokenizers import models, normalizers

from model.errors import LabelUnreadable
from model.text.frame import Token
from model.text.pieces import exhaust
from model.text.splice import PIECE, Splicer
from model.text.tokenizer import Tokenizer

WORDS = ("[UNK]", "the", "dog", "person", "<<ENT>>", "<<SEP>>")
MOST = 10_000


@pytest.fixture
def splicer() -> Splicer:
    """One whose tokenizer makes nothing of an x."""
    ids = {word: place for place, word in enumerate(WORDS)}
    library = Library(models.WordLevel(ids, unk_token="[UNK]"))
    library.normalizer = normalizers.Replace("x", "")
    marks = (Token(ids[mark], mark) for mark in WORDS[-2:])
    return Splicer(Tokenizer(library), *marks, longest=MOST)


def test_a_word_without_a_token_is_none(splicer: Splicer) -> None:
    """Those behind it keep their places in the text."""
    (read,) = exhaust(splicer.reading(["person"], ["the x dog"], MOST, "refuse"))

    assert read.spans == [(0, 3), (6, 9)]
    assert [read.tokenized.tokens[place] for place in read.words] == ["the", "dog"]
    assert [read.tokenized.offsets[place] for place in read.words] == read.spans
    assert [read.tokenized.tokens[place] for place in read.labels] == ["<<ENT>>"]


def test_a_label_without_a_token_is_refused_by_its_place(splicer: Splicer) -> None:
    """Else the labels behind it would be taken for others."""
    with pytest.raises(LabelUnreadable) as refused:
        exhaust(splicer.reading(["person", "x"], ["the dog"], MOST, "refuse"))
    assert (refused.value.index, refused.value.marked) == (1, False)


def test_a_long_text_is_read_in_pieces(splicer: Splicer) -> None:
    """With a pause behind each, and the same words."""
    reading = splicer.reading(["person"], ["the dog " * PIECE], MOST, "refuse")
    pauses = 0
    while True:
        try:
            next(reading)
            pauses += 1
        except StopIteration as end:
            (read,) = end.value
            break

    assert pauses == 3  # behind the labels, and behind each half of the text
    assert len(read.words) == 2 * PIECE and read.spans[-1] == (8 * PIECE - 4, 8 * PIECE - 1)
