"""The attention mechanism alone: dense, every step written out.

    S_i = scale Q_i K_i^T                        how well each key fits each query: score
    P_i = softmax(S_i + bias), 0 where hidden    the attention map of head i: weigh
    Z_i = P_i V_i                                the values, mixed: mix
    MultiHead(Q, K, V) = Concat(Z_0, .., Z_(h-1)) W^O = sum_i Z_i W_i^O

For teaching, for checking, and for looking from one sequence at another; what the encoder runs
is attention.py. Scores, softmax and mixing are float32, or float64 where the input is.

Sources: Vaswani et al. 2017, "Attention Is All You Need", section 3.2; ONNX operator Attention,
opset 25 (softcap, windows, rows without a key).

Axes, beyond those of attention.py: `...` are any leading axes, usually the batch; d_k and d_v
are the channels of one head in keys and in values, and may differ.
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import HeadWeights
from model.kernels import Affine
from model.positions import Rotation

Window = int | tuple[int | None, int | None]  # keys to the left and to the right; None is all


class Attended(NamedTuple):
    """What `attend` returns.

    Args:
        mixed: (..., heads, query, d_v), in the dtype of the values.
        probabilities: (..., heads, query, key), at least float32. A row sums to 1 over key, or
            is 0 throughout where every key is hidden; a hidden key has exactly 0.
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
    gates: Tensor | None = None,
) -> Attended:
    """Mix, for every query, the values of the keys that fit it.

    Args:
        query: (..., heads, query, d_k).
        key: (..., heads, key, d_k); one head serves all of the query's.
        value: (..., heads, key, d_v).
        gates: what a head's mixed values are multiplied by, (heads,); 0 drops the head.

    `score` has `scale` and `softcap`; `weigh` has `keep`, `bias` and `window`. What stands in a
    key or value that a query may not look at, NaN or infinity included, changes nothing there.
    """
    scores = score(query, key, scale=scale, softcap=softcap)
    probabilities = weigh(scores, keep=keep, bias=bias, window=window)
    mixed = mix(probabilities, value)
    if gates is not None:
        mixed = mixed * gates.to(mixed.dtype)[..., None, None]
    return Attended(mixed, probabilities)


def score(
    query: Tensor, key: Tensor, *, scale: float | None = None, softcap: float | None = None
) -> Tensor:
    """Compare every query, (..., query, d_k), with every key, (..., key, d_k).

    Args:
        scale: what the products are multiplied by; None is 1 / sqrt(d_k).
        softcap: c > 0 bends the scores s into (-c, c) as c tanh(s / c), before anything is
            added or hidden.

    Returns:
        The scores, (..., query, key), at least float32.
    """
    scale = 1 / math.sqrt(query.shape[-1]) if scale is None else scale
    wide = torch.promote_types(query.dtype, torch.float32)
    scores = query.to(wide) @ key.to(wide).transpose(-2, -1) * scale  # (..., query, key)
    return scores if softcap is None else softcap * (scores / softcap).tanh()


def weigh(
    scores: Tensor,
    *,
    keep: Tensor | None = None,
    bias: Tensor | None = None,
    window: Window | None = None,
) -> Tensor:
    """Turn scores, (..., heads, query, key), into probabilities of the same shape.

    Args:
        keep: True where a query may look at a key, bool, broadcast to the scores: the real
            tokens of padded keys, (batch, key), are given as keep[:, None, None, :].
        bias: added to the scores, float, broadcast to them; -inf hides a key.
        window: how far a query looks to the left and to the right, itself and the last key
            included; (None, 0) is causal. Both sequences are counted from 0.

    Returns:
        Rows that sum to 1 over key, or are 0 throughout where every key is hidden.

    Raises:
        ValueError: `keep` is not bool: in a mask of numbers, nobody knows which one hides.
    """
    visible = torch.ones((), dtype=torch.bool, device=scores.device)
    if keep is not None:
        if keep.dtype != torch.bool:
            raise ValueError(f"keep is {keep.dtype}, it must be {torch.bool}")
        visible = visible & keep
    if bias is not None:
        bias = bias.to(scores.dtype)
        scores, visible = scores + bias, visible & (bias != -math.inf)
    if window is not None:
        visible = visible & _within(window, scores)
    # chosen, not multiplied: NaN times 0 is NaN; and a softmax over nothing is NaN too
    probabilities = torch.where(visible, scores, -math.inf).softmax(dim=-1)
    return torch.where(visible, probabilities, 0.0)


def _within(window: Window, like: Tensor) -> Tensor:
    """Whether a key is inside a query's window, (query, key) bool."""
    sides = window if isinstance(window, tuple) else (window, window)
    left, right = (math.inf if side is None else side for side in sides)
    queries, keys = (torch.arange(tokens, device=like.device) for tokens in like.shape[-2:])
    ahead = keys[None, :] - queries[:, None]
    return (ahead >= -left) & (ahead <= right)


def mix(probabilities: Tensor, value: Tensor) -> Tensor:
    """Add up values, (..., key, d_v), in the shares of probabilities, (..., query, key).

    A share of 0.6 takes 60% of a value, a share of exactly 0 takes nothing, whatever stands
    there. A channel that does take from NaN or infinity is NaN.

    Returns:
        (..., query, d_v), in the dtype of the values.
    """
    sound = value.isfinite()
    if sound.all():
        return (probabilities @ value.to(probabilities.dtype)).to(value.dtype)
    mixed = mix(probabilities, torch.where(sound, value, 0.0))
    share = (probabilities != 0).to(probabilities.dtype) @ (~sound).to(probabilities.dtype)
    return torch.where(share > 0, math.nan, mixed)


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
        window: Window | None = None,
        gates: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """Mix into each query row what it finds among the key rows; see `attend`.

        Args:
            query_rows: (..., query, width).
            key_rows: (..., key, width); None is the query rows: self-attention.
            value_rows: (..., key, width); None is the key rows.
            bias: a relative bias is table[positions.buckets(...)], with heads brought first.

        Returns:
            The output, (..., query, width), and the probabilities, (..., heads, query, key).
        """
        key_rows = query_rows if key_rows is None else key_rows
        value_rows = key_rows if value_rows is None else value_rows
        q = self._rotate(self._split(query_rows, self.query))  # (..., heads, query, d_k)
        k = self._rotate(self._split(key_rows, self.key))  # (..., heads, key, d_k)
        v = self._split(value_rows, self.value)  # (..., heads, key, d_v)
        mixed, probabilities = attend(q, k, v, keep=keep, bias=bias, window=window, gates=gates)
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
        """The four matrices of one head, counted from 0; views, not copies."""
        inputs = (self.query, self.key, self.value)
        q, k, v = (weight.chunk(self.heads)[index].T for weight, _ in inputs)
        return HeadWeights(q, k, v, self.output[0].chunk(self.heads, dim=1)[index].T)
