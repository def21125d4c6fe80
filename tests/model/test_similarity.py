"""model/similarity.py"""

import math
from collections.abc import Callable
from dataclasses import replace
from itertools import product

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import PoolingMode
from model.kernels import PLAIN
from model.maps.units import Units, divide_into_units
from model.pooling import Dense, Pooling, identity, pool_sequence
from model.similarity import BLOCK_CELLS, CosineShares, LinearPooling, NotLinear, StrongestShares

LEFT, RIGHT, WIDTH, INNER, SIZE = 5, 7, 11, 13, 3
WORDS = [None, 0, 0, 1, 1, 1, None]  # of the right text
SPECIAL = [True, False, False, False, False, False, True]


def texts() -> tuple[Tensor, Tensor]:
    """The token vectors of two texts."""
    generator = torch.Generator().manual_seed(2)
    return tuple(torch.randn(count, WIDTH, generator=generator) for count in (LEFT, RIGHT))


def dense(inputs: int, outputs: int, activation: Callable[[Tensor], Tensor] = identity) -> Dense:
    """A random layer with a bias."""
    generator = torch.Generator().manual_seed(outputs)
    weight = torch.randn(outputs, inputs, generator=generator)
    bias = torch.randn(outputs, generator=generator)
    return Dense(PLAIN.linear(weight, bias), activation, outputs, weight.numel())


def cosine(how: Pooling) -> float:
    """Of the two texts' vectors, as the service pools them."""
    return float(F.cosine_similarity(*(pool_sequence(text, how) for text in texts()), dim=0))


def whole(tokens: int) -> Units:
    """Every token a unit of its own."""
    return divide_into_units(tokens)


def matrix(shares: CosineShares) -> Tensor:
    """All of it."""
    return torch.cat([*shares.blocks()])


SUMS = {
    "mean, normalised": Pooling(("mean",), normalize=True),
    "mean": Pooling(("mean",), normalize=False),
    "sum by the root": Pooling(("mean_sqrt_len",), normalize=True),
    "weighted mean": Pooling(("weightedmean",), normalize=True),
    "cut": Pooling(("mean",), normalize=True, dimensions=4),
    "cut behind a dense": Pooling(("mean",), True, 2, layers=(dense(WIDTH, SIZE),)),
    "two means": Pooling(("mean", "weightedmean"), normalize=True),
    "dense": Pooling(("mean",), normalize=True, layers=(dense(WIDTH, SIZE),)),
    "two dense": Pooling(
        ("mean",), normalize=True, layers=(dense(WIDTH, INNER), dense(INNER, SIZE))
    ),
    "dense, added": Pooling(
        ("mean",), normalize=True, layers=(replace(dense(WIDTH, WIDTH), residual=identity),)
    ),
    "dense, added, turned": Pooling(
        ("mean",),
        normalize=True,
        layers=(replace(dense(WIDTH, SIZE), residual=PLAIN.linear(torch.ones(SIZE, WIDTH), None)),),
    ),
}


@pytest.mark.parametrize("how", SUMS.values(), ids=SUMS)
def test_the_shares_of_all_pairs_and_of_the_bias_sum_to_the_cosine(how: Pooling) -> None:
    """Of every pooling that is a weighted sum, and of Dense layers behind it."""
    linear, (left, right) = LinearPooling(how), texts()

    shares = linear.share_cosine(
        linear.weigh_text(left, whole(LEFT)), linear.weigh_text(right, whole(RIGHT))
    )

    assert matrix(shares).shape == (LEFT, RIGHT)
    assert float(matrix(shares).sum()) + shares.bias == pytest.approx(cosine(how), abs=1e-6)
    assert shares.dropped == 0
    assert (shares.bias != 0) == bool(how.layers)


@pytest.mark.parametrize("how", SUMS.values(), ids=SUMS)
def test_what_is_carried_back_has_the_same_products_but_for_the_bias(how: Pooling) -> None:
    """With a reduced vector those of the pooled one."""
    linear, (left, _) = LinearPooling(how), texts()
    reduced = pool_sequence(left, Pooling(how.modes, normalize=False)).double()
    pooled = pool_sequence(left, replace(how, normalize=False)).double()
    v = torch.randn(2, len(pooled), generator=torch.Generator().manual_seed(4)).double()

    back = linear.carry_back(v, len(reduced))

    bias = 0 if linear.bias is None else v @ linear.bias
    torch.testing.assert_close(back @ reduced + bias, v @ pooled, rtol=0, atol=1e-5)


def test_the_matrix_is_the_product_of_each_pair_by_hand() -> None:
    """<h_i, h_j'> / (n m |u| |v|), in float64."""
    linear, (left, right) = LinearPooling(SUMS["mean, normalised"]), texts()
    u, v = left.double().mean(0), right.double().mean(0)
    length = u.norm() * v.norm() * LEFT * RIGHT

    shares = linear.share_cosine(
        linear.weigh_text(left, whole(LEFT)), linear.weigh_text(right, whole(RIGHT))
    )

    for i, j in product(range(LEFT), range(RIGHT)):
        by_hand = left[i].double() @ right[j].double() / length
        assert math.isclose(matrix(shares)[i, j], by_hand, abs_tol=1e-15)


