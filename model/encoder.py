"""Layers: attention, residual + LayerNorm, feed-forward; Encoder(packed) -> Encoded.

    a   = LayerNorm(x + MultiHead(x))
    out = LayerNorm(a + W_2 gelu(W_1 a))

Source: Vaswani et al. 2017, section 3.1 (post-norm), with BERT's activation.
"""

from collections.abc import Set
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention import MultiHeadAttention, Trace
from model.embeddings import Embeddings
from model.kernels import Kernels
from model.packing import Packed

Affine = tuple[Tensor, Tensor]  # weight and bias


@dataclass(frozen=True, slots=True)
class LayerWeights:
    """The weights of one layer, each as (weight, bias)."""

    qkv: Affine
    output: Affine
    attention_norm: Affine
    up: Affine
    down: Affine
    output_norm: Affine


@dataclass(frozen=True, slots=True)
class Encoded:
    """What a forward pass leaves: rows to be cut apart with `packed.rows(i)`.

    Args:
        last: token vectors after the last layer, (rows, width).
        hidden: those after i layers, for every i asked; 0 is what enters the first.
        traces: what recomputes the maps of layer i, for every i asked.
    """

    packed: Packed
    last: Tensor
    hidden: dict[int, Tensor]
    traces: dict[int, Trace]


class Layer:
    """One post-norm encoder layer."""

    def __init__(self, weights: LayerWeights, heads: int, eps: float, kernels: Kernels) -> None:
        self.attention = MultiHeadAttention(weights.qkv, weights.output, heads, kernels)
        self.up, self.down = kernels.linear(*weights.up), kernels.linear(*weights.down)
        self.attention_norm, self.output_norm = weights.attention_norm, weights.output_norm
        self.eps = eps

    def __call__(self, x: Tensor, packed: Packed) -> tuple[Tensor, Trace]:
        """The next residual stream, (rows, width), and the attention's trace."""
        mixed, trace = self.attention(x, packed)
        a = self._normalise(mixed, self.attention_norm)
        return self._normalise(self.down.add(self.up.gelu(a), a), self.output_norm), trace

    def _normalise(self, x: Tensor, norm: Affine) -> Tensor:
        return torch.native_layer_norm(x, [x.shape[-1]], *norm, self.eps)[0]


class Encoder:
    """A stack of layers over embeddings."""

    def __init__(self, embeddings: Embeddings, layers: list[Layer]) -> None:
        self.embeddings, self.layers = embeddings, layers

    def __call__(
        self, packed: Packed, *, hidden: Set[int] = frozenset(), traces: Set[int] = frozenset()
    ) -> Encoded:
        """Encode a packed batch.

        Args:
            hidden: which hidden states to keep, counted as Hugging Face's hidden_states:
                0 = embeddings, i = after i layers.
            traces: which layers' attention to keep, counted from 0.
        """
        x = self.embeddings(packed)
        kept: dict[int, Tensor] = {0: x} if 0 in hidden else {}
        traced: dict[int, Trace] = {}
        for index, layer in enumerate(self.layers):
            x, trace = layer(x, packed)
            if index in traces:
                traced[index] = trace
            if index + 1 in hidden:
                kept[index + 1] = x
        return Encoded(packed, x, kept, traced)
