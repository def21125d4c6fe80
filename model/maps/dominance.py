"""Who dominates whom: the key that a row gives most of its weight to.

"The word 'well' is dominated by 'All'" when its new vector is mostly made of the other's value.
Measured by probability, or by the length of what each value adds (Kobayashi et al. 2020), which
tells a key that is looked at from one that changes something.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.maps.tiles import Look


class Dominance(NamedTuple):
    """Of each row of each head, (heads, units).

    Args:
        dominant: the place of the key with the largest share, int32; the first of equal ones.
        share: that key's share of the row, own: the row's own unit's.
    """

    dominant: Tensor
    share: Tensor
    own: Tensor


def dominance(look: Look) -> Dominance:
    """Who dominates each unit, and by how much."""
    tiles = []
    for tile in look.tiles():
        share, best = tile.values.max(2)  # of equal ones the first, as torch promises
        own = tile.values.diagonal(tile.queries.start - tile.keys.start, 1, 2)
        own = own.clone()  # a view would keep the whole tile
        tiles.append(((best + tile.keys.start).int(), share, own))
    return Dominance(*(torch.cat(parts, 1) for parts in zip(*tiles, strict=True)))


def wins(dominant: Tensor, axis: Tensor, units: int) -> Tensor:
    """How many other units, over all heads given, each unit dominates, (units,) int32.

    Args:
        dominant: (heads, rows), of all layers together, as units.
        axis: the unit of each row.
        units: how many there are, shown or not.
    """
    return dominant[dominant != axis].long().bincount(minlength=units).int()
