"""What each head adds to a product with a text's vector, exactly, with the pass's pattern frozen.

With attention's probabilities P, the divisors sigma of norms and the factors m of activations kept
as a pass computed them (carried.py), what follows a layer's heads is linear in what they write. So
a text's reduced vector u has, with any vector v and in each layer by itself,

    <u, v> = sum_h <W_h^O Z_h, g> + <x, g> + what biases add from here on        x enters the layer

where g is v carried back to the layer's residual, by the transpose of each step, the last first:

    reduction     g_t = w_t v, where w_t weighs token t
    LayerNorm     g <- c - mean(c), c = gamma g / sigma    RMSNorm takes no mean
    feed-forward  g <- g + W_1 (m * (W_2 g))
    attention     g <- g + W^V (P^T (W^O g))

A head is counted with the bias of its values. All but the heads is the rest: what passes the layer
without its attention, and the biases of W^O, of feed-forward blocks and of norms.

Sources: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", on what heads add;
Modarressi et al. 2023, "DecompX" (arXiv 2306.02873), on what is frozen.
"""

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention import Trace
from model.carried import FACTORS
from model.config import PoolingMode
from model.encoder import Encoder, Layer
from model.kernels import Affine, Linear, NormedLinear
from model.maps.tiles import MapReader
from model.packing import Packed, Sequence
from model.similarity import token_weights
from model.steady import ACTIVATIONS, without_idle_threads


@dataclass(frozen=True, slots=True)
class Targets:
    """What a text's reduced vector is multiplied by.

    Args:
        vectors: (targets, modes * width).
        modes: how tokens are reduced to one vector.
    """

    vectors: Tensor
    modes: tuple[PoolingMode, ...]

    def __len__(self) -> int:
        return len(self.vectors)


def share_heads(encoder: Encoder, sequence: Sequence, targets: Targets) -> Tensor:
    """Return what each head adds to each product, then what the rest adds.

    Returns:
        (layers, heads + 1, targets) float32; in each layer they sum to the products.
    """
    packed, count = encoder.pack([sequence]), len(encoder.layers)
    gates, back = [sequence.gates.get(i, {}) for i in range(count)], _BackwardPass(encoder, packed)
    entered = [encoder.embeddings(packed)]  # what enters each layer, and last the encoder's norm
    for layer, own in zip(encoder.layers, gates, strict=True):
        edited = [(packed.rows(0), own)]
        entered.append(layer(entered[-1], packed, back.biases, edited)[0])
    vectors = targets.vectors.to(encoder.device).float().chunk(len(targets.modes), 1)
    weights = [token_weights(mode, len(sequence)).to(vectors[0]) for mode in targets.modes]
    pairs = zip(weights, vectors, strict=True)
    g = torch.stack([weight[:, None] * vector[:, None] for weight, vector in pairs]).sum(0)
    g = back.normalise(g, entered.pop(), encoder.norm)
    shares = list[Tensor]()
    for layer, own in zip(reversed(encoder.layers), reversed(gates), strict=True):
        g, of_layer = back.pass_layer(g, entered.pop(), layer, own)
        shares.append(of_layer)
    return torch.stack(shares[::-1])


