"""model/heads/relations.py: which head links words, and the controls that withhold the label."""

import torch

from model.heads.relations import (
    NO_CONTROLS,
    NOT_BETTER,
    Link,
    Verdict,
    judge_relation,
    most_attended_words,
    word_spans,
    words_of_tokens,
)

OFFSETS = (2, 3, 5, 7, 11)  # words from the one asked about to the right one


def link(number: int, *right: bool, control: bool = False, offset: int | None = None) -> Link:
    """How two or more heads answered in a sentence that stands for itself."""
    offset = OFFSETS[number % len(OFFSETS)] if offset is None else offset
    return Link(control, f"line {number}", 13 + offset, offset, right)


def pairs(*right: tuple[bool, bool]) -> list[Link]:
    """How one head answered in swapped pairs: where the subject is right, and where the object."""
    return [
        Link(True, f"pair {number}", place, place - 13 - number, (answered[place == 4],))
        for number, answered in enumerate(right)
        for place in (1, 4)
    ]


def test_words_and_their_tokens_are_found_by_characters() -> None:
    """A word with an apostrophe is one word, a full stop another; special tokens have none."""
    words = word_spans("He didn't.")

    assert words == [(0, 2), (3, 9), (9, 10)]
    offsets = [(0, 0), (0, 2), (3, 7), (7, 9), (9, 10), (0, 0)]
    special = [True, False, False, False, False, True]
    assert words_of_tokens(words, offsets, special) == [None, 0, 1, 1, 2, None]


def test_tokens_that_span_words_or_leave_one_out_give_no_words() -> None:
    """Then no map can be read at the level of words."""
    words = [(0, 2), (3, 9)]

    assert words_of_tokens(words, [(0, 5), (5, 9)], [False, False]) is None
    assert words_of_tokens(words, [(0, 2)], [False]) is None


def test_an_answer_sums_over_the_pieces_of_a_word_and_skips_special_tokens() -> None:
    """Two pieces of 0.2 outweigh one of 0.3; the word itself and the ends are no answers."""
    row = torch.tensor([0.9, 0.8, 0.3, 0.2, 0.2, 0.9])
    words = [None, 0, 1, 2, 2, None]

    assert most_attended_words(row.expand(1, 6, 6), words, 0).tolist() == [2]


def test_an_answer_is_the_mean_over_the_pieces_of_the_word_asked_about() -> None:
    """Not what one piece says: 0.5 and 0.5 outweigh 0.1 and 0.8, which outweigh 0.4 and 0.4."""
    maps = torch.zeros(2, 4, 4)
    maps[:, :2, 2] = torch.tensor([[0.5, 0.5], [0.4, 0.4]])
    maps[:, :2, 3] = torch.tensor([0.1, 0.8])

    assert most_attended_words(maps, [0, 0, 1, 2], 0).tolist() == [1, 2]


def test_a_head_that_looks_at_several_words_alike_gives_no_answer() -> None:
    """Else the first word would be the answer of every head that looks nowhere."""
    assert most_attended_words(torch.full((1, 4, 4), 0.25), [None, 0, 1, 2], 1).tolist() == [-1]


def test_a_head_made_to_link_words_is_found() -> None:
    """With its score, the best fixed offset's, and how many sentences spoke."""
    items = [link(n, n % 2 == 0, True) for n in range(10)]
    controls = [link(n, False, n != 3, control=True) for n in range(10)]

    found = judge_relation(items + controls)

    assert found == Verdict(1, None, 1, 0.9, 0.3, 0.2, 2, 10, 10)


def test_a_head_that_follows_a_fixed_offset_is_not_labelled() -> None:
    """It is right in all sentences to choose by, and in as many controls as the offset is."""
    items = [link(n, True, offset=2) for n in range(10)]
    controls = [link(n, n % 5 == 0, control=True) for n in range(10)]

    found = judge_relation(items + controls)

    assert (found.head, found.reason, found.candidate) == (None, NOT_BETTER, 0)
    assert (found.score, found.baseline) == (0.2, 0.2)


def test_ten_points_above_the_baseline_are_enough_and_nine_are_not() -> None:
    """0.3 against 0.2 is a head; 0.29 is none."""
    items = [link(n, True) for n in range(10)]

    def judged(right: int) -> int | None:
        return judge_relation(items + [link(n, n < right, control=True) for n in range(100)]).head

    assert (judged(30), judged(29)) == (0, None)


def test_a_head_is_not_chosen_by_the_controls() -> None:
    """One that is right in all of them, but not in the sentences to choose by, is not looked at."""
    items = [link(n, True, False) for n in range(10)]
    controls = [link(n, False, True, control=True) for n in range(10)]

    found = judge_relation(items + controls)

    assert (found.head, found.candidate, found.score) == (None, 0, 0.0)


def test_without_controls_there_is_no_label() -> None:
    """However good the head is; nor with controls of a single group."""
    perfect = [link(n, True) for n in range(10)]
    lone = [Link(True, "one", 1, -2, (True,)), Link(True, "one", 4, 1, (True,))]

    assert (judge_relation(perfect).head, judge_relation(perfect).reason) == (None, NO_CONTROLS)
    assert (judge_relation(lone).head, judge_relation(lone).reason) == (None, NO_CONTROLS)


def test_a_head_that_always_names_the_subject_is_no_coreference_head() -> None:
    """It beats every fixed offset, but a head blind to the swap gets half of swapped pairs."""
    found = judge_relation(pairs(*[(True, False)] * 20))

    assert (found.head, found.reason) == (None, NOT_BETTER)
    assert (found.score, found.baseline, found.threshold) == (0.5, 0.5, 0.6)
    assert (found.items, found.controls) == (20, 20)


def test_a_head_that_follows_the_swap_is_found() -> None:
    """On the half of the pairs that it was not chosen by."""
    found = judge_relation(pairs(*[(True, True), (True, False), (True, True), (True, True)] * 4))

    assert (found.head, found.score, found.baseline) == (0, 0.75, 0.5)
