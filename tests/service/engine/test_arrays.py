"""Arrays on the host: what a pass computed, whole, and none that is not finite."""

import numpy as np
import pytest
import torch

from service.engine.arrays import copy_together, is_finite


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_what_leaves_a_gpu_together_is_what_each_sequence_gets(dtype: torch.dtype) -> None:
    """One copy of each dtype, cut apart in any order, and nothing stays nothing."""
    state = torch.randn(29, 5, generator=torch.Generator().manual_seed(0)).to(dtype)
    rows = [slice(11, 18), slice(3, 3), slice(18, 29)]
    places, scores = torch.arange(7, dtype=torch.int32).view(7, 1), torch.rand(2, 1, 3)

    arrays = copy_together([places, *(state[each] for each in rows), scores])

    assert [each.dtype for each in arrays] == [np.int32, *[np.float32] * 4]
    wanted = [places, *(state[each].float() for each in rows), scores]
    for each, tensor in zip(arrays, wanted, strict=True):
        np.testing.assert_array_equal(each, tensor.numpy())


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16], ids=str)
@pytest.mark.parametrize("rows", [1, 17, 331])
def test_a_number_that_is_not_finite_is_seen_wherever_it_stands(
    dtype: torch.dtype, rows: int
) -> None:
    """One, or two that would cancel; the largest numbers of the format are no fault."""
    most = torch.finfo(dtype).max
    sound = torch.full((rows, 37), most, dtype=dtype)
    sound[:, ::2] = -most

    assert is_finite(sound)
    assert is_finite(sound.abs())
    for place in {0, 1, 18, rows * 37 // 2, rows * 37 - 1}:
        for wrong in (float("nan"), float("inf"), -float("inf")):
            broken = sound.clone()
            broken.view(-1)[place] = wrong
            assert not is_finite(broken)
            broken.view(-1)[place - 1] = -wrong
            assert not is_finite(broken)
