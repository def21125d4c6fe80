"""What adapters add to a linear, in large batches; loading/test_adapters.py holds the rest."""

import pytest
import torch

from model import kernels
from model.adapters import AdaptedLinear, LinearTerm, fill_rows
from model.config import Activation
from model.steady import ACTIVATIONS

CPU = torch.device("cpu")


@pytest.mark.parametrize("activation", ACTIVATIONS)
@pytest.mark.parametrize("bare", [1, 300])
def test_a_row_of_a_large_batch_has_its_bits_alone(bare: int, activation: Activation) -> None:
    """And the fused product's where nothing is added to it, whether that is most rows or few."""
    random = torch.Generator().manual_seed(bare)
    linear = kernels.choose_kernels(CPU, torch.float32).linear
    base, *matrices = (
        linear(torch.randn(shape, generator=random), None)
        for shape in ((67, 48), (3, 48), (67, 3), (5, 48), (67, 5))
    )
    x, residual = (torch.randn(576, width, generator=random) for width in (48, 67))
    order = torch.randperm(len(x), generator=random).tolist()
    own = order[:bare], order[bare : bare + 5], order[bare + 5 :]
    terms = None, LinearTerm(*matrices[:2]), LinearTerm(*matrices[2:])

    rows = [fill_rows(numbers, CPU) for numbers in own]
    mixed = AdaptedLinear(base, list(zip(rows, terms, strict=True)))
    found = mixed(x), mixed.add_to(x, residual), mixed.activate(x, activation)

    for numbers, term in zip(own, terms, strict=True):
        alone = base if term is None else AdaptedLinear(base, [(None, term)])
        for row in numbers[:3] + numbers[-3:]:
            one, left = x[[row] * 16], residual[[row] * 16]
            expected = alone(one), alone.add_to(one, left), alone.activate(one, activation)
            for together, by_itself in zip(found, expected, strict=True):
                assert torch.equal(together[row], by_itself[0])
