"""How alike two models find texts: against a count by hand, and what leaves the window."""

import math

import numpy as np
import pytest
from scipy.stats import pearsonr

from service.encode.likened import FEWEST, MOST_TEXTS, NEAREST, Array, Pair, Window, liken


def drawn(texts: int, width: int, seed: int) -> Array:
    """Vectors, (texts, width) float32."""
    return np.random.default_rng(seed).normal(size=(texts, width)).astype(np.float32)


def test_a_model_that_turns_and_stretches_every_vector_finds_the_same() -> None:
    """Likeness knows angles alone, and the spaces may differ in size."""
    own = drawn(37, 13, 1)
    turned = np.linalg.qr(drawn(17, 13, 2))[0].T  # (13, 17), its rows at right angles
    other = 7 * own @ turned

    told = liken(map(Pair, own, other))

    assert told.correlation == pytest.approx(1) and told.overlap == 1


def test_both_numbers_are_those_of_a_count_by_hand() -> None:
    """Of vectors that have nothing to do with each other but a part."""
    texts = 41
    own, other = drawn(texts, 13, 3), drawn(texts, 19, 4)
    other[:, :13] += own

    told = liken(map(Pair, own, other))

    def cosine(one: Array, two: Array) -> float:
        one, two = one.astype(float), two.astype(float)
        return float(one @ two / math.sqrt((one @ one) * (two @ two)))

    def nearest(rows: Array, text: int) -> set[int]:
        rest = [each for each in range(texts) if each != text]
        return {*sorted(rest, key=lambda each: -cosine(rows[text], rows[each]))[:NEAREST]}

    pairs = [(i, j) for i in range(texts) for j in range(i)]
    likenesses = [[cosine(rows[i], rows[j]) for i, j in pairs] for rows in (own, other)]
    shared = [len(nearest(own, text) & nearest(other, text)) for text in range(texts)]
    assert told.correlation == pytest.approx(pearsonr(*likenesses).statistic)
    assert told.overlap == pytest.approx(sum(shared) / texts / NEAREST)
    assert 0.2 < told.correlation < 0.9 and 0.3 < told.overlap < 0.9


def test_nothing_is_told_of_a_few_texts_or_of_a_model_that_finds_all_alike() -> None:
    """Neither number, or not the one that cannot be told; a vector without length is like none."""
    own = drawn(FEWEST, 13, 5)
    apart = np.eye(FEWEST, dtype=np.float32) + np.float32(0.3)  # all pairs at one angle

    few = liken(map(Pair, own[1:], own[1:]))
    alike = [np.ones_like(own), np.zeros_like(own), own[:1] * np.abs(own[:, :1]), apart]
    alike += [drawn(1, 13, seed).repeat(FEWEST, axis=0) for seed in range(20)]
    told = [liken(map(Pair, own, one)) for one in alike]
    both = [liken(map(Pair, one, one)) for one in alike]

    assert few == (None, None)
    assert [each.correlation for each in told + both] == [None] * 48
    assert all(each.overlap is not None and 0 <= each.overlap < 1 for each in told)


def test_a_correlation_is_never_beyond_one() -> None:
    """Of a model and one that names its axes the other way round, for many texts."""
    for seed in range(200):
        own = drawn(FEWEST, 13, seed)
        told = liken(map(Pair, own, own[:, ::-1])).correlation
        assert told == pytest.approx(1, abs=1e-12) and told <= 1


def test_rounding_does_not_order_texts_that_are_equally_near() -> None:
    """A model that has three vectors for all texts agrees with itself, scaled."""
    for seed in range(20):
        own = drawn(3, 13, seed)[np.random.default_rng(seed).integers(0, 3, 41)]

        assert liken(map(Pair, own, own * np.float32(3))).overlap == 1


def test_the_window_holds_the_last_texts_and_each_once() -> None:
    """The oldest leave; one that comes again is young again."""
    own = drawn(MOST_TEXTS + 3, 13, 6)
    window = Window()
    pairs = [(str(text), Pair(vector, vector)) for text, vector in enumerate(own)]

    window.add("other", pairs[:MOST_TEXTS])
    window.add("other", [("0", Pair(own[0], own[0]))])
    again = len(window)
    window.add("other", [(str(text), Pair(own[text], -own[5])) for text in (0, *range(128, 131))])

    assert again == len(window) == MOST_TEXTS
    assert window.likened() == liken(
        [Pair(one, one) for one in own[4:128]]
        + [Pair(own[text], -own[5]) for text in (0, 128, 129, 130)]
    )


def test_another_model_behind_the_address_empties_the_window() -> None:
    """Its vectors are not compared with those of the one before."""
    own = drawn(FEWEST, 13, 7)
    window = Window()
    window.add("one", [(str(text), Pair(vector, vector)) for text, vector in enumerate(own)])

    before = window.likened().overlap
    window.add("two", [("new", Pair(own[0], own[1]))])

    assert before == 1 and len(window) == 1 and window.likened() == (None, None)
