"""Tiles of a map -> the map, its strongest keys, its blocks and segments; dominance, rollout.

Each form is that of one sequence and of some heads of one layer, see tiles.MapReader; a rollout is
of all layers.

"The word 'well' is dominated by 'All'" when its new vector is mostly made of the other's value.
Measured by probability, or by the length of what each value adds (Kobayashi et al. 2020), which
tells a key that is attended to from one that changes something.

A rollout says how much of a token's final vector comes from each first one (Abnar and Zuidema 2020,
"Quantifying Attention Flow in Transformers", section 3):

    A~^l = (A^l + I) / 2            A^l the mean over heads; half of the stream passes by
    R^l  = A~^l R^(l-1)             R^0 = I

Of words, or without special tokens, columns are merged before the layers and rows after them:
with C merging columns, (A~^2 A~^1) C = A~^2 (A~^1 C), of fewer numbers throughout.
"""

from collections.abc import Sequence as Many
from typing import NamedTuple

import torch
from torch import Tensor

from model.maps.tiles import MapReader, Tile
from model.maps.units import Units
from model.steady import without_idle_threads


def full_maps(reader: MapReader) -> Tensor:
    """Return the attention probabilities of all units shown.

    Returns:
        (heads, units, units) float32; each row sums to 1 over key, to less where special
        tokens are dropped.
    """
    units = len(reader.units.axis)
    if 0 < units <= reader.tile_rows:
        return next(reader.read_tiles()).values  # the whole map, without a copy
    maps = reader.q.new_empty(reader.maps, units, units)
    if not reader.reach.covers(units):
        maps.zero_()  # no tile lies beyond reach
    for _ in reader.read_tiles(scratch=reader.allocate_scratch(), into=maps):
        pass  # each tile is written into `maps`
    return maps


