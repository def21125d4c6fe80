"""Statistics of a head on one sequence: where it attends, how sharply, what it adds.

P is a map, N its rows, i a query, j a key, and every mean is over the rows of P.

    self, previous, next    mean of P_ij, j = i, i - 1, i + 1, over the rows that have one
    cls                     mean of P_ij, j the first special token
    sep                     mean of the sum of P_ij over the separators j
    entropy                 mean of -sum_j P_ij ln P_ij, nats
    entropy_ratio           entropy / ln N: 1 attends everywhere equally
    confidence              mean of max_j P_ij, j not a separator
    distance                sum of P_ij |i - j| / sum of P_ij, in units
    received_max            max_j of the mean of P_ij: what the most noticed key receives
    contribution            mean of ||z_i W^O|| / sum over all heads of it, of this head

Sources: Clark et al. 2019, section 3; Voita et al. 2019, section 4 (confidence); Vig and Belinkov
2019, section 4 (distance); Kovaleva et al. 2019 (received); Kobayashi et al. 2020 (contribution).

All come from one walk over tiles. Entropy, received attention and offsets could be had from more
fused passes instead; two of the others cannot, and then the walk is cheaper than any of those
(docs/decisions/0007-attention-forms.md).
"""

import math
from collections.abc import Sequence as Many
from functools import lru_cache

import torch
from torch import Tensor

from model.attention.attention import Trace
from model.maps.choices import STATISTIC_FIELDS
from model.maps.tiles import MapReader, Tile, output_norms

LN2 = math.log(2)  # base 2 logarithms times it are nats
DIAGONAL_OFFSETS = {"self": 0, "previous": -1, "next": 1}  # of the key from the query
SUMMED_FIELDS = (*DIAGONAL_OFFSETS, "entropy", "confidence", "distance")  # summed up over tiles


def measure_heads(
    readers: Many[MapReader],
    traces: Many[Trace],
    rows: slice,
    cls: int | None,
    separators: Many[int],
) -> Tensor:
    """Return STATISTIC_FIELDS of every head, (heads, fields); NaN where nothing is averaged.

    Args:
        readers: one for each layer, of weight probability, all of the same units.
        traces, rows: those of `readers`.
        cls: the place on the axis of the first special token.
        separators: the places of the separators.
    """
    distinct = torch.tensor(sorted(set(separators)), dtype=torch.int64)  # on the host
    scratch = max(readers, key=lambda reader: len(reader.heads)).allocate_scratch()
    sums = [_sum_tiles(reader, distinct, scratch) for reader in readers]
    received, scalars = (torch.cat(parts) for parts in zip(*sums, strict=True))
    by_name = dict(zip(SUMMED_FIELDS, scalars.unbind(1), strict=True))
    means = _average_fields(received, by_name, cls, distinct)
    means["contribution"] = _contributions(readers, traces, rows)
    return torch.stack([means[name] for name in STATISTIC_FIELDS], 1)


def _sum_tiles(reader: MapReader, separators: Tensor, scratch: Tensor) -> tuple[Tensor, Tensor]:
    """Return a layer's weights summed by key, (heads, keys), and SUMMED_FIELDS, (heads, fields).

    Args:
        separators: their places on the axis, (separators,), on the host.
    """
    received = reader.q.new_zeros(len(reader.heads), len(reader.units.axis))
    scalars = reader.q.new_zeros(len(reader.heads), len(SUMMED_FIELDS))
    for tile in reader.read_tiles(scratch=scratch):
        values, shift = tile.values, tile.queries.start - tile.keys.start
        received[:, tile.keys] += values.sum(1)
        offsets = [
            values.diagonal(shift + offset, 1, 2).sum(1) for offset in DIAGONAL_OFFSETS.values()
        ]
        entropy = _sum_entropy(tile)  # before separators are taken out
        distance = _sum_distance(tile, shift)
        is_inside = (separators >= tile.keys.start) & (separators < tile.keys.stop)
        inside = separators[is_inside] - tile.keys.start
        confidence = values.index_fill_(2, inside.to(values.device), 0.0).amax(2).sum(1)
        scalars += torch.stack([*offsets, entropy, confidence, distance], 1)
    return received, scalars


def _sum_entropy(tile: Tile) -> Tensor:
    """Return the sum of the entropies of a tile's rows, (heads,), in nats; overwrites its logs."""
    if tile.log2_values is None or tile.row_sums is None:
        entropies: Tensor = torch.special.entr(tile.values)
        return _sum_cells(entropies)
    return (_sum_cells(tile.row_sums.log2()) - _sum_cells(tile.log2_values.mul_(tile.values))) * LN2


def _sum_distance(tile: Tile, shift: int) -> Tensor:
    """Return the sum of weight times distance over a tile, (heads,); overwrites its logs.

    This is no matrix product: its bits would depend on how many heads and cores there are.
    """
    far = _distances(*tile.values.shape[1:], shift, tile.values.device)
    return _sum_cells(torch.mul(tile.values, far, out=tile.log2_values))


def _sum_cells(tile: Tensor) -> Tensor:
    """Sum up each head's cells, (heads, queries, keys) -> (heads,), row by row.

    In one sum torch would divide a lone head's cells among cores, in another order.
    """
    return tile.sum(2).sum(1)


def _average_fields(
    received: Tensor, sums: dict[str, Tensor], cls: int | None, separators: Tensor
) -> dict[str, Tensor]:
    """Return the averaged statistics by name, (heads,) each, except the contribution.

    Args:
        received: weights summed by key, (heads, keys).
        sums: SUMMED_FIELDS by name, (heads,) each.
        cls, separators: places on the axis, as of `measure_heads`.
    """
    none, units = received.new_full(received.shape[:1], math.nan), received.shape[1]
    columns = separators.to(received.device)
    counts = {name: units - abs(offset) for name, offset in DIAGONAL_OFFSETS.items()}
    means = {name: sums[name] / count if count else none for name, count in counts.items()}
    means["cls"] = none if cls is None else received[:, cls] / units
    means["sep"] = received[:, columns].sum(1) / units if len(columns) else none
    means["entropy"] = (sums["entropy"] / units).clamp_min(0)  # rounding can leave less
    means["entropy_ratio"] = means["entropy"] / math.log(units) if units > 1 else none
    means["confidence"] = sums["confidence"] / units if len(columns) < units else none
    means["distance"] = sums["distance"] / received.sum(1)
    means["received_max"] = received.amax(1) / units
    return means


@lru_cache(maxsize=32)  # layers and sequences of a length share their tiles' shapes
def _distances(queries: int, keys: int, shift: int, device: torch.device) -> Tensor:
    """Return |query + shift - key| of a tile's queries and keys, from 0 on, (queries, keys)."""
    query, key = (torch.arange(units, device=device) for units in (queries, keys))
    return (query[:, None] + shift - key).abs().float()


def _contributions(readers: Many[MapReader], traces: Many[Trace], rows: slice) -> Tensor:
    """Return each head's share of what its layer's heads write, (heads,), the mean over units."""
    layers = []
    for trace in traces:
        attention = trace.attention
        z = trace.z[rows].float().view(-1, attention.heads, attention.head_dim).transpose(0, 1)
        layers.append(output_norms(z, attention.output_triangles))
    lengths, units = torch.stack(layers), readers[0].units  # (layers, heads, tokens)
    shares = lengths / lengths.sum(1, keepdim=True)
    sizes = units.members()[1].bincount().to(shares.device)
    means = (units.merge(shares, 2) / sizes).mean(2)
    return torch.cat([mean[reader.index] for mean, reader in zip(means, readers, strict=True)])
