"""Neighbours and likenesses beside brute force and scipy."""

import numpy as np
import pytest
from scipy.stats import spearmanr

from service.commands.bulk import neighbours
from service.commands.bulk.neighbours import Rows

COUNT, WIDTH, K = 53, 7, 10
DRAW = np.random.default_rng(5)
VECTORS = DRAW.normal(size=(COUNT + 4, WIDTH)).astype(np.float32) * 3
PLACES = np.delete(np.arange(COUNT + 4), [2, 3, 17, 56])  # the others are copies


@pytest.fixture(params=[(128, 1 << 24), (5, 8 * WIDTH * 11)], ids=["one block", "many blocks"])
def rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Rows:
    """53 vectors of 7 numbers, compared at once or 5 by 11."""
    monkeypatch.setattr(neighbours, "ROWS", request.param[0])
    monkeypatch.setattr(neighbours, "BLOCK_BYTES", request.param[1])
    return Rows(VECTORS, PLACES)


def cosines() -> np.ndarray:
    """Every likeness, at once."""
    unit = VECTORS[PLACES].astype(np.float64)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    return unit @ unit.T


def test_the_nearest_are_those_of_brute_force_in_their_order(rows: Rows) -> None:
    """Of the texts that are compared; none is its own neighbour; and the progress is told."""
    steps: list[tuple[int, int]] = []
    expected = cosines() - 3 * np.eye(COUNT)

    found = neighbours.nearest(rows, K, lambda done, total: steps.append((done, total)))

    np.testing.assert_array_equal(found, np.argsort(-expected, axis=1)[:, :K])
    assert steps[-1] == (COUNT, COUNT)


def test_of_eleven_texts_all_others_are_neighbours() -> None:
    """The fewest there can be; equal likenesses are in the order of the texts."""
    rows = Rows(np.ones((11, 3), np.float32), np.arange(11))

    found = neighbours.nearest(rows, K, lambda done, total: None)

    assert found[4].tolist() == [0, 1, 2, 3, 5, 6, 7, 8, 9, 10]


def test_the_likeness_of_a_pair_is_its_cosine(rows: Rows) -> None:
    """All pairs, each once."""
    left, right = neighbours.pairs(COUNT)

    found = neighbours.likenesses(rows, left, right)

    assert len({*zip(left.tolist(), right.tolist(), strict=True)}) == COUNT * (COUNT - 1) // 2
    np.testing.assert_allclose(found, cosines()[left, right], atol=1e-14)


def test_a_vector_of_length_0_is_like_no_other() -> None:
    """And not NaN, which would be above all."""
    rows = Rows(np.zeros((2, 3), np.float32), np.arange(2))

    assert neighbours.likenesses(rows, *neighbours.pairs(2)).tolist() == [0.0]


def test_of_many_pairs_some_are_drawn_the_same_each_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Every text in about as many; no text is paired with itself."""
    monkeypatch.setattr(neighbours, "MOST_PAIRS", 1000)

    left, right = neighbours.pairs(COUNT)

    assert len(left) == len(right) == 1000 and not (left == right).any()
    assert {*left.tolist()} == {*right.tolist()} == {*range(COUNT)}
    np.testing.assert_array_equal(np.stack(neighbours.pairs(COUNT)), np.stack((left, right)))


@pytest.mark.parametrize("step", [0.0, 0.5], ids=["all differ", "many are equal"])
def test_the_correlation_of_ranks_is_scipys(step: float) -> None:
    """Equal values have the mean of their ranks."""
    one = DRAW.normal(size=500)
    other = one**3 + DRAW.normal(size=500)
    if step:
        one, other = np.round(one / step), np.round(other / step)

    assert neighbours.spearman(one, other) == pytest.approx(spearmanr(one, other)[0], abs=1e-12)
    assert neighbours.spearman(one, one) == 1.0
    assert neighbours.spearman(one, -one) == -1.0


def test_equal_likenesses_have_no_correlation() -> None:
    """Where 0 would say that they disagree."""
    assert neighbours.spearman(np.ones(5), np.arange(5.0)) is None


def test_neighbours_are_shared_in_any_order() -> None:
    """Of each text its own."""
    one, other = np.array([[1, 2, 3], [0, 2, 3]]), np.array([[3, 1, 4], [4, 5, 6]])

    assert neighbours.shared(one, other).tolist() == [2, 0]
