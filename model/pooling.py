"""Token vectors -> one vector.

reduce   one vector per mode, end to end where a checkpoint asks for several
dense    activation(W x + b), as often as a checkpoint asks
cut      the first so many numbers
normalise
"""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Mode
from model.kernels import Linear


@dataclass(frozen=True, slots=True, eq=False)
class Dense:
    """A layer behind the reduction, of one vector; float32, whatever the encoder's dtype.

    Args:
        outputs: numbers that come out.
    """

    linear: Linear
    activation: Callable[[Tensor], Tensor]
    outputs: int

    def __call__(self, vector: Tensor) -> Tensor:
        """(inputs,) -> (outputs,)."""
        return self.activation(self.linear(vector[None]))[0]


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a sequence becomes one vector.

    Args:
        modes: mean or max over all tokens, the first (cls) or last token, the sum divided by
            the root of the length, the mean weighted by place (1, 2, 3 ..).
        normalize: scale to length 1.
        dimensions: keep the first so many numbers, before normalising; None keeps all.
        dense: layers between reducing and cutting.
    """

    modes: tuple[Mode, ...]
    normalize: bool
    dimensions: int | None = None
    dense: tuple[Dense, ...] = ()

    def size(self, width: int) -> int:
        """Numbers before the cut, of token vectors of this width."""
        return self.dense[-1].outputs if self.dense else len(self.modes) * width


def pool(tokens: Tensor, how: Pooling) -> Tensor:
    """One vector, (size or dimensions,) float32, of one sequence's (tokens, width)."""
    tokens = tokens.float()
    pooled = torch.cat([_reduce(tokens, mode) for mode in how.modes])
    for dense in how.dense:
        pooled = dense(pooled)
    pooled = pooled[: how.dimensions]
    if how.normalize:
        pooled = F.normalize(pooled, dim=0)  # a zero vector stays zero
    return pooled


def pool_each(tokens: Tensor, rows: Sequence[slice], how: Pooling) -> Tensor:
    """A vector of each of some sequences, (sequences, size or dimensions) float32.

    Args:
        tokens: of the whole batch, (rows, width).
    """
    return torch.stack([pool(tokens[each], how) for each in rows])


def _reduce(tokens: Tensor, mode: Mode) -> Tensor:
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
