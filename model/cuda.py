"""Attention on CUDA: one call for all sequences where torch has it, grouped SDPA otherwise.

Both return the softmax normaliser with the mixed values. They are private or young interfaces:
each is called by keyword, taken only where its signature has what we pass, and chosen only where it
agrees with kernels.PLAIN on this device (see kernels.choose_kernels).
"""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from model.attention.reach import Reach
from model.packing import Packed

HALF_PRECISIONS = (torch.bfloat16, torch.float16)  # the only dtypes of varlen_attn
# of varlen_attn
REQUIRED_PARAMETERS = {"return_aux", "scale", "window_size", "num_splits", "enable_gqa"}
# The memory-efficient kernel reads a bias whose rows begin at multiples of so many numbers, and
# pads the normaliser it returns to multiples of 32 queries
BIAS_ALIGNMENT = 8

# the type of `attend_packed`
AttendPacked = Callable[[Tensor, Tensor, Tensor, Packed, float, Reach], tuple[Tensor, Tensor]]


def attend_grouped(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend as kernels.attend_plain, in one memory-efficient pass; float32 or half precision."""
    mask = None if bias is None else _align_bias(bias.to(q.dtype)).expand(*q.shape[:2], -1, -1)
    mixed, normaliser, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, mask, True, 0.0, False, scale=scale
    )
    return mixed, normaliser[..., : q.shape[2]]


def attend_packed(
    q: Tensor, k: Tensor, v: Tensor, packed: Packed, scale: float, reach: Reach
) -> tuple[Tensor, Tensor]:
    """Attend within all sequences of a batch in one call, without padding.

    Args:
        q, k, v: (rows, heads, head_dim), bfloat16 or float16; keys and values may have fewer heads,
            each of which so many heads of queries in turn share.
        scale: what the scores are multiplied by.
        reach: how far a query attends.

    Returns:
        The mixed values, (rows, heads, head_dim), with zeros past the last sequence, and the
        softmax normalisers as torch gives them, (heads, rows up to there).
    """
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    used = packed.groups[-1].rows.stop
    # The last is the longest. Where all have one token and share keys, the kernel would mix up the
    # normalisers of several sequences; more than there are does no harm.
    longest = max(2, packed.groups[-1].length)
    before, after = (-1 if side is None else side for side in reach)
    mixed, normaliser = varlen_attn(
        q[:used],
        k[:used],
        v[:used],
        packed.sequence_bounds,
        packed.sequence_bounds,
        longest,
        longest,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=(before, after),
        enable_gqa=True,
        num_splits=1,  # else the split, and so the bits, follow from the longest of the batch
    )
    if fill := len(q) - used:  # pad copies even for no rows
        mixed = torch.nn.functional.pad(mixed, (0, 0, 0, 0, 0, fill))
    return mixed, normaliser


def attend_packed_transposed(
    q: Tensor, k: Tensor, v: Tensor, packed: Packed, scale: float, reach: Reach
) -> tuple[Tensor, Tensor]:
    """Attend as attend_packed, for a torch whose normaliser is as documented, (rows, heads)."""
    mixed, normaliser = attend_packed(q, k, v, packed, scale, reach)
    return mixed, normaliser.T


def find_packed_attention(dtype: torch.dtype) -> tuple[AttendPacked, ...]:
    """Return the variants of `attend_packed` to try; none if this torch or dtype lacks support.

    kernels.choose_kernels finds out which variant is right: the shape of one batch does not tell
    rows from heads when there are as many of each. It also finds out which head sizes work: the
    call raises on a size that is not a multiple of 8.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return ()
    supported = inspect.signature(varlen_attn).parameters.keys() >= REQUIRED_PARAMETERS
    return (
        (attend_packed, attend_packed_transposed) if supported and dtype in HALF_PRECISIONS else ()
    )


def _align_bias(bias: Tensor) -> Tensor:
    """Return the same bias with its rows in memory at multiples of BIAS_ALIGNMENT numbers."""
    keys = bias.shape[-1]
    padding = -keys % BIAS_ALIGNMENT
    return torch.nn.functional.pad(bias, (0, padding))[..., :keys]
