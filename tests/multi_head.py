"""Multi-head attention of model/lessons.py's parts, as torch and ONNX have it, to compare with.

Source of windows and softcap: ONNX operator Attention, opset 25.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention.attention import MultiHeadAttention
from model.attention.positions import Rotation
from model.kernels import Affine
from model.lessons import attention_probabilities, mix_values, score_keys

Window = int | tuple[int | None, int | None]  # keys to the left and to the right; None is all


class HeadWeights(NamedTuple):
    """One head's W_i^Q and W_i^K, (width, d_k), W_i^V, (width, d_v), and W_i^O, (d_v, width)."""

    query: Tensor
    key: Tensor
    value: Tensor
    output: Tensor


def head_weights(attention: MultiHeadAttention, head: int) -> HeadWeights:
    """Return the four weight matrices of one head of a served layer."""
    inputs = attention.split_projections(attention.project.weight())
    q, k, v = (part[head].T for part in inputs)
    return HeadWeights(q, k, v, attention.output.weight().chunk(attention.heads, 1)[head].T)


class Attended(NamedTuple):
    """What `attend` returns.

    Args:
        mixed: (..., heads, query, d_v), in the dtype of the values.
        probabilities: (..., heads, query, key).
    """

    mixed: Tensor
    probabilities: Tensor


def attend(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    scale: float | None = None,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    window: Window | None = None,
    softcap: float | None = None,
) -> Attended:
    """Mix, for every query, the values of the keys that fit it.

    Args:
        query: (..., heads, query, d_k).
        key: (..., heads, key, d_k); one head serves all of the query's.
        value: (..., heads, key, d_v).
        window: how far a query looks to the left and to the right, itself and the last key
            included; (None, 0) is causal. Both sequences are counted from 0.
        softcap: see `capped`.
    """
    scores = capped(score_keys(query, key, scale=scale), softcap)
    if window is not None:
        within = _within(window, scores)
        keep = within if keep is None else keep & within
    probabilities = attention_probabilities(scores, keep=keep, bias=bias)
    return Attended(mix_values(probabilities, value), probabilities)


def capped(scores: Tensor, softcap: float | None) -> Tensor:
    """Bend scores s into (-c, c) as c tanh(s / c), for a softcap c > 0."""
    return scores if softcap is None else softcap * (scores / softcap).tanh()


def _within(window: Window, like: Tensor) -> Tensor:
    """Whether a key is inside a query's window, (query, key) bool."""
    sides = window if isinstance(window, tuple) else (window, window)
    left, right = (math.inf if side is None else side for side in sides)
    queries, keys = (torch.arange(tokens, device=like.device) for tokens in like.shape[-2:])
    ahead = keys[None, :] - queries[:, None]
    return (ahead >= -left) & (ahead <= right)


class MultiHead:
    """Attention with weights: of a sequence to itself, or of one sequence to another.

    Args:
        query, key: W^Q and W^K, weight (heads * d_k, width) and bias (heads * d_k,) or None,
            head by head; the width is that of the rows that will be given.
        value: W^V, weight (heads * d_v, width).
        output: W^O, weight (width, heads * d_v).
        rotation: turns queries and keys by their position, each sequence counted from 0.
    """

    def __init__(
        self,
        query: Affine,
        key: Affine,
        value: Affine,
        output: Affine,
        heads: int,
        *,
        rotation: Rotation | None = None,
    ) -> None:
        for name, channels in (("d_k", query[0].shape[0]), ("d_v", value[0].shape[0])):
            if channels % heads:
                raise ValueError(f"heads ({heads}) must divide heads * {name} ({channels})")
        self.query, self.key, self.value, self.output = query, key, value, output
        self.heads, self.rotation = heads, rotation

    def __call__(
        self,
        query_rows: Tensor,
        key_rows: Tensor | None = None,
        value_rows: Tensor | None = None,
        *,
        keep: Tensor | None = None,
        bias: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mix into each query row what it finds among the key rows; see `attend`.

        Args:
            query_rows: (..., query, width).
            key_rows: (..., key, width); None is the query rows: self-attention.
            value_rows: (..., key, width); None is the key rows.
            bias: it is table[positions.distance_buckets(...)], with heads brought first.

        Returns:
            The output, (..., query, width), and the probabilities, (..., heads, query, key).
        """
        key_rows = query_rows if key_rows is None else key_rows
        value_rows = key_rows if value_rows is None else value_rows
        q = self._rotate(self._split(query_rows, self.query))  # (..., heads, query, d_k)
        k = self._rotate(self._split(key_rows, self.key))  # (..., heads, key, d_k)
        v = self._split(value_rows, self.value)  # (..., heads, key, d_v)
        mixed, probabilities = attend(q, k, v, keep=keep, bias=bias)
        concat = mixed.transpose(-3, -2).flatten(-2)  # (..., query, heads * d_v)
        return F.linear(concat, *self.output), probabilities

    def _split(self, rows: Tensor, projection: Affine) -> Tensor:
        """Project (..., tokens, width) and cut it into (..., heads, tokens, d)."""
        projected = F.linear(rows, *projection)
        return torch.unflatten(projected, -1, (self.heads, -1)).transpose(-3, -2)

    def _rotate(self, x: Tensor) -> Tensor:
        """Rotate (..., heads, tokens, d_k) by position."""
        if self.rotation is None:
            return x
        positions = torch.arange(x.shape[-2], device=x.device)
        return self.rotation(x.transpose(-3, -2), positions).transpose(-3, -2)

    def head(self, index: int) -> HeadWeights:
        """Return the four matrices of one head, counted from 0; views, not copies."""
        inputs = (self.query, self.key, self.value)
        q, k, v = (weight.chunk(self.heads)[index].T for weight, _ in inputs)
        return HeadWeights(q, k, v, self.output[0].chunk(self.heads, dim=1)[index].T)
