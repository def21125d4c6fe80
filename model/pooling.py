"""Token vectors -> one vector.

reduce   one vector per mode, end to end where a checkpoint asks for several
layers   activation(W x + b), LayerNorm, length 1: as often as a checkpoint asks
cut      keep the first numbers only
normalise   to length 1
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import PoolingMode
from model.kernels import Affine, Linear
from model.kernels import normalise as layer_norm
from model.packing import send


def identity(x: Tensor) -> Tensor:
    """Return x unchanged: the activation of a Dense layer that has none."""
    return x


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """activation(W x + b), plus a residual made of x in some checkpoints.

    All is float32, as in all layers here, for any dtype of the encoder.

    Args:
        linear: W and b.
        outputs: numbers of a row that come out.
        weight_count: how many weights its matrices have.
        residual: maps x to what is added; None: nothing is.
    """

    linear: Linear
    activation: Callable[[Tensor], Tensor]
    outputs: int
    weight_count: int
    residual: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Map (rows, inputs) -> (rows, outputs)."""
        y = self.activation(self.linear(x))
        return y if self.residual is None else y + self.residual(x)

    def matrix(self) -> Tensor:
        """Return W plus the residual's matrix, (outputs, inputs), without the activation."""
        weight = self.linear.weight()
        if self.residual is None:
            return weight
        return weight + self.residual(torch.eye(weight.shape[1], device=weight.device)).T


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """LayerNorm of each row.

    Args:
        eps: added to the variance.
        outputs: numbers of a row.
    """

    affine: Affine  # weight and bias
    eps: float
    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """Normalise each row of (rows, outputs)."""
        return layer_norm(x, self.affine, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """A layer that scales each row, of `outputs` numbers, to length 1; zeros stay zeros."""

    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """Scale each row of (rows, outputs)."""
        return F.normalize(x, dim=1)


PoolingLayer = Dense | Norm | Unit  # a step between reducing and cutting


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a sequence becomes one vector.

    Args:
        modes: mean or max over all tokens, the first (cls) or last token, the sum divided by
            the root of the length, the mean weighted by place (1, 2, 3 ..).
        normalize: whether the vector is scaled to length 1.
        dimensions: how many first numbers are kept, before normalising; None: all.
        layers: applied after reducing, before cutting.
    """

    modes: tuple[PoolingMode, ...]
    normalize: bool
    dimensions: int | None = None
    layers: tuple[PoolingLayer, ...] = ()

    def uncut_size(self, width: int) -> int:
        """Return the size of a vector before the cut, for token vectors of this width."""
        return self.layers[-1].outputs if self.layers else len(self.modes) * width

    def vector_size(self, width: int) -> int:
        """Return the size of a vector, for token vectors of this width."""
        return self.dimensions or self.uncut_size(width)


def pool_sequence(tokens: Tensor, pooling: Pooling) -> Tensor:
    """Return one vector, (size or dimensions,) float32, for one sequence's (tokens, width)."""
    tokens = tokens.float()
    pooled = torch.cat([_reduce(tokens, mode) for mode in pooling.modes])
    for layer in pooling.layers:
        pooled = layer(pooled[None])[0]
    pooled = pooled[: pooling.dimensions]
    if pooling.normalize:
        pooled = F.normalize(pooled, dim=0)  # a zero vector stays zero
    return pooled


def pool_each(tokens: Tensor, rows: Sequence[slice], pooling: Pooling) -> Tensor:
    """Pool some sequences of a batch, one by one, (sequences, size or dimensions) float32.

    Args:
        tokens: of the whole batch, (rows, width).
        rows: of each sequence.
    """
    return torch.stack([pool_sequence(tokens[one], pooling) for one in rows])


def pool_together(tokens: Tensor, rows: Sequence[slice], pooling: Pooling) -> Tensor:
    """Pool as `pool_each`, in as many operations as one sequence takes: a GPU launches each.

    Sums are made in another order, so the last bits differ.
    """
    edges = [[one.start for one in rows], [one.stop - one.start for one in rows]]
    starts, lengths = send(torch.tensor(edges), tokens.device).unbind()
    total = sum(edges[1])
    firsts = lengths.cumsum(0) - lengths  # of each sequence's rows, where only these lie end to end
    place = torch.arange(total, device=tokens.device) - _repeat_by_row(firsts, lengths, total)
    own = tokens[_repeat_by_row(starts, lengths, total) + place].float()
    parts = [_reduce_each(own, place, firsts, lengths, mode) for mode in pooling.modes]
    pooled = torch.cat(parts, 1)
    for layer in pooling.layers:
        pooled = layer(pooled)
    pooled = pooled[:, : pooling.dimensions]
    return F.normalize(pooled, dim=1) if pooling.normalize else pooled


def _repeat_by_row(numbers: Tensor, lengths: Tensor, total: int) -> Tensor:
    """Repeat each sequence's number once for each of its rows, (total,)."""
    return numbers.repeat_interleave(lengths, output_size=total)


def _reduce_each(
    rows: Tensor, place: Tensor, firsts: Tensor, lengths: Tensor, mode: PoolingMode
) -> Tensor:
    """Reduce as `_reduce` each of the sequences that lie end to end, (sequences, width).

    Args:
        place: of each row in its sequence, from 0, (rows,).
        firsts, lengths: each sequence's first row, and its number of rows, (sequences,).
    """

    def reduce_segments(rows: Tensor, operation: str) -> Tensor:
        """Reduce each sequence's rows by torch's operation, "sum", "mean" or "max"."""
        # unchecked, since a check would wait for the device
        return torch.segment_reduce(rows, operation, lengths=lengths, unsafe=True)

    match mode:
        case "mean" | "max":
            return reduce_segments(rows, mode)
        case "cls":
            return rows[firsts]
        case "last":
            return rows[firsts + lengths - 1]
        case "mean_sqrt_len":
            return reduce_segments(rows, "sum") / lengths.sqrt()[:, None]
        case "weightedmean":
            weights = lengths * (lengths + 1) / 2
            return reduce_segments(rows * (place + 1)[:, None], "sum") / weights[:, None]


def _reduce(tokens: Tensor, mode: PoolingMode) -> Tensor:
    """Reduce one sequence's token vectors, (tokens, width), to one, (width,)."""
    match mode:
        case "mean":
            return tokens.mean(0)
        case "max":
            return tokens.amax(0)
        case "cls":
            return tokens[0]
        case "last":
            return tokens[-1]
        case "mean_sqrt_len":
            return tokens.sum(0) / math.sqrt(len(tokens))
        case "weightedmean":
            places = torch.arange(1, len(tokens) + 1, dtype=tokens.dtype, device=tokens.device)
            return (tokens * places[:, None]).sum(0) / places.sum()
