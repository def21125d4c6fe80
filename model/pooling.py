"""Token vectors -> one vector.

reduce   one vector per mode, end to end where a checkpoint asks for several
layers   activation(W x + b), LayerNorm, length 1: as often as a checkpoint asks
cut      the first so many numbers
normalise
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


def identity(x: Tensor) -> Tensor:
    """Return x unchanged: the activation of a Dense layer that has none."""
    return x


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """activation(W x + b), plus what a checkpoint adds of x itself.

    All is float32, as in all layers here, whatever the encoder's dtype.

    Args:
        outputs: numbers that come out.
        weight_count: numbers of its matrices.
        residual: x -> what is added.
    """

    linear: Linear
    activation: Callable[[Tensor], Tensor]
    outputs: int
    weight_count: int
    residual: Callable[[Tensor], Tensor] | None = None

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it: (rows, inputs) -> (rows, outputs)."""
        made = self.activation(self.linear(x))
        return made if self.residual is None else made + self.residual(x)

    def matrix(self) -> Tensor:
        """Return the matrix that it is where it has no activation, (outputs, inputs)."""
        weight = self.linear.weight()
        if self.residual is None:
            return weight
        return weight + self.residual(torch.eye(weight.shape[1], device=weight.device)).T


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """LayerNorm of each row.

    Args:
        eps: added to the variance.
    """

    affine: Affine
    eps: float
    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it: (rows, outputs) -> (rows, outputs)."""
        return layer_norm(x, self.affine, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class Unit:
    """Each row scaled to length 1; a row of zeros stays so."""

    outputs: int

    def __call__(self, x: Tensor) -> Tensor:
        """Apply it: (rows, outputs) -> (rows, outputs)."""
        return F.normalize(x, dim=1)


PoolingLayer = Dense | Norm | Unit


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a sequence becomes one vector.

    Args:
        modes: mean or max over all tokens, the first (cls) or last token, the sum divided by
            the root of the length, the mean weighted by place (1, 2, 3 ..).
        normalize: scale to length 1.
        dimensions: keep the first so many numbers, before normalising; None keeps all.
        layers: between reducing and cutting.
    """

    modes: tuple[PoolingMode, ...]
    normalize: bool
    dimensions: int | None = None
    layers: tuple[PoolingLayer, ...] = ()

    def uncut_size(self, width: int) -> int:
        """Count the numbers before the cut, of token vectors of this width."""
        return self.layers[-1].outputs if self.layers else len(self.modes) * width

    def vector_size(self, width: int) -> int:
        """Count the numbers of a vector."""
        return self.dimensions or self.uncut_size(width)


def pool_sequence(tokens: Tensor, how: Pooling) -> Tensor:
    """Return one vector, (size or dimensions,) float32, for one sequence's (tokens, width)."""
    tokens = tokens.float()
    pooled = torch.cat([_reduce(tokens, mode) for mode in how.modes])
    for layer in how.layers:
        pooled = layer(pooled[None])[0]
    pooled = pooled[: how.dimensions]
    if how.normalize:
        pooled = F.normalize(pooled, dim=0)  # a zero vector stays zero
    return pooled


def pool_each(tokens: Tensor, rows: Sequence[slice], how: Pooling) -> Tensor:
    """Return a vector for each of some sequences, (sequences, size or dimensions) float32.

    Args:
        tokens: of the whole batch, (rows, width).
    """
    return torch.stack([pool_sequence(tokens[each], how) for each in rows])


def pool_together(tokens: Tensor, rows: Sequence[slice], how: Pooling) -> Tensor:
    """Pool as `pool_each`, in as many operations as one sequence takes: a GPU launches each.

    Sums are made in another order, so the last bits differ.
    """
    edges = [[each.start for each in rows], [each.stop - each.start for each in rows]]
    starts, lengths = torch.tensor(edges).to(tokens.device).unbind()
    total = sum(edges[1])
    firsts = lengths.cumsum(0) - lengths  # of each sequence's rows, where only these lie end to end
    place = torch.arange(total, device=tokens.device) - _repeat_by_row(firsts, lengths, total)
    own = tokens[_repeat_by_row(starts, lengths, total) + place].float()
    pooled = torch.cat([_reduce_each(own, place, firsts, lengths, mode) for mode in how.modes], 1)
    for layer in how.layers:
        pooled = layer(pooled)
    pooled = pooled[:, : how.dimensions]
    return F.normalize(pooled, dim=1) if how.normalize else pooled


def _repeat_by_row(numbers: Tensor, lengths: Tensor, total: int) -> Tensor:
    """Return each sequence's number for each of its rows, (total,)."""
    return numbers.repeat_interleave(lengths, output_size=total)


def _reduce_each(
    rows: Tensor, place: Tensor, firsts: Tensor, lengths: Tensor, mode: PoolingMode
) -> Tensor:
    """Reduce as `_reduce` each of the sequences that lie end to end, (sequences, width)."""

    def reduced(rows: Tensor, how: str) -> Tensor:
        # unchecked, since a check would wait for the device
        return torch.segment_reduce(rows, how, lengths=lengths, unsafe=True)

    match mode:
        case "mean" | "max":
            return reduced(rows, mode)
        case "cls":
            return rows[firsts]
        case "last":
            return rows[firsts + lengths - 1]
        case "mean_sqrt_len":
            return reduced(rows, "sum") / lengths.sqrt()[:, None]
        case "weightedmean":
            weights = lengths * (lengths + 1) / 2
            return reduced(rows * (place + 1)[:, None], "sum") / weights[:, None]


def _reduce(tokens: Tensor, mode: PoolingMode) -> Tensor:
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
