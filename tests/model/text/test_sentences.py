"""Where sentences stand in texts of several scripts and layouts."""

import pytest

from model.text.sentences import find_sentences

TEXTS = {
    "ends": ["It is 3.5 km.", "Is it? (Yes!)", "“So.” He left…", "Good"],
    "the pronoun is no initial": ["So do I.", "All do."],
    "abbreviations and initials": ["Dr. J. Lee, i.e. the author, left.", "Why?"],
    "a small letter goes on": ["“Stop!” he said.", "So did I.", "All did."],
    "a wrapped line goes on": ["The cat\r\nsat on it.", "It slept."],
}


def parts(text: str) -> list[str]:
    """The sentences of a text."""
    return [text[start:end] for start, end in find_sentences(text)]


@pytest.mark.parametrize("name", TEXTS)
def test_joined_by_white_space_they_are_found_again(name: str) -> None:
    """With the white space of any width between them."""
    if name == "ends":
        joined = "It is 3.5 km. Is it? (Yes!) Good"
        assert parts(joined) == ["It is 3.5 km.", "Is it?", "(Yes!)", "Good"]
    else:
        assert parts("  ".join(TEXTS[name])) == TEXTS[name]


def test_scripts_without_spaces_end_at_their_own_stops() -> None:
    """With the brackets that close behind them."""
    assert parts("犬が来た。「行くか？」 はい。end") == [
        "犬が来た。",
        "「行くか？」",
        "はい。",
        "end",
    ]


def test_empty_lines_headings_and_lists_end_them() -> None:
    """Of either kind of line end."""
    text = "# A title\r\n\r\nOne line\nand another\n- first\n- second 😀\n2. third"
    assert parts(text) == [
        "# A title",
        "One line\nand another",
        "- first",
        "- second 😀",
        "2. third",
    ]


def test_white_space_has_none() -> None:
    """Nor has an empty text."""
    assert list(find_sentences("")) == list(find_sentences(" \r\n\n\t")) == []


def test_a_long_run_of_stops_takes_no_longer_than_its_length() -> None:
    """Else these 200,000 characters would take minutes."""
    assert len(list(find_sentences("." * 200_000))) == 1
    assert len(list(find_sentences("a. " * 50_000))) == 1
