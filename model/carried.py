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
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention import MultiHeadAttention
from model.config import Activation, NormKind, PoolingMode
from model.encoder import Encoder, Layer
from model.kernels import Affine, Linear, NormedLinear
from model.maps.tiles import MapReader
from model.packing import Sequence
from model.similarity import token_weights
from model.steady import ACTIVATIONS, map_numbers, without_idle_threads

# activation(z) / z, with no division: at 0 it is the slope there
FACTORS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": torch.special.ndtr,
    "gelu_tanh": lambda z: (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2,
    "relu": lambda z: (z > 0).to(z),
    "silu": partial(map_numbers, torch.sigmoid),
}


@dataclass(frozen=True, slots=True)
class Sources:
    """Which sources of a sequence to carry: source 0 is all biases, the others are its tokens.

    Args:
        owners: the source that each token belongs to, from 1 on.
        numbers: the sources to carry.
        modes: how tokens are reduced to one vector; without any, layers' parts alone are wanted.
        layers: how many layers to carry them through; None: all.
    """

    owners: Many[int]
    numbers: range
    modes: tuple[PoolingMode, ...] = ()
    layers: int | None = None

    def __len__(self) -> int:
        return len(self.numbers)


def carry_sources(encoder: Encoder, sequence: Sequence, sources: Sources) -> Tensor:
    """Return what each source adds to the reduced vector, (sources, modes * width) float32."""
    carrier = Carrier(encoder, sequence)
    parts = carrier.enter(sources)
    for index in range(len(encoder.layers)):
        parts = carrier.carry(parts, index)
    parts = carrier.normalise(parts, encoder.norm)[1:]
    weights = [token_weights(mode, len(sequence)).to(parts) for mode in sources.modes]
    return torch.cat([torch.einsum("t,stw->sw", weight, parts) for weight in weights], 1)


