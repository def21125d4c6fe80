"""What each input token adds to a text's vector, exactly, with the pass's own pattern frozen.

Where three things are kept as a pass computed them, the pass is linear in what enters its first
layer: attention's probabilities P, the divisor sigma of each norm, and in a feed-forward block the
factor m(z) of its activation, which is z m(z), or its gate. So token t's last vector is a sum of
what came from each input token and from all biases together:

    h_t = sum_s D_ts + D_t(bias)        entering the first layer, D_ts is x_s where s = t, else 0

    attention     D <- (P D W^V) W^O            and to D(bias) the biases of both
    LayerNorm     D <- gamma (D - mean) / sigma    and beta; RMSNorm takes no mean
    feed-forward  D <- (m * (D W_1)) W_2        and both biases

Positions, whichever way they enter scores, change P alone. Each source is carried by itself, so
sources can be carried some at a time. The pass is carried with them, as a source with every bias:
what is frozen is read off it.

Source: Modarressi et al. 2023, "DecompX" (arXiv 2306.02873).
"""

import math
from collections.abc import Callable, Mapping
from collections.abc import Sequence as Many
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import MultiHeadAttention
from model.config import Activation, PoolingMode
from model.encoder import Encoder, Layer
from model.kernels import ACTIVATIONS, Affine, Linear, NormedLinear
from model.maps.tiles import MapReader
from model.packing import Packed, Sequence
from model.similarity import token_weights

# activation(z) / z, with no division: at 0 it is the slope there
FACTORS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": torch.special.ndtr,
    "gelu_tanh": lambda z: (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2,
    "relu": lambda z: (z > 0).to(z),
    "silu": torch.sigmoid,
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Which sources of a sequence to carry: source 0 is all biases, the others are its tokens.

    Args:
        owners: the source that each token belongs to, from 1 on.
        numbers: the sources to carry.
        modes: how tokens are reduced to one vector.
    """

    owners: Many[int]
    numbers: range
    modes: tuple[PoolingMode, ...]

    def __len__(self) -> int:
        return len(self.numbers)


def carry_sources(encoder: Encoder, sequence: Sequence, sources: Sources) -> Tensor:
    """Return what each source adds to the reduced vector, (sources, modes * width) float32."""
    packed, owners = encoder.pack([sequence]), torch.tensor(sources.owners)
    x = encoder.embeddings(packed)[packed.rows(0)].float()
    numbers = torch.tensor(sources.numbers)[:, None]
    own = (owners == numbers).to(x.device)[:, :, None]  # (sources, tokens, 1)
    parts = torch.cat([x[None], x * own])
    carrier = _Carrier(encoder, packed, biased=2 if 0 in sources.numbers else 1)
    for index, layer in enumerate(encoder.layers):
        parts = carrier.carry(parts, layer, sequence.gates.get(index, {}))
    parts = carrier.normalise(parts, encoder.norm)[1:]
    weights = [token_weights(mode, len(owners)).to(parts) for mode in sources.modes]
    return torch.cat([torch.einsum("t,stw->sw", weight, parts) for weight in weights], 1)


class _Carrier:
    """Carries parts, (1 + sources, tokens, width), of which the first is the pass itself.

    Args:
        packed: the sequence alone.
        biased: how many of the first parts get biases.
    """

    def __init__(self, encoder: Encoder, packed: Packed, biased: int) -> None:
        self._config, self._packed, self._biased = encoder.config, packed, biased
        self._biases, self._dtype = encoder.biases(packed), encoder.embeddings.word.dtype

    def carry(self, parts: Tensor, layer: Layer, gates: Mapping[int, float]) -> Tensor:
        """Carry parts through a layer, as encoder.Layer describes it."""
        pre_norm, norms = self._config.pre_norm, (layer.attention_norm, layer.feed_forward_norm)
        entered = self.normalise(parts, norms[0]) if pre_norm else parts
        parts = parts + self._attend(entered, layer.attention, gates)
        if pre_norm:
            return parts + self._feed_forward(self.normalise(parts, norms[1]), layer)
        parts = self.normalise(parts, norms[0])
        return self.normalise(parts + self._feed_forward(parts, layer), norms[1])

    def normalise(self, parts: Tensor, norm: Affine | None) -> Tensor:
        """Apply a norm with the divisors of the pass; return parts as they are without one."""
        if norm is None:
            return parts
        if self._config.norm == "layer":
            parts = parts - parts.mean(-1, keepdim=True)
        square = parts[0].square().mean(-1, keepdim=True)
        scale = torch.rsqrt(square + self._config.norm_eps)
        return self._add_bias(parts * (scale * norm[0].float()), norm[1])

    def _attend(
        self, parts: Tensor, attention: MultiHeadAttention, gates: Mapping[int, float]
    ) -> Tensor:
        """Mix the values of each part by the probabilities of the pass, and apply W^O."""
        count, tokens, width = parts.shape
        rows = parts.new_zeros(len(self._packed.token_ids), width, dtype=self._dtype)
        own = self._packed.rows(0)
        rows[own] = parts[0].to(rows)
        _, trace = attention(rows, rows, self._packed, self._biases)
        first = -attention.parts[2] * attention.head_dim  # of the rows of W^V
        bias = attention.project.bias
        values = F.linear(parts, attention.project.weight()[first:].float())
        values = self._add_bias(values, None if bias is None else bias[first:])
        values = attention.repeat_shared(values.view(count, tokens, -1, attention.head_dim), 2)
        values = values.permute(2, 1, 0, 3).flatten(2)  # (heads, key, parts * head_dim)
        mixed = torch.empty_like(values)
        for tile in MapReader(trace, own, range(attention.heads)).read_tiles():
            torch.bmm(tile.values, values[:, tile.keys], out=mixed[:, tile.queries])
        mixed = mixed.view(attention.heads, tokens, count, -1).permute(2, 1, 0, 3).flatten(2)
        attention.edit_heads(mixed.view(count * tokens, -1), [(slice(None), gates)], ())
        return self._project(mixed, attention.output)

    def _feed_forward(self, parts: Tensor, layer: Layer) -> Tensor:
        """Carry parts through down(activation(up x)), or down(activation(gate x) * up x)."""
        activation, inner = self._config.activation, self._project(parts, layer.up)
        if self._config.gated:
            gate, inner = inner.chunk(2, dim=-1)
            inner = inner * ACTIVATIONS[activation](gate[0])
        else:
            inner *= FACTORS[activation](inner[0])
        return self._project(inner, layer.down)

    def _project(self, parts: Tensor, linear: Linear) -> Tensor:
        """Apply a linear, and its norm where it has one."""
        if isinstance(linear, NormedLinear):
            return self.normalise(self._project(parts, linear.linear), linear.norm)
        return self._add_bias(F.linear(parts, linear.weight().float()), linear.bias)

    def _add_bias(self, parts: Tensor, bias: Tensor | None) -> Tensor:
        """Add a bias to those parts that get biases, in place."""
        if bias is not None:
            parts[: self._biased] += bias.float()
        return parts
