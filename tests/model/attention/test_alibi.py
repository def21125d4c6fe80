"""model/attention/alibi.py: against Bloom's and MPT's slopes, and its formula in float64."""

import pytest
import torch
from transformers.models.bloom.modeling_bloom import build_alibi_tensor
from transformers.models.mpt.modeling_mpt import build_mpt_alibi_tensor

from model.attention.alibi import Slopes, head_slopes

HEADS, TOKENS, HEAD = 12, 23, 5
SOME = {"all": slice(None), "some": [7, 0, 11]}
QUERIES = {"slice": slice(3, 17), "places": torch.tensor([22, 0, 9])}


def test_slopes_of_a_power_of_two_are_a_geometric_row() -> None:
    """Press et al. 2022, section 3: of 8 heads 1/2, 1/4, .. 1/256."""
    assert head_slopes(8) == [2.0**-i for i in range(1, 9)]
    assert head_slopes(1) == [2.0**-8]


@pytest.mark.parametrize("heads", [1, 2, 3, 4, 6, 8, 12, 14, 16, 20, 25, 32, 71])
def test_slopes_are_those_of_bloom(heads: int) -> None:
    """Of any number of heads; the key of place 1 shows them."""
    told = build_alibi_tensor(torch.ones(1, 2), heads, torch.float64)[:, 0, 1]

    torch.testing.assert_close(torch.tensor(head_slopes(heads)), told.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("heads", [1, 2, 4, 8, 16, 32])
def test_slopes_of_a_power_of_two_are_those_of_mpt(heads: int) -> None:
    """MPT orders those of other numbers differently."""
    told = -build_mpt_alibi_tensor(heads, 2)[:, 0, 0]

    torch.testing.assert_close(torch.tensor(head_slopes(heads)), told.float(), rtol=1e-6, atol=0)


@pytest.mark.parametrize("heads", SOME.values(), ids=SOME)
@pytest.mark.parametrize("queries", QUERIES.values(), ids=QUERIES)
def test_each_cell_is_its_heads_slope_times_the_distance(
    queries: slice | torch.Tensor, heads: slice | list[int]
) -> None:
    """To either side; of some heads, some queries and some keys."""
    own = torch.tensor(head_slopes(HEADS))
    q = k = torch.zeros(HEADS, TOKENS, HEAD)

    found = Slopes(own)(q, k, queries, slice(2, 20), heads)

    place = torch.arange(TOKENS, dtype=torch.float64)
    apart = (place[queries][:, None] - place[2:20]).abs()
    expected = -torch.tensor(head_slopes(HEADS), dtype=torch.float64)[heads, None, None] * apart
    torch.testing.assert_close(found.double(), expected, rtol=1e-7, atol=0)


def test_keys_in_reverse_have_the_same_cells() -> None:
    """To the bit, of every head and query."""
    made, q = Slopes(torch.tensor(head_slopes(HEADS))), torch.zeros(HEADS, TOKENS, HEAD)

    found = made.reversed_bias(TOKENS, torch.float32)

    assert torch.equal(found.flip(2), made(q, q, slice(None), slice(None)))
    assert made.reversed_bias(TOKENS, torch.bfloat16).dtype == torch.bfloat16