class Carrier:
    """Carries parts, (1 + sources, tokens, width), of which the first is the pass itself.

    Args:
        sequence: without patches.

    Attributes:
        positions: of its tokens, (tokens,).
        bias: added to the scores of every layer, (1 or heads, query, key); None: nothing.
        unseen: how many of its last tokens are hidden as keys.
    """

    def __init__(self, encoder: Encoder, sequence: Sequence) -> None:
        self._config, self._encoder, self._gates = encoder.config, encoder, sequence.gates
        self._packed = encoder.pack([sequence])
        self._own = self._packed.rows(0)
        self.positions = self._packed.positions[self._own]
        self.bias = encoder.biases(self._packed)[0]
        self.unseen, self._dtype = sequence.unseen, encoder.embeddings.word.dtype
        self._biased = 2  # how many of the first parts get biases

    def enter(self, sources: Sources) -> Tensor:
        """Return the parts of what enters the first layer: each source's own tokens."""
        self._biased = 2 if 0 in sources.numbers else 1
        x = self._encoder.embeddings(self._packed)[self._own].float()
        numbers = torch.tensor(sources.numbers)[:, None]
        own = (torch.tensor(sources.owners) == numbers).to(x.device)[:, :, None]
        return torch.cat([x[None], x * own])  # own: (sources, tokens, 1)

    def embed(self) -> Tensor:
        """Return the parts of what enters the first layer: all, rest, word and position.

        The rest are segments and biases: that of the norm, whose divisor is the pass's, and that
        of a projection.
        """
        self._biased, embeddings = 2, self._encoder.embeddings
        looked_up = embeddings.look_up(self._packed)
        word = looked_up[0][self._own].float()
        types, position = (
            torch.zeros_like(word) if rows is None else rows[self._own].float()
            for rows in looked_up[1:]
        )
        parts = torch.stack([word + types + position, types, word, position])
        if embeddings.norm is not None:
            parts = self._divide(parts, embeddings.norm, "layer", embeddings.eps)
        return parts if embeddings.project is None else self._project(parts, embeddings.project)

    def attention(self, index: int) -> MultiHeadAttention:
        """Return the attention of the layer with this index."""
        return self._encoder.layers[index].attention

    def carry(self, parts: Tensor, index: int) -> Tensor:
        """Carry parts through the layer with this index, as encoder.Layer describes it."""
        layer = self._encoder.layers[index]
        entered = self._enter_attention(parts, layer)
        parts = parts + self._attend(entered, index)
        if self._config.pre_norm:
            return parts + self._feed_forward(self.normalise(parts, layer.feed_forward_norm), layer)
        parts = self.normalise(parts, layer.attention_norm)
        return self.normalise(parts + self._feed_forward(parts, layer), layer.feed_forward_norm)

    def score_sides(
        self, parts: Tensor, index: int, weight: Tensor | None = None
    ) -> tuple[Tensor, Tensor]:
        """Return the queries and keys of parts in a layer, before any rotation.

        Args:
            weight: takes the place of the layer's own W^Q and W^K, (channels of both, width).

        Returns:
            (1 + sources, tokens, heads, head_dim) each; norms divide as they did for the first.
        """
        layer, (count, tokens, _) = self._encoder.layers[index], parts.shape
        attention, entered = layer.attention, self._enter_attention(parts, layer)
        last = (attention.heads + attention.parts[1]) * attention.head_dim  # rows of W^Q and W^K
        sides = self._project_rows(entered, attention, slice(last), weight)
        sides = sides.view(count, tokens, -1, attention.head_dim)
        q, k = torch.split(sides, attention.parts[:2], 2)
        if (norms := attention.norms) is not None:
            q = self._divide(q, norms.query, norms.kind, norms.eps)
            k = self._divide(k, norms.key, norms.kind, norms.eps)
        return q, attention.repeat_shared(k, 2)

    def _enter_attention(self, parts: Tensor, layer: Layer) -> Tensor:
        """Return what the attention's projections read."""
        return self.normalise(parts, layer.attention_norm) if self._config.pre_norm else parts

    def normalise(self, parts: Tensor, norm: Affine | None) -> Tensor:
        """Apply a norm with the divisors of the pass; return parts as they are without one."""
        if norm is None:
            return parts
        return self._divide(parts, norm, self._config.norm, self._config.norm_eps)

    def _divide(self, parts: Tensor, norm: Affine, kind: NormKind, eps: float) -> Tensor:
        """Apply a norm over the last axis with the divisors of the first part."""
        if kind == "layer":
            parts = parts - parts.mean(-1, keepdim=True)
        scale = torch.rsqrt(parts[0].square().mean(-1, keepdim=True) + eps)
        return self._add_bias(parts * (scale * norm[0].float()), norm[1])

    def _attend(self, parts: Tensor, index: int) -> Tensor:
        """Mix the values of each part by the probabilities of the pass, and apply W^O."""
        attention, (count, tokens, width) = self.attention(index), parts.shape
        rows = parts.new_zeros(len(self._packed.token_ids), width, dtype=self._dtype)
        rows[self._own] = parts[0].to(rows)
        _, trace = attention(rows, rows, self._packed, [self.bias])
        first = -attention.parts[2] * attention.head_dim  # of the rows of W^V
        values = self._project_rows(parts, attention, slice(first, None))
        values = attention.repeat_shared(values.view(count, tokens, -1, attention.head_dim), 2)
        values = values.permute(2, 1, 0, 3).flatten(2)  # (heads, key, parts * head_dim)
        mixed = torch.empty_like(values)
        for tile in MapReader(trace, self._own, range(attention.heads)).read_tiles():
            with without_idle_threads(attention.heads):
                torch.bmm(tile.values, values[:, tile.keys], out=mixed[:, tile.queries])
        mixed = mixed.view(attention.heads, tokens, count, -1).permute(2, 1, 0, 3)
        mixed = mixed.reshape(count * tokens, -1)  # one head's rows are apart unless copied
        attention.edit_heads(mixed, [(slice(None), self._gates.get(index, {}))], ())
        return self._project(mixed.view(count, tokens, -1), attention.output)

    def _project_rows(
        self,
        parts: Tensor,
        attention: MultiHeadAttention,
        rows: slice,
        weight: Tensor | None = None,
    ) -> Tensor:
        """Apply some rows of the input projections, or a weight for them, with their biases."""
        bias = attention.project.bias
        made = F.linear(
            parts, attention.project.weight()[rows].float() if weight is None else weight
        )
        return self._add_bias(made, None if bias is None else bias[rows])

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
