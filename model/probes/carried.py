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
from abc import abstractmethod
from collections.abc import Callable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from functools import partial
from typing import ClassVar

import torch
from torch import Tensor
from torch.nn import functional as F

from model.attention.attention import MultiHeadAttention, Trace
from model.config import Activation, EncoderConfig, NormKind, PoolingMode
from model.encoder import Encoded, Encoder, Layer
from model.flops import pass_flops
from model.kernels import Affine, Linear, NormedLinear
from model.maps.tiles import MapReader
from model.packing import Sequence
from model.probes.probe import FLOAT_BYTES, Probe
from model.similarity import token_weights
from model.steady import ACTIVATIONS, map_numbers, without_idle_threads

# activation(z) / z, with no division: at 0 it is the slope there
FACTORS: dict[Activation, Callable[[Tensor], Tensor]] = {
    "gelu": torch.special.ndtr,
    "gelu_tanh": lambda z: (1 + torch.tanh(math.sqrt(2 / math.pi) * (z + 0.044715 * z**3))) / 2,
    "relu": lambda z: (z > 0).to(z),
    "silu": partial(map_numbers, torch.sigmoid),
}


CARRY_PASSES = 2  # cost of what is carried, besides a pass for each: of the pass it is read off


class Carried(Probe):
    """A probe that carries vectors through the layers, each by itself."""

    __slots__ = ()

    @abstractmethod
    def __len__(self) -> int:
        """Return how many are carried."""

    def flops(self, config: EncoderConfig, tokens: int) -> int:
        return (len(self) + CARRY_PASSES) * pass_flops(config, tokens)

    def scratch_bytes(self, config: EncoderConfig, tokens: int) -> int:
        rows = tokens * (1 + len(self))
        return FLOAT_BYTES * rows * (6 * config.width + 3 * config.feed_forward)


@dataclass(frozen=True, slots=True, eq=False)
class Sources(Carried):
    """What each source adds to the reduced vector, (sources, modes * width) float32.

    Args:
        owners: the source that each token belongs to, from 1 on; source 0 is all biases.
        numbers: the sources to carry.
        modes: how tokens are reduced to one vector.
        layers: how many layers to carry them through, where not through all to that vector.
    """

    name: ClassVar = "carried"
    owners: Many[int]
    numbers: range
    modes: tuple[PoolingMode, ...] = ()
    layers: int | None = None

    def __len__(self) -> int:
        return len(self.numbers)

    def run(self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence) -> Tensor:
        return carry_sources(encoder, sequence, self)

    def flops(self, config: EncoderConfig, tokens: int) -> int:
        layers = config.layers if self.layers is None else self.layers
        return Carried.flops(self, config, tokens) * layers // config.layers


def carry_sources(encoder: Encoder, sequence: Sequence, sources: Sources) -> Tensor:
    """Return what each source adds to the reduced vector, (sources, modes * width) float32."""
    carrier = Carrier(encoder, sequence)
    parts = carrier.enter(sources)
    for index in range(len(encoder.layers)):
        parts = carrier.carry(parts, index)
    return reduce_parts(parts[1:], sources.modes)


def reduce_parts(parts: Tensor, modes: Many[PoolingMode]) -> Tensor:
    """Reduce each part's tokens as a text's, (parts, tokens, width) -> (parts, modes * width)."""
    weights = [token_weights(mode, parts.shape[1]).to(parts) for mode in modes]
    return torch.cat([torch.einsum("t,stw->sw", weight, parts) for weight in weights], 1)


def divide_parts(
    parts: Tensor, norm: Affine, kind: NormKind, eps: float, biased: int = 2
) -> Tensor:
    """Apply a norm over the last axis with the divisors of the first part, the pass itself."""
    if kind == "layer":
        parts = parts - parts.mean(-1, keepdim=True)
    scale = torch.rsqrt(parts[0].detach().square().mean(-1, keepdim=True) + eps)
    return add_bias(parts * (scale * norm[0].float()), norm[1], biased)


