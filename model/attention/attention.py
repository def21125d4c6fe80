"""Multi-head self-attention on packed rows, able to show its weights.

    head_i = softmax(Q_i K_i^T / sqrt(head_dim)) V_i   Q_i = X W_i^Q, K_i = X W_i^K, V_i = X W_i^V
    output = Concat(head_1, ..., head_h) W^O

Source: Vaswani et al. 2017, "Attention Is All You Need", section 3.2.

Axes, in every file of model/:
    rows      all tokens of a batch, end to end (see packing.py)
    tokens    positions of one sequence: called query on the side that attends, key on the
              side that is attended to
    heads     parallel attentions
    head_dim  channels inside one of them; heads * head_dim = width, in most families

Where several heads share keys and values (Ainslie et al. 2023, "GQA"), K_i and V_i are those of
head i / sharing: they are kept once, and every map is still one head's.
"""

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from model.attention.alibi import Slopes
from model.attention.disentangled import ALL_HEADS, DistanceBias, queries_per_pass
from model.attention.positions import Rotation, hiding_bias
from model.attention.reach import EVERYWHERE, Reach
from model.config import NormKind
from model.kernels import Affine, Kernels, normalise
from model.packing import Group, Packed

TILE_QUERIES = 128  # queries computed at a time, where not all keys or maps are needed at once

# rows, and the factor of each head's mixed values
Gates = Sequence[tuple[slice, Mapping[int, float]]]
Biases = Sequence[Tensor | None]  # added to each group's scores; None: no bias
# rows, and what replaces each head's mixed values there, (tokens, head_dim)
Patches = Sequence[tuple[slice, Mapping[int, Tensor]]]


