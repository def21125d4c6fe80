"""model/native/operators.py: next to torch's own attention and linear in float64."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Activation
from model.kernels import ACTIVATIONS
from model.native.operators import HalfLinear, PanelLinear, attend_compiled, find_attention

FORMATS = [
    pytest.param(
        half, marks=pytest.mark.skipif(not find_attention(half), reason="not of this processor")
    )
    for half in (False, True)
]


def rounded(x: Tensor, half: bool) -> Tensor:
    """What is multiplied, in float64."""
    return x.bfloat16().double() if half else x.double()


@pytest.mark.parametrize("half", FORMATS)
@pytest.mark.parametrize(
    ("tokens", "heads", "shared", "head"),
    [(1, 2, 2, 8), (7, 3, 3, 37), (16, 4, 2, 32), (65, 4, 1, 64), (200, 2, 2, 100)],
)
def test_attention_is_that_of_torch_in_float64(
    tokens: int, heads: int, shared: int, head: int, half: bool
) -> None:
    """Of any size, with a bias and without, and where several heads share their keys."""
    random = torch.Generator().manual_seed(tokens)
    q = torch.randn(2, tokens, heads, head, generator=random).transpose(1, 2)
    k, v = torch.randn(2, 2, tokens, shared, head, generator=random).transpose(2, 3)
    bias = torch.randn(heads, tokens, tokens, generator=random)
    bias[:, :, tokens // 2 + 1 :] = -math.inf

    for added in (None, bias, bias[:1]):
        mixed, sums = attend_compiled(q, k, v, 0.3, added, half)

        exact = [rounded(x, half) for x in (q, k, v)]
        mask = None if added is None else added.double().expand(2, heads, -1, -1)
        expected = F.scaled_dot_product_attention(*exact, mask, scale=0.3, enable_gqa=True)
        scores = exact[0] @ exact[1].repeat_interleave(heads // shared, 1).mT * 0.3
        logs = (scores if mask is None else scores + mask).logsumexp(-1)
        assert torch.allclose(mixed.double(), expected, atol=2e-2 if half else 1e-5)
        assert torch.allclose(sums.double(), logs, atol=1e-3 if half else 1e-5)


@pytest.mark.parametrize("half", FORMATS)
def test_a_query_has_the_same_bits_whatever_is_asked_with_it(half: bool) -> None:
    """Alone, and in a block of six."""
    q, k, v = torch.randn(3, 1, 2, 41, 32, generator=torch.Generator().manual_seed(0))

    together, sums = attend_compiled(q, k, v, 0.2, None, half)

    for i in range(41):
        alone, its = attend_compiled(q[:, :, i : i + 1], k, v, 0.2, None, half)
        assert torch.equal(alone[:, :, 0], together[:, :, i])
        assert torch.equal(its[:, :, 0], sums[:, :, i])


@pytest.mark.parametrize("half", FORMATS)
@pytest.mark.parametrize("wrong", [math.nan, math.inf])
def test_a_score_that_is_not_finite_leaves_no_number(wrong: float, half: bool) -> None:
    """Of its own rows; the approximation of e^x would make a large number of it."""
    q, k, v = torch.ones(3, 1, 1, 37, 8)
    k[0, 0, 5] = wrong

    mixed, _ = attend_compiled(q, k, v, 0.2, None, half)

    assert mixed.isnan().all()


@pytest.mark.parametrize("half", FORMATS)
@pytest.mark.parametrize(
    ("inputs", "outputs"), [(384, 1152), (37, 50), (1, 1), (1536, 64)], ids=str
)
def test_a_linear_in_panels_sums_in_float32(inputs: int, outputs: int, half: bool) -> None:
    """As its numbers would be in float64; each row has the same bits alone."""
    random = torch.Generator().manual_seed(inputs)
    weight, bias = torch.randn(outputs, inputs, generator=random), torch.randn(outputs)
    x, residual = torch.randn(70, inputs, generator=random), torch.randn(70, outputs)
    made = HalfLinear if half else PanelLinear
    linear = made(weight, bias)
    expected = rounded(x, half) @ rounded(weight, half).T + bias

    together = linear(x)

    assert torch.allclose(together.double(), expected, atol=1e-3, rtol=1e-5)
    assert torch.equal(torch.cat([linear(row[None]) for row in x]), together)
    sums = linear.add_to(x, residual).double()
    assert torch.allclose(sums, expected + residual, atol=1e-3, rtol=1e-5)
    assert torch.equal(linear.weight(), rounded(weight, half).float())
    assert torch.equal(made(weight, None)(x), linear(x) - 0) is not bool(bias.any())


@pytest.mark.parametrize("half", FORMATS)
@pytest.mark.parametrize("activation", ACTIVATIONS)
def test_an_activation_is_computed_before_it_is_rounded(activation: Activation, half: bool) -> None:
    """In float32, of sums that were never bfloat16."""
    weight, x = torch.eye(64), torch.linspace(-9, 9, 64 * 21).view(21, 64)

    found = (HalfLinear if half else PanelLinear)(weight, None).activate(x, activation)

    dtype = torch.bfloat16 if half else torch.float32
    expected = ACTIVATIONS[activation](rounded(x, half).float())
    assert found.dtype == dtype
    assert torch.allclose(found.float(), expected.to(dtype).float(), atol=1e-6, rtol=2**-7)