def strongest_keys(reader: MapReader, k: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the strongest keys of each row, strongest first, ties in order of key.

    Args:
        k: how many, or all where the axis is shorter.

    Returns:
        Their places on the axis, (heads, units, k) int32, their weights, likewise float32, and
        what each row holds beyond them, (heads, units) float32.
    """
    k, units = min(k, len(reader.units.axis)), len(reader.units.axis)
    keys, values, rest = [], [], []
    for tile in reader.read_tiles():
        weights = _widen_tile(tile, units)
        best = top_places(weights, k)
        values.append(weights.gather(2, best))
        keys.append(best.int())
        rest.append(weights.scatter(2, best, 0.0).sum(2))
    return torch.cat(keys, 1), torch.cat(values, 1), torch.cat(rest, 1)


def top_places(weights: Tensor, k: int) -> Tensor:
    """Return the indices of each row's k largest weights, (..., k) int64; ties in order of index.

    float32 weights from 0 on are ordered as their bits are; with the index in the lower bits no
    two are equal.
    """
    places = torch.arange(weights.shape[-1], device=weights.device)
    ordered = weights.contiguous().view(torch.int32).long() << 32 | (len(places) - 1 - places)
    return len(places) - 1 - (ordered.topk(k, -1).values & 0xFFFFFFFF)


def map_blocks(reader: MapReader, size: int) -> Tensor:
    """Pool the map into at most `size` x `size` blocks of equally many units, the last of fewer.

    Returns:
        (heads, blocks, blocks): the sum over a block's keys, the mean over its queries.
    """
    units = len(reader.units.axis)
    step = -(-units // size)  # integer division: no size is too large for it
    count = -(-units // step)
    block = torch.arange(units) // step
    sizes, block = (part.to(reader.q.device) for part in (block.bincount(), block))
    pooled = reader.q.new_zeros(reader.maps, count, count)
    for tile in reader.read_tiles():
        columns = _widen_tile(tile, count * step)
        columns = columns.view(*columns.shape[:2], count, step).sum(3)
        pooled.index_add_(1, block[tile.queries], columns)
    return pooled / sizes.unsqueeze(1)


def average_segments(reader: MapReader, segments: Many[Many[int]]) -> Tensor:
    """Average the map over segments: how much one looks at another.

    Args:
        segments: the places on the axis of each one's units; no two have one in common.

    Returns:
        (heads, segments, segments): the sum over a segment's keys, the mean over its queries.
    """
    device, count = reader.q.device, len(segments)
    places = [place for segment in segments for place in segment]
    numbers = [number for number, segment in enumerate(segments) for _ in segment]
    sizes = torch.tensor([len(segment) for segment in segments], device=device)
    owner, keys = torch.tensor([numbers, places], device=device)
    pooled = reader.q.new_zeros(reader.maps, count, count)
    for tile in reader.read_tiles(places):
        columns = tile.values.new_zeros(*tile.values.shape[:2], count)
        columns.index_add_(2, owner, tile.values.index_select(2, keys))
        pooled.index_add_(1, owner[tile.queries], columns)
    return pooled / sizes.unsqueeze(1)


def _widen_tile(tile: Tile, columns: int) -> Tensor:
    """Return a tile's values in so many columns, 0 in those that it lacks."""
    if tile.values.shape[2] == columns:
        return tile.values
    wide = tile.values.new_zeros(*tile.values.shape[:2], columns)
    wide[:, :, tile.keys] = tile.values
    return wide


class Dominance(NamedTuple):
    """Which key dominates each row of each head, (heads, units) each.

    Args:
        dominant: the place of the key with the largest share, int32; the first of equal ones.
        share: that key's share of the row, own: the row's own unit's.
    """

    dominant: Tensor
    share: Tensor
    own: Tensor


def find_dominance(reader: MapReader) -> Dominance:
    """Return which key dominates each unit, and its share."""
    tiles = []
    for tile in reader.read_tiles():
        share, best = tile.values.max(2)  # the first of a tie, as torch promises
        own = tile.values.diagonal(tile.queries.start - tile.keys.start, 1, 2)
        own = own.clone()  # a view would keep the whole tile
        tiles.append(((best + tile.keys.start).int(), share, own))
    return Dominance(*(torch.cat(parts, 1) for parts in zip(*tiles, strict=True)))


def count_wins(dominant: Tensor, axis: Tensor, units: int) -> Tensor:
    """Count how often each unit dominates another one, over all heads, (units,) int32.

    Args:
        dominant: the dominant unit of each row, (heads of all layers, rows).
        axis: the unit of each row.
        units: how many units there are, shown or not.
    """
    counts = dominant.new_zeros(units, dtype=torch.int32)
    return counts.index_add_(0, dominant.flatten(), (dominant != axis).flatten().int())


def roll_out(readers: Many[MapReader], units: Units) -> Tensor:
    """Roll out the attention of some layers.

    Args:
        readers: the heads of each layer, the lowest layer first, at the level of tokens.
        units: the rows and columns of the result.

    Returns:
        (units, units) float32; rows sum to 1, to less where special tokens are dropped.
    """
    device, (members, places) = readers[0].q.device, units.members()
    rolled = readers[0].q.new_zeros(units.tokens, len(units.axis))
    rolled[members.to(device), places.to(device)] = 1
    for index, reader in enumerate(readers):
        mixed = torch.zeros_like(rolled)
        for tile in reader.read_tiles():
            mean = tile.values.mean(0)
            if index:
                with without_idle_threads():
                    torch.mm(mean, rolled[tile.keys], out=mixed[tile.queries])
            else:  # for the first layer a product would only copy columns
                near = (members >= tile.keys.start) & (members < tile.keys.stop)
                columns = mean[:, (members[near] - tile.keys.start).to(device)]
                mixed[tile.queries].index_add_(1, places[near].to(device), columns)
        rolled = mixed.add_(rolled).div_(2)
    if units.is_token_level:
        return rolled
    pooled = units.merge(rolled, 0)  # the rows of tokens into rows of units
    if units.renormalize:
        return pooled / pooled.sum(1, keepdim=True)
    return pooled / places.bincount().to(rolled.device).unsqueeze(1)
