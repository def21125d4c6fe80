"""The cosine of two pooled vectors as a sum over pairs of their tokens, exactly.

Where every step of the pooling is linear, a vector is a sum over tokens and a bias,
u = sum_i c_i + b: c_i is token i's last vector, weighted as the reduction weighs it and sent
through the Dense layers without their biases. Normalising divides by |u|, which the cosine does
anyway. So

    cos(u, v) = (sum_ij <c_i, c'_j>  +  <u - b, b> + <b, v - b> + <b, b>) / (|u| |v|)

The first sum is the matrix; what holds b is the bias's share. Both are in float64. The same holds
of sums over the tokens that enter the model (carried.py), where each text has a b of its own.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import PoolingMode
from model.maps.maps import top_places
from model.maps.units import Units
from model.pooling import Dense, Pooling, identity

BLOCK_CELLS = 1 << 18  # of the matrix computed at once: a few MiB, some ten ms of work


class NotLinear(Exception):
    """A pooling that is not a sum over tokens; the message names the step that is not."""


@dataclass(frozen=True, slots=True)
class ComparedText:
    """One text's vector as a sum over its units, float64.

    Args:
        shown: what each unit shown adds to the vector, (units, size).
        dropped: what all other units add together, (size,).
        bias: what biases add, (size,).
        length: Euclidean norm of the whole vector.
    """

    shown: Tensor
    dropped: Tensor
    bias: Tensor
    length: float


@dataclass(frozen=True, slots=True)
class CosineShares:
    """A cosine split into the scaled products of both sides' units, and what they leave out.

    Args:
        left: what each unit on the left adds to its vector, (left, size).
        right: the same on the right, (right, size).
        scale: factor of each product.
        dropped: the share of pairs with a unit that is not shown.
        bias: the share of pairs with a bias.
        left_bias, right_bias: of it, what each unit has with the other side's biases, (left,) and
            (right,).
        total: the sum of all shares, the product of both vectors as they are divided.
    """

    left: Tensor
    right: Tensor
    scale: float
    dropped: float
    bias: float
    left_bias: Tensor
    right_bias: Tensor
    total: float

    def blocks(self) -> Iterator[Tensor]:
        """Yield the matrix of shares of pairs of units in blocks of rows, (rows, right) float64."""
        rows = max(1, BLOCK_CELLS // len(self.right))
        for first in range(0, len(self.left), rows):
            yield self.left[first : first + rows] @ self.right.T * self.scale


class LinearPooling:
    """A pooling as one linear map of weighted token vectors.

    Args:
        single: whether one token's vector may be the whole, as with cls: then only what it is
            made of can be divided.

    Raises:
        NotLinear: the pooling is none.
    """

    def __init__(self, pooling: Pooling, *, single: bool = False) -> None:
        for mode in pooling.modes:
            if mode in ("cls", "last") and not single:
                raise NotLinear(f'pooling "{mode}"')
            token_weights(mode, 1)  # raises NotLinear
        self._modes = pooling.modes
        self._map: Tensor | None = None  # (size, modes * width)
        self.bias: Tensor | None = None  # (size,)
        for dense in pooling.layers:
            if not isinstance(dense, Dense):
                raise NotLinear("a LayerNorm, or a scaling to length 1, before its last step")
            if dense.activation is not identity:
                raise NotLinear("a Dense layer with an activation")
            weight, bias = dense.matrix().cpu().double(), dense.linear.bias
            self._map = weight if self._map is None else weight @ self._map
            self.bias = None if self.bias is None else weight @ self.bias
            if bias is not None:
                bias = bias.cpu().double()
                self.bias = bias if self.bias is None else self.bias + bias
        self._kept = slice(pooling.dimensions)
        if self.bias is not None:
            self.bias = self.bias[self._kept]

    def weigh_text(self, tokens: Tensor, units: Units) -> ComparedText:
        """Split a text's vector into what its units add.

        Args:
            tokens: vectors of the last layer, (tokens, width).
            units: all of the text, and which of them are shown.
        """
        rows, count = tokens.double(), len(tokens)
        weighted = [rows * token_weights(mode, count)[:, None] for mode in self._modes]
        del rows
        by_unit = _sum_by_unit(weighted[0] if len(weighted) == 1 else torch.cat(weighted, 1), units)
        del weighted
        by_unit = self._project(by_unit)
        bias = by_unit.new_zeros(by_unit.shape[1]) if self.bias is None else self.bias
        length = float((by_unit.sum(0) + bias).norm())
        if len(units.axis) == len(by_unit):
            return ComparedText(by_unit, torch.zeros_like(bias), bias, length)
        hidden = sorted({*range(len(by_unit))} - {*units.axis})
        return ComparedText(by_unit[list(units.axis)], by_unit[hidden].sum(0), bias, length)

    def weigh_sources(self, sources: Tensor, shown: int) -> ComparedText:
        """Split a text's vector into what its sources add; see carried.Sources.

        Args:
            sources: what each adds to the reduced vector: biases, so many shown, others, (sources,
                modes * width).
        """
        rows = self._project(sources.double())
        bias = rows[0] if self.bias is None else rows[0] + self.bias
        own, dropped = rows[1 : 1 + shown], rows[1 + shown :].sum(0)
        length = float((bias + own.sum(0) + dropped).norm())
        return ComparedText(own, dropped, bias, length)

    def carry_back(self, vectors: Tensor, width: int) -> Tensor:
        """Return vectors whose products with a reduced one are those of these with the pooled one.

        But for the bias's; (vectors, size) -> (vectors, width), where a reduced vector has `width`.
        """
        if self._map is not None:
            return vectors @ self._map[self._kept]
        return F.pad(vectors, (0, width - vectors.shape[1]))

    def _project(self, rows: Tensor) -> Tensor:
        """Apply the Dense layers without their biases, (rows, modes * width) -> (rows, size)."""
        return (rows if self._map is None else rows @ self._map.T)[:, self._kept]

    def share_cosine(self, left: ComparedText, right: ComparedText) -> CosineShares:
        """Split the cosine of two texts; all shares are 0 where a vector has length 0."""
        scale = 1 / (left.length * right.length or math.inf)
        sums = left.shown.sum(0), right.shown.sum(0)
        whole = sums[1] + right.dropped
        dropped = left.dropped @ whole + sums[0] @ right.dropped
        bias = (sums[0] + left.dropped) @ right.bias + left.bias @ (whole + right.bias)
        return CosineShares(
            left.shown,
            right.shown,
            scale,
            float(dropped) * scale,
            float(bias) * scale,
            left.shown @ right.bias * scale,
            right.shown @ left.bias * scale,
            float(sums[0] @ sums[1] + dropped + bias) * scale,
        )


def token_weights(mode: PoolingMode, tokens: int) -> Tensor:
    """Return the weight of each token's vector in a reduction, (tokens,); see pooling."""
    match mode:
        case "mean":
            return torch.full((tokens,), 1 / tokens, dtype=torch.float64)
        case "mean_sqrt_len":
            return torch.full((tokens,), 1 / math.sqrt(tokens), dtype=torch.float64)
        case "weightedmean":
            places = torch.arange(1, tokens + 1, dtype=torch.float64)
            return places / places.sum()
        case "cls" | "last":
            weights = torch.zeros(tokens, dtype=torch.float64)
            weights[0 if mode == "cls" else -1] = 1
            return weights
        case "max":
            raise NotLinear(f'pooling "{mode}"')