def test_a_word_has_the_share_of_its_tokens_and_what_is_dropped_is_told() -> None:
    """The columns of a word sum; without special tokens the rest is what they carry."""
    linear, (left, right) = LinearPooling(SUMS["two dense"]), texts()
    side = linear.weigh_text(left, whole(LEFT))
    tokens = linear.share_cosine(side, linear.weigh_text(right, whole(RIGHT)))
    units = divide_into_units(RIGHT, level="word", specials="drop", words=WORDS, special=SPECIAL)

    words = linear.share_cosine(side, linear.weigh_text(right, units))

    columns = [matrix(tokens)[:, 1:3].sum(1), matrix(tokens)[:, 3:6].sum(1)]
    torch.testing.assert_close(matrix(words), torch.stack(columns, 1))
    dropped = float(matrix(tokens)[:, [0, 6]].sum())
    assert words.dropped == pytest.approx(dropped, abs=1e-12)
    assert words.bias == pytest.approx(tokens.bias, abs=1e-12)


def test_sources_share_the_cosine_with_each_other_and_with_biases() -> None:
    """By hand: of a source of biases, so many shown and a dropped one, behind a Dense layer."""
    layer = dense(WIDTH, SIZE)
    how = Pooling(("cls",), normalize=True, layers=(layer,))
    linear, (left, right) = LinearPooling(how, single=True), texts()

    shares = linear.share_cosine(linear.weigh_sources(left, 3), linear.weigh_sources(right, 6))

    weight, bias = layer.matrix().double(), layer.linear.bias
    assert bias is not None
    u, v = (text.double() @ weight.T for text in (left, right))
    u[0], v[0] = u[0] + bias, v[0] + bias
    products = u @ v.T / (u.sum(0).norm() * v.sum(0).norm())
    torch.testing.assert_close(matrix(shares), products[1:4, 1:])
    torch.testing.assert_close(shares.left_bias, products[1:4, 0])
    assert shares.total == pytest.approx(float(products.sum()), abs=1e-12)
    torch.testing.assert_close(shares.right_bias, products[0, 1:])
    assert shares.dropped == pytest.approx(float(products[4, 1:].sum()))
    assert shares.bias == pytest.approx(float(products[0].sum() + products[1:, 0].sum()))


@pytest.mark.parametrize("mode", ["cls", "last", "max"])
def test_a_pooling_that_is_no_sum_is_refused_by_name(mode: PoolingMode) -> None:
    """Also next to one that is."""
    with pytest.raises(NotLinear, match=f'pooling "{mode}"'):
        LinearPooling(Pooling(("mean", mode), normalize=True))


def test_a_dense_layer_with_an_activation_is_refused() -> None:
    """What it makes of a sum is no sum."""
    with pytest.raises(NotLinear, match="activation"):
        LinearPooling(Pooling(("mean",), normalize=True, layers=(dense(WIDTH, SIZE, torch.tanh),)))


def test_a_vector_without_length_has_no_shares() -> None:
    """The cosine is 0 then, as the service answers it."""
    linear, (left, right) = LinearPooling(SUMS["mean, normalised"]), texts()

    shares = linear.share_cosine(
        linear.weigh_text(left * 0, whole(LEFT)), linear.weigh_text(right, whole(RIGHT))
    )

    assert matrix(shares).abs().sum() == 0


def test_the_strongest_pairs_are_the_largest_of_either_sign() -> None:
    """Equal ones in the order of the matrix; no more than there are."""
    rows = torch.tensor([[0.5, -2.0, 0.5], [1.0, 0.0, -0.25]], dtype=torch.float64)

    assert pairs(4, rows) == [
        (0, 1, -2.0),
        (1, 0, 1.0),
        (0, 0, 0.5),
        (0, 2, 0.5),
    ]
    assert len(pairs(99, rows)) == 6


def pairs(k: int, *blocks: Tensor) -> list[tuple[int, int, float]]:
    """The strongest of a matrix in blocks."""
    strongest = StrongestShares(k)
    for block in blocks:
        strongest.add_rows(block)
    return [*zip(*(column.tolist() for column in strongest.strongest_pairs()), strict=True)]


@pytest.mark.parametrize("k", [1, 7, 31, 999])
def test_blocks_of_rows_change_nothing_of_the_strongest_pairs(k: int) -> None:
    """Many of which are equal."""
    generator = torch.Generator().manual_seed(3)
    rows = torch.randint(-3, 4, (17, 5), generator=generator).double()

    assert pairs(k, *rows.split(2)) == pairs(k, rows)


def test_a_block_holds_so_many_cells_whatever_the_texts() -> None:
    """A few rows of long texts; all of short ones, whose bits are those of one product."""
    ones = torch.ones(2003, 1).double()
    long, short = (
        CosineShares(ones[:left], ones, 0.5, 0.0, 0.0, ones, ones, 0.0) for left in (2003, 130)
    )

    assert max(block.numel() for block in long.blocks()) <= BLOCK_CELLS
    assert torch.equal(matrix(long), ones @ ones.T * 0.5)
    assert len([*short.blocks()]) == 1