class _BackwardPass:
    """Carries g, (targets, tokens, width), back through a pass over one sequence.

    Attributes:
        biases: of attention's scores, by group.
    """

    def __init__(self, encoder: Encoder, packed: Packed) -> None:
        self._config, self._packed, self._own = encoder.config, packed, packed.rows(0)
        self.biases = encoder.biases(packed)
        self._added: Tensor | float = 0.0  # by biases so far, (targets,)

    def pass_layer(
        self, g: Tensor, x: Tensor, layer: Layer, gates: Mapping[int, float]
    ) -> tuple[Tensor, Tensor]:
        """Carry g back through a layer that x, (rows, width), entered.

        Returns:
            g, and the shares of the layer's heads and of the rest, (heads + 1, targets).
        """
        attention, pre_norm = layer.attention, self._config.pre_norm
        norms = layer.attention_norm, layer.feed_forward_norm
        read = layer.normalise(x, norms[0]) if pre_norm else x
        a, trace = attention(read, x, self._packed, self.biases, [(self._own, gates)])
        if pre_norm:
            fed = self._feed_forward(g, layer.normalise(a, norms[1]), layer)
            g = g + self.normalise(fed, a, norms[1])
        else:
            entered = layer.normalise(a, norms[0])
            g = self.normalise(g, layer.feed_forward(entered, entered), norms[1])
            g = self.normalise(g + self._feed_forward(g, entered, layer), a, norms[0])
        z = trace.z[self._own].float()
        read_back = self._project(g, z, attention.output)
        by_head = [each.view(*each.shape[:-1], attention.heads, -1) for each in (z, read_back)]
        heads = torch.einsum("thd,cthd->hc", *by_head)
        rest = torch.einsum("tw,ctw->c", x[self._own].float(), g) + self._added
        mixed = self._attend(read_back, trace, gates)
        g = g + (self.normalise(mixed, x, norms[0]) if pre_norm else mixed)
        return g, torch.cat([heads, rest[None]])

    def normalise(self, g: Tensor, x: Tensor, norm: Affine | None) -> Tensor:
        """Carry g back through a norm of x, (rows, width), with its divisors."""
        if norm is None:
            return g
        x, g = x[self._own].float(), self._count_bias(g, norm[1]) * norm[0].float()
        if self._config.norm == "layer":
            x, g = (each - each.mean(-1, keepdim=True) for each in (x, g))
        return g * torch.rsqrt(x.square().mean(-1, keepdim=True) + self._config.norm_eps)

    def _attend(self, g: Tensor, trace: Trace, gates: Mapping[int, float]) -> Tensor:
        """Carry g, (targets, tokens, heads * head_dim), back through the mixing and W^V."""
        attention, (count, tokens, _) = trace.attention, g.shape
        heads, first = attention.heads, -attention.parts[2] * attention.head_dim
        attention.edit_heads(g.view(count * tokens, -1), [(slice(None), gates)], ())
        g = g.view(count, tokens, heads, -1).permute(2, 1, 0, 3).flatten(2)
        mixed = torch.zeros_like(g)  # (heads, key, targets * head_dim)
        for tile in MapReader(trace, self._own, range(heads)).read_tiles():
            with without_idle_threads(heads):
                mixed[:, tile.keys].baddbmm_(tile.values.mT, g[:, tile.queries])
        mixed = mixed.view(-1, attention.sharing, *mixed.shape[1:]).sum(1)  # as heads share values
        mixed = mixed.view(len(mixed), tokens, count, -1).permute(2, 1, 0, 3).flatten(2)
        bias = attention.project.bias
        mixed = self._count_bias(mixed, None if bias is None else bias[first:])
        return mixed @ attention.project.weight()[first:].float()

    def _feed_forward(self, g: Tensor, x: Tensor, layer: Layer) -> Tensor:
        """Carry g back through down(activation(up x)), or down(activation(gate x) * up x)."""
        activation, inner = self._config.activation, layer.up(x)[self._own].float()
        if self._config.gated:
            gate, inner = inner.chunk(2, dim=-1)
            factor = ACTIVATIONS[activation](gate)
        else:
            factor = FACTORS[activation](inner)
        g = self._project(g, factor * inner, layer.down) * factor
        if self._config.gated:
            g = torch.cat([torch.zeros_like(g), g], -1)  # the gate is kept as it was
        return self._project(g, x[self._own], layer.up)

    def _project(self, g: Tensor, x: Tensor, linear: Linear) -> Tensor:
        """Carry g back through a linear of x, (tokens, inputs), and its norm where it has one."""
        if isinstance(linear, NormedLinear):
            g = self.normalise(g, linear.linear(x.to(linear.weight())), linear.norm)
            return self._project(g, x, linear.linear)
        return self._count_bias(g, linear.bias) @ linear.weight().float()

    def _count_bias(self, g: Tensor, bias: Tensor | None) -> Tensor:
        """Count what a bias adds where g has come to; return g."""
        if bias is not None:
            self._added = self._added + g.sum(1) @ bias.float()
        return g