def _sum_by_unit(rows: Tensor, units: Units) -> Tensor:
    """Return the sums of the tokens' rows, (tokens, size), by unit, (all units, size)."""
    if len(units.spans) == len(rows):
        return rows
    lengths = torch.tensor([last - first for first, last in units.spans])
    places = torch.arange(len(lengths)).repeat_interleave(lengths)
    return rows.new_zeros(len(lengths), rows.shape[1]).index_add_(0, places, rows)


class StrongestShares:
    """Keeps the k largest shares, by absolute value, of a matrix that comes in blocks of rows.

    Args:
        k: how many are kept; fewer where the matrix has no more.
    """

    def __init__(self, k: int) -> None:
        self._k, self._cells, self._columns = k, 0, 1
        self._places, self._shares = torch.empty(0, dtype=torch.int64), torch.empty(0).double()

    def add_rows(self, block: Tensor) -> None:
        """Take in the matrix's next rows, (rows, columns) float64."""
        flat = block.flatten()
        best = _largest_places(flat, self._k)
        places, shares = best + self._cells, flat[best]
        if self._cells:
            places, shares = torch.cat([self._places, places]), torch.cat([self._shares, shares])
            # ties from earlier rows stand first and stay first
            best = _largest_places(shares, self._k)
            places, shares = places[best], shares[best]
        self._places, self._shares = places, shares
        self._cells, self._columns = self._cells + len(flat), block.shape[1]

    def strongest_pairs(self) -> tuple[Tensor, Tensor, Tensor]:
        """Return the rows, columns and shares of those kept, largest first, (k,) each."""
        return self._places // self._columns, self._places % self._columns, self._shares


def _largest_places(shares: Tensor, k: int) -> Tensor:
    """Return the indices of the k shares largest by absolute value, or of all."""
    return top_places(shares.abs().float(), min(k, len(shares)))
