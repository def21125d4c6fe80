"""What a head does on one sequence, as numbers: where it looks, how sharply, what it adds.

P is a map, N its rows, i a query, j a key, and every mean is over the rows of P.

    self, previous, next    mean of P_ij, j = i, i - 1, i + 1, over the rows that have one
    cls                     mean of P_ij, j the first special token
    sep                     mean of the sum of P_ij over the separators j
    entropy                 mean of -sum_j P_ij ln P_ij, nats
    entropy_ratio           entropy / ln N: 1 looks everywhere alike
    confidence              mean of max_j P_ij, j no separator
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

from model.attention import Trace
from model.tiles import Look, Tile, written
from model.units import Units

FIELDS = (
    "self",
    "previous",
    "next",
    "cls",
    "sep",
    "entropy",
    "entropy_ratio",
    "confidence",
    "distance",
    "received_max",
    "contribution",
)
LN2 = math.log(2)
OFFSETS = {"self": 0, "previous": -1, "next": 1}


def statistics(
    look: Look, trace: Trace, rows: slice, cls: int | None, separators: Many[int]
) -> Tensor:
    """FIELDS of every head, (heads, fields); NaN where there is nothing to average over.

    Args:
        look: of weight probability.
        trace, rows: what `look` was made of.
        cls: the place on the axis of the first special token.
        separators: the places of the separators.
    """
    sums = _Sums(look, separators)
    for tile in look.tiles():
        sums.add(tile)
    found = sums.means(cls)
    found["contribution"] = _contribution(trace, rows, look.units)[look.picked]
    return torch.stack([found[name] for name in FIELDS], 1)


class _Sums:
    """Sums over the tiles of a map."""

    def __init__(self, look: Look, separators: Many[int]) -> None:
        self.units, self.separators = len(look.units.axis), len(set(separators))
        self.separating = look.q.new_zeros(self.units, dtype=torch.bool)
        self.separating[list(separators)] = True
        zeros = look.q.new_zeros(len(look.chosen))
        self.entropy, self.confidence, self.distance = zeros, zeros, zeros
        self.offsets = dict.fromkeys(OFFSETS, zeros)
        self.received = look.q.new_zeros(len(look.chosen), self.units)

    def add(self, tile: Tile) -> None:
        """Take one tile in; its values are spent afterwards."""
        values, shift = tile.values, tile.queries.start - tile.keys.start
        for name, offset in OFFSETS.items():
            diagonal = values.diagonal(shift + offset, 1, 2)
            self.offsets[name] = self.offsets[name] + diagonal.sum(1)
        flat = values.flatten(1)
        if tile.logs is None:
            self.entropy = self.entropy + torch.special.entr(flat).sum(1)
        else:
            pairs = zip(flat, tile.logs.flatten(1), strict=True)
            self.entropy = self.entropy - torch.stack([torch.dot(*pair) for pair in pairs]) * LN2
        far = _far(values.shape[1], values.shape[2], shift, values.device)
        self.distance = self.distance + flat @ far
        self.received[:, tile.keys] += values.sum(1)
        if self.separators:
            values[:, :, self.separating[tile.keys]] = 0.0
        self.confidence = self.confidence + values.amax(2).sum(1)

    def means(self, cls: int | None) -> dict[str, Tensor]:
        """The statistics by name."""
        none, units = torch.full_like(self.entropy, math.nan), self.units
        having = {name: units - abs(offset) for name, offset in OFFSETS.items()}
        found = {
            name: total / having[name] if having[name] else none
            for name, total in self.offsets.items()
        }
        found["cls"] = none if cls is None else self.received[:, cls] / units
        sep = self.received[:, self.separating].sum(1) / units
        found["sep"] = sep if self.separators else none
        found["entropy"] = (self.entropy / units).clamp_min(0)  # rounding can leave less
        found["entropy_ratio"] = found["entropy"] / math.log(units) if units > 1 else none
        found["confidence"] = self.confidence / units if self.separators < units else none
        found["distance"] = self.distance / self.received.sum(1)
        found["received_max"] = self.received.amax(1) / units
        return found


@lru_cache(maxsize=32)  # layers and sequences of a length share their tiles' shapes
def _far(queries: int, keys: int, shift: int, device: torch.device) -> Tensor:
    """How far each key of a tile is from each query, (queries * keys,)."""
    query, key = (torch.arange(units, device=device) for units in (queries, keys))
    return (query[:, None] + shift - key).abs().float().flatten()


def _contribution(trace: Trace, rows: slice, units: Units) -> Tensor:
    """Each head's share of what all heads write, (heads,), as the mean over the units shown."""
    attention = trace.attention
    z = trace.z[rows].float().view(-1, attention.heads, attention.head).transpose(0, 1)
    lengths = written(z, attention.gram)
    shares = lengths / lengths.sum(0)
    if units.whole:
        return shares.mean(1)
    shown, places = (part.to(z.device) for part in units.shown())
    means = shares.new_zeros(len(shares), len(units.axis)).index_add_(1, places, shares[:, shown])
    return (means / places.bincount()).mean(1)