def add_bias(parts: Tensor, bias: Tensor | None, biased: int = 2) -> Tensor:
    """Add a bias in place to so many first parts: the pass, and the part of all biases."""
    if bias is not None:
        # autograd takes a slice's gradients one by one
        first = parts if len(parts) <= biased else parts[:biased]
        first += bias.float()
    return parts


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
        self.packed = encoder.pack([sequence])
        self.own = self.packed.rows(0)
        self.positions = self.packed.positions[self.own]
        self.bias = encoder.biases(self.packed)[0]
        self.unseen, self._dtype = sequence.unseen, encoder.embeddings.word.dtype
        self._biased = 2  # how many of the first parts get biases

    def enter(self, sources: Sources) -> Tensor:
        """Return the parts of what enters the first layer: each source's own tokens."""
        self._biased = 2 if 0 in sources.numbers else 1
        x = self._encoder.embeddings(self.packed)[self.own].float()
        numbers = torch.tensor(sources.numbers)[:, None]
        own = (torch.tensor(sources.owners) == numbers).to(x.device)[:, :, None]
        return torch.cat([x[None], x * own])  # own: (sources, tokens, 1)

    def embed(self) -> Tensor:
        """Return the parts of what enters the first layer: all, rest, word and position.

        The rest are segments and biases: that of the norm, whose divisor is the pass's, and that
        of a projection.
        """
        self._biased, embeddings = 2, self._encoder.embeddings
        looked_up = embeddings.look_up(self.packed)
        word = looked_up[0][self.own].float()
        types, position = (
            torch.zeros_like(word) if rows is None else rows[self.own].float()
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
        values, trace = self.make_values(parts, index)
        return self.write_mixed(parts, self.mix(values, trace, index), index)

    def make_values(self, parts: Tensor, index: int) -> tuple[Tensor, Trace]:
        """Return the values of the parts that enter a layer, and the pass's trace of its attention.

        Returns:
            (parts, tokens, heads * head_dim): shared values once for each head that reads them.
        """
        layer, (count, tokens, width) = self._encoder.layers[index], parts.shape
        attention, entered = layer.attention, self.normalise(parts, layer.norms.before)
        rows = parts.new_zeros(len(self.packed.token_ids), width, dtype=self._dtype)
        rows[self.own] = entered[0].detach().to(rows)
        gates = [(self.own, self._gates.get(index, {}))]
        _, trace = attention(rows, rows, self.packed, [self.bias], gates)
        first = -attention.parts[2] * attention.head_dim  # of the rows of W^V
        values = self._project_rows(entered, attention, slice(first, None))
        values = values.view(count, tokens, -1, attention.head_dim)
        return attention.repeat_shared(values, 2).flatten(2), trace

    def mix(self, values: Tensor, trace: Trace, index: int, *, back: bool = False) -> Tensor:
        """Mix values, (parts, tokens, heads * head_dim), by the probabilities P of the pass.

        Args:
            back: by the transpose of P instead, which carries what is multiplied with mixed values
                back to values.
        """
        (count, tokens, _), heads = values.shape, trace.attention.heads
        values = values.view(count, tokens, heads, -1).permute(2, 1, 0, 3).flatten(2)
        mixed = torch.zeros_like(values)  # (heads, tokens, parts * head_dim)
        for tile in MapReader(trace, self.own, range(heads)).read_tiles():
            read, written, share = tile.keys, tile.queries, tile.values
            if back:
                read, written, share = written, read, share.mT
            with without_idle_threads(heads):
                mixed[:, written] += share @ values[:, read]
        mixed = mixed.view(heads, tokens, count, -1).permute(2, 1, 0, 3)
        mixed = mixed.reshape(count * tokens, -1)  # one head's rows are apart unless copied
        trace.attention.edit_heads(mixed, [(slice(None), self._gates.get(index, {}))], ())
        return mixed.view(count, tokens, -1)

    def write_mixed(self, parts: Tensor, mixed: Tensor, index: int) -> Tensor:
        """Carry parts and their mixed values from W^O to the layer's output.

        Args:
            parts: that enter the layer.
            mixed: (parts, tokens, heads * head_dim).
        """
        layer = self._encoder.layers[index]
        parts = parts + self._project(mixed, layer.attention.output)
        read = self.normalise(parts, layer.norms.between)
        passed = parts if self._config.pre_norm else read
        return self.normalise(passed + self._feed_forward(read, layer), layer.norms.after)

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
        attention, entered = layer.attention, self.normalise(parts, layer.norms.before)
        last = (attention.heads + attention.parts[1]) * attention.head_dim  # rows of W^Q and W^K
        sides = self._project_rows(entered, attention, slice(last), weight)
        sides = sides.view(count, tokens, -1, attention.head_dim)
        q, k = torch.split(sides, attention.parts[:2], 2)
        if (norms := attention.norms) is not None:
            q = self._divide(q, norms.query, norms.kind, norms.eps)
            k = self._divide(k, norms.key, norms.kind, norms.eps)
        return q, attention.repeat_shared(k, 2)

    def normalise(self, parts: Tensor, norm: Affine | None) -> Tensor:
        """Apply a norm with the divisors of the pass; return parts as they are without one."""
        if norm is None:
            return parts
        return self._divide(parts, norm, self._config.norm, self._config.norm_eps)

    def _divide(self, parts: Tensor, norm: Affine, kind: NormKind, eps: float) -> Tensor:
        """Apply a norm over the last axis with the divisors of the first part."""
        return divide_parts(parts, norm, kind, eps, self._biased)

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
            inner = inner * ACTIVATIONS[activation](gate[0].detach())
        else:
            inner *= FACTORS[activation](inner[0].detach())
        return self._project(inner, layer.down)

    def _project(self, parts: Tensor, linear: Linear) -> Tensor:
        """Apply a linear, and its norm where it has one."""
        if isinstance(linear, NormedLinear):
            return self.normalise(self._project(parts, linear.linear), linear.norm)
        return self._add_bias(F.linear(parts, linear.weight().float()), linear.bias)

    def _add_bias(self, parts: Tensor, bias: Tensor | None) -> Tensor:
        """Add a bias to those parts that get biases, in place."""
        return add_bias(parts, bias, self._biased)
