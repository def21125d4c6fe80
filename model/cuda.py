"""Attention on CUDA: one call for all sequences where torch has it, grouped SDPA otherwise.

Both return the softmax normaliser with the mixed values. They are private or young interfaces:
each is called by keyword, taken only where its signature has what we pass, and chosen only where it
agrees with kernels.PLAIN on this device (see kernels.choose).
"""

import inspect
from collections.abc import Callable

import torch
from torch import Tensor

from model.packing import Packed
from model.reach import Reach

HALVES = (torch.bfloat16, torch.float16)
NEEDED = {"return_aux", "scale", "window_size", "num_splits"}
# The memory-efficient kernel reads a bias whose rows begin at multiples of so many numbers, and
# pads the normaliser it returns to multiples of 32 queries
ALIGNED = 8

Spread = Callable[[Tensor, Tensor, Tensor, Packed, float, Reach], tuple[Tensor, Tensor]]


def attend_grouped(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend as kernels.attend_plain, in one memory-efficient pass; any of the three formats."""
    mask = None if bias is None else _aligned(bias.to(q.dtype)).expand(*q.shape[:2], -1, -1)
    mixed, normaliser, *_ = torch.ops.aten._scaled_dot_product_efficient_attention(
        q, k, v, mask, True, 0.0, False, scale=scale
    )
    return mixed, normaliser[..., : q.shape[2]]


def attend_spread(
    q: Tensor, k: Tensor, v: Tensor, packed: Packed, scale: float, reach: Reach
) -> tuple[Tensor, Tensor]:
    """Attend within all sequences of a batch in one call, without padding.

    Args:
        q, k, v: (rows, heads, head_dim), bfloat16 or float16.
        reach: how far a query looks.

    Returns:
        The mixed values, (rows, heads, head_dim), with zeros past the last sequence, and the
        normaliser as torch gives it, (heads, rows up to there).
    """
    from torch.nn.attention.varlen import AuxRequest, varlen_attn

    used, longest = packed.groups[-1].rows.stop, packed.groups[-1].length  # ordered by length
    before, after = (-1 if side is None else side for side in reach)
    mixed, normaliser = varlen_attn(
        q[:used],
        k[:used],
        v[:used],
        packed.places,
        packed.places,
        longest,
        longest,
        return_aux=AuxRequest(lse=True),
        scale=scale,
        window_size=(before, after),
        num_splits=1,  # else the split, and so the bits, follow from the longest of the batch
    )
    if fill := len(q) - used:  # pad copies even for no rows
        mixed = torch.nn.functional.pad(mixed, (0, 0, 0, 0, 0, fill))
    return mixed, normaliser


def attend_spread_turned(
    q: Tensor, k: Tensor, v: Tensor, packed: Packed, scale: float, reach: Reach
) -> tuple[Tensor, Tensor]:
    """Attend as attend_spread, for a torch whose normaliser is as documented, (rows, heads)."""
    mixed, normaliser = attend_spread(q, k, v, packed, scale, reach)
    return mixed, normaliser.T


def spreads(dtype: torch.dtype) -> tuple[Spread, ...]:
    """Return both forms of `attend_spread` where this torch has it as we call it and for dtype.

    kernels.choose finds out once which of the two is right: the shape of one batch does not tell
    rows from heads when there are as many of each. It also finds out which head sizes work: the
    call raises on a size that is not a multiple of 8.
    """
    try:
        from torch.nn.attention.varlen import varlen_attn
    except ImportError:
        return ()
    fits = inspect.signature(varlen_attn).parameters.keys() >= NEEDED
    return (attend_spread, attend_spread_turned) if fits and dtype in HALVES else ()


def _aligned(bias: Tensor) -> Tensor:
    """Return the same bias with its rows in memory at multiples of ALIGNED numbers."""
    keys = bias.shape[-1]
    room = -keys % ALIGNED
    return torch.nn.functional.pad(bias, (0, room))[..., :keys]
