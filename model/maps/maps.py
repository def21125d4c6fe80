"""Tiles of a map -> the map, some of its rows, its strongest keys, its blocks.

Each form is that of one sequence and of some heads of one layer; see tiles.Look.
"""

import torch
from torch import Tensor

from model.maps.tiles import Look, Tile


def full(look: Look) -> Tensor:
    """The attention probabilities.

    Returns:
        (heads, units, units) float32; each row sums to 1 over key, to less where special
        tokens are dropped.
    """
    units = len(look.units.axis)
    if 0 < units <= look.step:
        return next(look.tiles()).values  # all of it, and no copy
    maps = look.q.new_empty(len(look.heads), units, units)
    if look.window is not None:
        maps.zero_()  # beyond the window is no tile
    for _ in look.tiles(scratch=look.scratch(), into=maps):
        pass  # each is made in its place
    return maps


def rows(look: Look, places: list[int]) -> Tensor:
    """The rows of the units at these places on the axis, (heads, rows, units)."""
    return torch.cat([tile.values for tile in look.tiles(places)], 1)


def top(look: Look, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """The strongest keys of each row, strongest first, equal ones in order of key.

    Args:
        k: how many, or all where the axis is shorter.

    Returns:
        Their places on the axis, (heads, units, k) int32, their weights, likewise float32, and
        what each row holds beyond them, (heads, units) float32.
    """
    k, units = min(k, len(look.units.axis)), len(look.units.axis)
    keys, values, rest = [], [], []
    for tile in look.tiles():
        weights = _wide(tile, units)
        best = strongest(weights, k)
        values.append(weights.gather(2, best))
        keys.append(best.int())
        rest.append(weights.scatter(2, best, 0.0).sum(2))
    return torch.cat(keys, 1), torch.cat(values, 1), torch.cat(rest, 1)


def strongest(weights: Tensor, k: int) -> Tensor:
    """The places of the k largest of each row, (..., k) int64; of equal ones the first first.

    Numbers not below 0 are ordered as their bits are; with the place below the bits, no two
    are equal.
    """
    places = torch.arange(weights.shape[-1], device=weights.device)
    ordered = weights.contiguous().view(torch.int32).long() << 32 | (len(places) - 1 - places)
    return len(places) - 1 - (ordered.topk(k, -1).values & 0xFFFFFFFF)


def blocks(look: Look, size: int) -> Tensor:
    """The map in at most `size` times `size` blocks of equally many units, the last of fewer.

    Returns:
        (heads, blocks, blocks): the sum over a block's keys, the mean over its queries.
    """
    units = len(look.units.axis)
    step = -(-units // size)  # in whole numbers: no size is too large for them
    count = -(-units // step)
    block = torch.arange(units, device=look.q.device) // step
    pooled = look.q.new_zeros(len(look.heads), count, count)
    for tile in look.tiles():
        columns = _wide(tile, count * step)
        columns = columns.view(*columns.shape[:2], count, step).sum(3)
        pooled.index_add_(1, block[tile.queries], columns)
    return pooled / block.bincount().unsqueeze(1)


def _wide(tile: Tile, columns: int) -> Tensor:
    """A tile with all its columns, and 0 where it has none."""
    if tile.values.shape[2] == columns:
        return tile.values
    wide = tile.values.new_zeros(*tile.values.shape[:2], columns)
    wide[:, :, tile.keys] = tile.values
    return wide