@dataclass(frozen=True, slots=True)
class Trace:
    """What one layer's attention keeps: enough to recompute any of its maps exactly.

    Args:
        attention: the layer's attention.
        q, k, v: queries, keys and values of all rows, as they were multiplied, (rows, heads,
            head_dim); keys and values of fewer heads where several share them.
        z: the mixed values, as W^O reads them, (rows, heads * head_dim).
        normalisers: per group, the log of each softmax row's sum, (sequences, heads, tokens).
        biases: what was added to each group's scores, (1 or heads, query, key) or None.
        row_normalisers: those of all rows, (heads, rows), if one call returned them.
    """

    attention: "MultiHeadAttention"
    q: Tensor
    k: Tensor
    v: Tensor
    z: Tensor
    groups: tuple[Group, ...]
    normalisers: tuple[Tensor, ...]
    biases: Biases
    row_normalisers: Tensor | None = None

    def normaliser_of(self, rows: slice) -> Tensor:
        """Return the log of each softmax row's sum for one sequence, (heads, tokens)."""
        index = self._group_index(rows)
        if self.row_normalisers is not None:
            return self.row_normalisers[:, rows]
        group = self.groups[index]
        return self.normalisers[index][(rows.start - group.start) // group.length]

    def added_scores(
        self, rows: slice, heads: slice | list[int], queries: slice | Tensor, keys: slice
    ) -> Tensor | None:
        """Return the sum of all biases of some scores, (1 or heads, queries, keys); None: none."""
        q, k = (part[rows].transpose(0, 1) for part in (self.q, self.k))
        return self.attention.added_scores(
            q, k, self.biases[self._group_index(rows)], queries, keys, heads
        )

    def _group_index(self, rows: slice) -> int:
        """Return the index of the group that a sequence's rows are in."""
        for index, group in enumerate(self.groups):
            if group.rows.start <= rows.start < group.rows.stop:
                return index
        raise RuntimeError("rows outside every group: this is a bug")


@dataclass(frozen=True, slots=True)
class HeadNorms:
    """The norms of each head's queries and keys; each weight is (head_dim,)."""

    query: Affine
    key: Affine
    eps: float  # added to the variance or mean square
    kind: NormKind

    def __call__(self, q: Tensor, k: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys normalised, (rows, heads, head_dim) each."""
        both = (q, self.query), (k, self.key)
        q, k = (normalise(x, norm, self.eps, self.kind) for x, norm in both)
        return q, k


class MultiHeadAttention:
    """The self-attention of one layer; the three input projections are stored as one.

    Args:
        qkv: weight (3 * width, width) with the rows of W^Q, W^K, W^V in turn, head by head,
            and bias (3 * width,) or None.
        output: weight (width, heads * head_dim) of W^O and bias (width,) or None.
        heads: of queries; of keys and of values there may be fewer.
        score_width: scores are divided by its square root; None: by that of head_dim.
        norms: of queries and keys.
        rotation: rotates queries and keys by their position.
        reach: how far a query attends.
        distances: the score bias by distance; None: no bias.
    """

    def __init__(
        self,
        qkv: Affine,
        output: Affine,
        heads: int,
        kernels: Kernels,
        *,
        score_width: float | None = None,
        norms: HeadNorms | None = None,
        rotation: Rotation | None = None,
        reach: Reach = EVERYWHERE,
        distances: DistanceBias | Slopes | None = None,
    ) -> None:
        self.project, self.output = kernels.linear(*qkv), kernels.linear(*output)
        self.kernels = kernels
        self.heads, self.head_dim = heads, output[0].shape[1] // heads
        shared = (len(qkv[0]) // self.head_dim - heads) // 2
        self.parts, self.sharing = [heads, shared, shared], heads // shared
        terms = 1 if distances is None else 1 + distances.terms
        self.scale = 1 / math.sqrt((score_width or self.head_dim) * terms)
        self.norms, self.rotation, self.reach, self.distances = norms, rotation, reach, distances

    def __call__(
        self,
        x: Tensor,
        residual: Tensor,
        packed: Packed,
        biases: Biases,
        gates: Gates = (),
        patches: Patches = (),
    ) -> tuple[Tensor, Trace]:
        """Attend within the sequence of each row, apply W^O, and add `residual`.

        Args:
            x, residual: (rows, width).
            biases: added to each group's scores, (1 or heads, query, key) or None.
            gates, patches: scale or replace some heads' mixed values of some rows; see
                `edit_heads`.

        Returns:
            residual + MultiHead(x), (rows, width), and the trace. Rows past the last sequence
            mix nothing: their mixed value is 0.
        """
        made = self.split_and_rotate(self.project(x), packed.positions)
        q, k, v = map(self.kernels.round, made)
        unbiased = self.distances is None and all(bias is None for bias in biases)
        if self.kernels.attend_packed is not None and unbiased:
            mixed, row_normalisers = self.kernels.attend_packed(
                q, k, v, packed, self.scale, self.reach
            )
            z, normalisers = mixed.flatten(1), list[Tensor]()
        else:
            z, normalisers = self._attend_by_group(q, k, v, packed, biases)
            row_normalisers = None
        self.edit_heads(z, gates, patches)
        trace = Trace(self, q, k, v, z, packed.groups, tuple(normalisers), biases, row_normalisers)
        return self.output.add_to(z, residual), trace

    def mix_trace(self, trace: Trace, packed: Packed, biases: Biases) -> Tensor:
        """Recompute the mixed values of a trace by this attention's kernels and number format.

        Returns:
            The trace's `z` anew, (rows, heads * head_dim).
        """
        like = self.output.weight()
        q, k, v = (part.to(like) for part in (trace.q, trace.k, trace.v))
        return self._attend_by_group(q, k, v, packed, biases)[0]

    def split_and_rotate(self, rows: Tensor, positions: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return queries, keys and values as they are multiplied, (rows, heads, head_dim) each.

        Args:
            rows: output of the input projections, (rows, channels of all three).
            positions: of each row, (rows,).
        """
        q, k, v = torch.split(rows.view(len(rows), -1, self.head_dim), self.parts, 1)
        if self.norms is not None:
            q, k = self.norms(q, k)
        if self.rotation is not None:
            q, k = self.rotation(q, positions), self.rotation(k, positions)
        return q, k, v

    def repeat_shared(self, shared: Tensor, axis: int = 1) -> Tensor:
        """Repeat keys or values once for each head that shares them, along the axis of heads."""
        return shared if self.sharing == 1 else shared.repeat_interleave(self.sharing, axis)

    def edit_heads(self, z: Tensor, gates: Gates, patches: Patches) -> None:
        """Replace, then scale some heads' mixed values, before W^O reads them.

        Args:
            z: all mixed values, (rows, heads * head_dim), changed in place.
            gates, patches: the factors, and what replaces values, by rows and head.
        """
        for rows, values in patches:
            for head, value in values.items():
                z[rows, self._head_channels(head)] = value
        for rows, scales in gates:
            for head, scale in scales.items():
                z[rows, self._head_channels(head)] *= scale

    def _head_channels(self, head: int) -> slice:
        """Return the columns of one head in the mixed values."""
        return slice(head * self.head_dim, (head + 1) * self.head_dim)

    def _attend_by_group(
        self, q: Tensor, k: Tensor, v: Tensor, packed: Packed, biases: Biases
    ) -> tuple[Tensor, list[Tensor]]:
        """Attend in each group; return z of all rows, as of Trace, and each group's normalisers."""
        k, v = self.repeat_shared(k), self.repeat_shared(v)
        mixed, normalisers = [], []
        for group, bias in zip(packed.groups, biases, strict=True):
            shape = (group.count, group.length, self.heads, self.head_dim)
            queries, keys, values = (
                part[group.rows].view(shape).transpose(1, 2) for part in (q, k, v)
            )
            z, normaliser = self._attend(queries, keys, values, bias)
            mixed.append(z.transpose(1, 2).reshape(-1, self.heads * self.head_dim))
            normalisers.append(normaliser)
        return _join_groups(mixed, len(q)), normalisers

    def _attend(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Attend in one group; arguments and results are those of kernels.attend_plain."""
        if self.distances is not None and self.distances.by_content:
            singles = zip(torch.split(q, 1), torch.split(k, 1), torch.split(v, 1), strict=True)
            results = [self._attend_in_tiles(*single, bias) for single in singles]
            mixed, normalisers = zip(*results, strict=True)
            return torch.cat(mixed), torch.cat(normalisers)
        if self.reach.covers(q.shape[2]):
            if self.distances is None:
                return self.kernels.attend(q, k, v, self.scale, bias)
            if (
                isinstance(self.distances, Slopes)
                and self.kernels.reads_strided_bias
                and bias is None
            ):
                slopes = self.distances.reversed_bias(q.shape[2], q.dtype)
                return self.kernels.attend(q, k.flip(2), v.flip(2), self.scale, slopes)
        return self._attend_in_tiles(q, k, v, bias)

    def _attend_in_tiles(
        self, q: Tensor, k: Tensor, v: Tensor, bias: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        """Attend as `_attend`, in tiles of queries; with a bias by content, in one sequence."""
        tiles, tokens = [], q.shape[2]
        step = TILE_QUERIES if self.distances is None else queries_per_pass(tokens)
        for query, key in tiles_within_reach(tokens, self.reach, step):
            mask = self.added_scores(q[0], k[0], bias, query, key)
            if not self.reach.covers(tokens):
                far = hiding_bias(query, key, self.reach, q)
                mask = far if mask is None else far + mask
            tile = (q[:, :, query], k[:, :, key], v[:, :, key])
            tiles.append(self.kernels.attend(*tile, self.scale, mask))
        mixed, normalisers = zip(*tiles, strict=True)
        return torch.cat(mixed, 2), torch.cat(normalisers, 2)

    def added_scores(
        self,
        q: Tensor,
        k: Tensor,
        bias: Tensor | None,
        queries: slice | Tensor,
        keys: slice,
        heads: slice | list[int] = ALL_HEADS,
    ) -> Tensor | None:
        """Return the sum of all biases of some scores, (1 or heads, queries, keys); None: none.

        Args:
            q, k: of all tokens and heads of one sequence, (heads, tokens, head_dim).
            bias: the group's, (1 or all heads, query, key).
            queries, keys: which tokens.
            heads: which heads; all by default.
        """
        if bias is not None:
            bias = (bias if len(bias) == 1 else bias[heads])[:, queries][:, :, keys]
        if self.distances is None:
            return bias
        added = self.distances(q, k, queries, keys, heads)
        return added if bias is None else added.add_(bias)

    @cached_property
    def output_triangles(self) -> Tensor:
        """Return L_i for every head, (heads, head_dim, head_dim) float32, with W_i^O = L_i Q_i.

        Rows of Q_i are orthonormal, so what a head writes is as long as z L_i is:
        ||z W_i^O|| = ||z L_i||, without the product with W^O.
        """
        columns = self.output.weight().float().view(-1, self.heads, self.head_dim)
        triangles: Tensor = torch.linalg.qr(columns.transpose(0, 1), mode="r").R
        return triangles.mT.contiguous()

    def split_projections(self, rows: Tensor) -> Iterator[Tensor]:
        """Yield W^Q's, W^K's and W^V's part of weights or biases, (heads, head_dim, ..)."""
        heads = rows.view(-1, self.head_dim, *rows.shape[1:])
        q, k, v = torch.split(heads, self.parts)
        yield from (q, self.repeat_shared(k, 0), self.repeat_shared(v, 0))


def tiles_within_reach(tokens: int, reach: Reach, step: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of `step` queries, each with the keys that any of them may attend to."""
    before, after = reach.within(tokens)
    for first in range(0, tokens, step):
        last = min(first + step, tokens)
        yield slice(first, last), slice(max(0, first - before), min(tokens, last + after))


def _join_groups(mixed: list[Tensor], rows: int) -> Tensor:
    """Join the groups' rows and pad them with zeros to this many rows."""
    missing = rows - sum(map(len, mixed))
    if missing:
        mixed = [*mixed, mixed[0].new_zeros(missing, mixed[0].shape[1])]
    return mixed[0] if len(mixed) == 1 else torch.cat(mixed)
