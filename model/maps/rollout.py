"""Attention through all layers: how much of a token's final vector comes from each first one.

    A~^l = (A^l + I) / 2            A^l the mean over heads; half of the stream passes by
    R^l  = A~^l R^(l-1)             R^0 = I

Source: Abnar and Zuidema 2020, "Quantifying Attention Flow in Transformers", section 3.
"""

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from model.maps.tiles import Look
from model.maps.units import Units


def rollout(looks: Many[Look], units: Units) -> Tensor:
    """Roll the attention of some layers out.

    Args:
        looks: the heads of each layer, the lowest layer first, each in whole units.
        units: what the rows and columns of the answer are.

    Returns:
        (units, units) float32; rows sum to 1, to less where special tokens are dropped.
    """
    rolled = torch.eye(units.tokens, device=looks[0].q.device)
    for look in looks:
        mixed = torch.zeros_like(rolled)
        for tile in look.tiles():
            mixed[tile.queries] = tile.values.mean(0) @ rolled[tile.keys]
        rolled = (mixed + rolled) / 2
    return _pooled(rolled, units)


def _pooled(rolled: Tensor, units: Units) -> Tensor:
    """The rows and columns of tokens as those of units."""
    if units.whole:
        return rolled
    members, places = (part.to(rolled.device) for part in units.members())
    columns = rolled.new_zeros(len(members), len(units.axis))
    columns.index_add_(1, places, rolled[members][:, members])
    pooled = columns.new_zeros(len(units.axis), len(units.axis)).index_add_(0, places, columns)
    if units.renormalize:
        return pooled / pooled.sum(1, keepdim=True)
    return pooled / places.bincount().unsqueeze(1)
