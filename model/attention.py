"""Multi-head self-attention on packed rows, able to show its weights.

    head_i = softmax(Q_i K_i^T / sqrt(head)) V_i      Q_i = X W_i^Q, K_i = X W_i^K, V_i = X W_i^V
    output = Concat(head_1, ..., head_h) W^O

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.

Axes, in every file of model/:
    rows    all tokens of a batch, end to end (see packing.py)
    tokens  positions of one sequence; seen from the side that looks it is called
            query, from the side looked at, key
    heads   parallel attentions
    head    channels inside one of them; heads * head = width
"""

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from model.kernels import Kernels
from model.packing import Group, Packed


class HeadWeights(NamedTuple):
    """W_i^Q, W_i^K, W_i^V, (width, head) each, and W_i^O, (head, width)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


@dataclass(frozen=True, slots=True)
class Trace:
    """What one layer's attention leaves behind: enough to recompute any map of it, exactly.

    Args:
        qkv: queries, keys and values of all rows, (rows, 3, heads, head).
        normalisers: per group, the log of each softmax row's sum, (sequences, heads, tokens).
    """

    qkv: Tensor
    groups: tuple[Group, ...]
    normalisers: tuple[Tensor, ...]
    scale: float

    def sequence(self, rows: slice) -> tuple[Tensor, Tensor, Tensor]:
        """One sequence's q and k, (heads, tokens, head), and normaliser, (heads, tokens)."""
        q, k, _ = self.qkv[rows].permute(1, 2, 0, 3)
        for group, normaliser in zip(self.groups, self.normalisers, strict=True):
            if group.rows.start <= rows.start < group.rows.stop:
                return q, k, normaliser[(rows.start - group.start) // group.length]
        raise RuntimeError("rows outside every group: this is a bug")


class MultiHeadAttention:
    """The attention of one layer; the three input projections are stored as one.

    Args:
        qkv: weight (3 * width, width) with the rows of W^Q, W^K, W^V in turn, head by head,
            and bias (3 * width,).
        output: weight (width, width) and bias (width,) of W^O.
    """

    def __init__(
        self,
        qkv: tuple[Tensor, Tensor],
        output: tuple[Tensor, Tensor],
        heads: int,
        kernels: Kernels,
    ) -> None:
        self.project, self.output = kernels.linear(*qkv), kernels.linear(*output)
        self.attend = kernels.attend
        self.heads, self.head = heads, output[0].shape[1] // heads
        self.scale = 1 / math.sqrt(self.head)

    def __call__(self, x: Tensor, packed: Packed) -> tuple[Tensor, Trace]:
        """Mix each row with the rows of its own sequence; add `x` to what comes out.

        Args:
            x: the residual stream, (rows, width).

        Returns:
            x + MultiHead(x), (rows, width), and the trace. Rows past the last sequence
            mix nothing: their mixed value is 0.
        """
        qkv = self.project(x).view(len(x), 3, self.heads, self.head)
        mixed, normalisers = [], []
        for group in packed.groups:
            shape = (group.count, group.length, 3, self.heads, self.head)
            q, k, v = qkv[group.rows].view(shape).permute(2, 0, 3, 1, 4)
            z, normaliser = self.attend(q, k, v, self.scale)  # z: (sequences, heads, tokens, head)
            mixed.append(z.transpose(1, 2).reshape(-1, self.heads * self.head))
            normalisers.append(normaliser)
        trace = Trace(qkv, packed.groups, tuple(normalisers), self.scale)
        return self.output.add(_join(mixed, len(x)), x), trace

    def weights(self, head: int) -> HeadWeights:
        """The four matrices of one head."""
        rows = slice(head * self.head, (head + 1) * self.head)
        q, k, v = self.project.weight().chunk(3)
        return HeadWeights(q[rows].T, k[rows].T, v[rows].T, self.output.weight()[:, rows].T)


def _join(mixed: list[Tensor], rows: int) -> Tensor:
    """The groups' rows end to end, (rows, width), with zeros where only fill stands."""
    missing = rows - sum(map(len, mixed))
    if missing:
        mixed = [*mixed, mixed[0].new_zeros(missing, mixed[0].shape[1])]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)
