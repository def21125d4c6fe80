"""Attention through all layers: how much of a token's final vector comes from each first one.

    A~^l = (A^l + I) / 2            A^l the mean over heads; half of the stream passes by
    R^l  = A~^l R^(l-1)             R^0 = I

Of words, or without special tokens, columns are merged before the layers and rows after them:
C being what merges columns, (A~^2 A~^1) C = A~^2 (A~^1 C), of fewer numbers throughout.

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
    members, places = (part.to(looks[0].q.device) for part in units.members())
    rolled = looks[0].q.new_zeros(units.tokens, len(units.axis))
    rolled[members, places] = 1
    for index, look in enumerate(looks):
        mixed = torch.zeros_like(rolled)
        for tile in look.tiles():
            mean = tile.values.mean(0)
            if index:
                torch.mm(mean, rolled[tile.keys], out=mixed[tile.queries])
            else:  # of the first layer a product would only copy columns
                near = (members >= tile.keys.start) & (members < tile.keys.stop)
                columns = mean[:, members[near] - tile.keys.start]
                mixed[tile.queries].index_add_(1, places[near], columns)
        rolled = mixed.add_(rolled).div_(2)
    return rolled if units.whole else _pooled(rolled, members, places, units)


def _pooled(rolled: Tensor, members: Tensor, places: Tensor, units: Units) -> Tensor:
    """The rows of tokens, (tokens, units), as those of units."""
    count = len(units.axis)
    slots = places.new_full((units.tokens,), count)  # of what is not shown, one beyond the others
    slots[members] = places
    pooled = rolled.new_zeros(count + 1, count).index_add_(0, slots, rolled)[:count]
    if units.renormalize:
        return pooled / pooled.sum(1, keepdim=True)
    return pooled / places.bincount().unsqueeze(1)
