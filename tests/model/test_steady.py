"""model/steady.py: a number has the same bits at any place and on any cores."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from model import steady
from model.config import Activation
from model.steady import ACTIVATIONS, SHARE_NUMBERS, VECTORS, map_numbers

MANY = torch.randn(3 * SHARE_NUMBERS + 101, generator=torch.Generator().manual_seed(1)) * 4
LENGTHS = (1, 7, VECTORS - 1, VECTORS, VECTORS + 1, SHARE_NUMBERS + 5, len(MANY))
FUNCTIONS: dict[str, Callable[[Tensor], Tensor]] = {
    **ACTIVATIONS,
    "sigmoid": lambda x: map_numbers(torch.sigmoid, x),
    "exp2": lambda x: steady.exp2(x, torch.empty_like(x)),
    "exp2, in place": lambda x: steady.exp2(x, x),
}


@pytest.mark.parametrize("name", FUNCTIONS)
def test_a_numbers_bits_follow_from_it_alone(name: str, threads: Callable[[int], None]) -> None:
    """Of few or many, from any place on, on one core or several; and they are torch's."""
    made = FUNCTIONS[name]
    whole = made(MANY.clone())

    for cores in (2, 3):
        threads(cores)
        for length in LENGTHS:
            for first in (0, 1, len(MANY) - length):
                some = slice(first, first + length)
                assert torch.equal(made(MANY[some].clone()), whole[some]), (cores, length, first)
    plain = {"exp2": torch.exp2, "exp2, in place": torch.exp2, "sigmoid": torch.sigmoid}
    expected = (plain | steady._TORCHS)[name](MANY)
    torch.testing.assert_close(whole, expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_takes_any_shape(activation: Activation) -> None:
    """Also columns of a wider matrix, which are apart in memory."""
    wide = MANY[: 7 * 26].view(7, 26)

    made = ACTIVATIONS[activation](wide[:, :13])

    assert torch.equal(made, ACTIVATIONS[activation](wide)[:, :13])
