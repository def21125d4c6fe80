"""The whole encoder: embeddings, then layers of attention and feed-forward, each with its residual.

Sources: Vaswani et al. 2017, section 3.1 (post-norm); Xiong et al. 2020 (pre-norm);
Shazeer 2020, "GLU Variants Improve Transformer" (gated feed-forward).
"""

from collections.abc import Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple, Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from model import packing
from model.attention.attention import Biases, Gates, MultiHeadAttention, Patches, Trace
from model.attention.positions import distance_buckets
from model.config import EncoderConfig
from model.kernels import Affine, Kernels, Linear, normalise
from model.packing import Entry, Group, Packed
from model.pooling import Pooling, pool_each, pool_together
from model.steady import apply_gate

# bias that hides a key from a query; finite, since 0 times infinity is NaN
HIDING_SCORE = -1e30


@dataclass(frozen=True, slots=True)
class Encoded:
    """The result of a forward pass; `packed.rows(i)` gives the rows of sequence i.

    Args:
        last: token vectors after the last layer, (rows, width).
        hidden: token vectors after i layers, for every i requested; 0 is the first layer's input.
        traces: what the maps of layer i are recomputed from, for every i requested.
        finite: whether all of `last` is finite; None if not checked.
    """

    packed: Packed
    last: Tensor
    hidden: dict[int, Tensor]
    traces: dict[int, Trace]
    finite: bool | None = None


class TableLookUp(Protocol):
    """Looks up rows of a table by id, (ids,) -> (ids, width), as a copy."""

    def __call__(self, ids: Tensor) -> Tensor: ...


class Embeddings:
    """LayerNorm(word + segment + position), then a projection where the tables are narrower.

    A part that a family lacks is None. Source: Devlin et al. 2018, section 3; the projection is
    ELECTRA's, Clark et al. 2020.

    Args:
        word: (vocabulary, embedding width).
        position: (rows, embedding width), learned or sinusoidal.
        offset: row of `position` for position 0.
        types: (types, embedding width).
        norm: weight and bias of the LayerNorm.
        eps: added to the variance in the LayerNorm.
        project: to the model's width.

    `of_word` and `of_type` look up rows of `word` and `types`; adapters replace them.
    """

    def __init__(
        self,
        word: Tensor,
        *,
        position: Tensor | None,
        offset: int,
        types: Tensor | None,
        norm: Affine | None,
        eps: float,
        project: Linear | None,
    ) -> None:
        self.word, self.position, self.offset, self.types = word, position, offset, types
        self.norm, self.eps, self.project = norm, eps, project
        self.of_word: TableLookUp = partial(F.embedding, weight=word)
        self.of_type: TableLookUp | None = None
        if types is not None:
            self.of_type = partial(F.embedding, weight=types)

    def __call__(self, packed: Packed) -> Tensor:
        """Return the rows that enter the first layer, (rows, width)."""
        x, *others = self.look_up(packed)
        # transformers adds in this order; float addition is not associative
        for other in others:
            if other is not None:
                x = x.add_(other)
        if self.norm is not None:
            x = normalise(x, self.norm, self.eps)
        return x if self.project is None else self.project(x)

    def look_up(self, packed: Packed) -> tuple[Tensor, Tensor | None, Tensor | None]:
        """Return what is added up, (rows, embedding width): word, segment and position."""
        word = self.of_word(packed.token_ids)
        for rows, vectors in packed.embeddings:
            word[rows] = packing.send(vectors, word.device).to(word.dtype)
        types = None if self.of_type is None else self.of_type(packed.types)
        if self.position is None:
            return word, types, None
        return word, types, F.embedding(packed.positions + self.offset, self.position)


class Norms(NamedTuple):
    """The norms of a layer, LayerNorm or RMSNorm as the config says; None: there is none.

    Args:
        before: of what attention reads; post-norm families have none.
        between: of what the feed-forward block reads.
        after: of the layer's output; pre-norm families have one after the last layer.
    """

    before: Affine | None
    between: Affine
    after: Affine | None


class Layer:
    """One encoder layer.

    a = x + MultiHead(before(x))        b = between(a)
    out = after(b + FFN(b))             pre-norm: after(a + FFN(b))

    Args:
        up: in a gated block, the gate's rows and then the others, (2 * feed_forward, width).
    """

    def __init__(
        self,
        config: EncoderConfig,
        attention: MultiHeadAttention,
        up: Linear,
        down: Linear,
        norms: Norms,
    ) -> None:
        self.config, self.attention, self.up, self.down = config, attention, up, down
        self.norms = norms

    def __call__(
        self, x: Tensor, packed: Packed, biases: Biases, gates: Gates, patches: Patches = ()
    ) -> tuple[Tensor, Trace]:
        """Return the next residual stream, (rows, width), and the attention's trace."""
        entered = self.normalise(x, self.norms.before)
        a, trace = self.attention(entered, x, packed, biases, gates, patches)
        return self._finish(a), trace

    def resume(self, entry: Entry, gates: Gates, patches: Patches) -> Tensor:
        """Run the layer from an entry, before W^O, on; return the next residual stream."""
        z = entry.mixed.clone()
        self.attention.edit_heads(z, gates, patches)
        return self._finish(self.attention.output.add_to(z, entry.residual))

    def _finish(self, a: Tensor) -> Tensor:
        """Return the layer's output for a, the attention's output plus residual, (rows, width)."""
        b = self.normalise(a, self.norms.between)
        out = self.feed_forward(b, a if self.config.pre_norm else b)
        return self.normalise(out, self.norms.after)

    def feed_forward(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return residual + down(activation(up x)), gated where the family is."""
        activation = self.config.activation
        if not self.config.gated:
            return self.down.add_to(self.up.activate(x, activation), residual)
        gate, up = self.up(x).chunk(2, dim=-1)
        return self.down.add_to(apply_gate(gate, up, activation), residual)

    def normalise(self, x: Tensor, norm: Affine | None) -> Tensor:
        """Apply a norm over the last axis; return x as it is without one."""
        return x if norm is None else normalise(x, norm, self.config.norm_eps, self.config.norm)


class NativePass(Protocol):
    """A compiled forward pass that gives the bits of Encoder.run_layers."""

    unpadded_rows: int  # batches of up to so many rows are not filled up

    def __call__(self, packed: Packed, hidden: Set[int], traces: Set[int]) -> Encoded:
        """Encode as Encoder.run_layers does."""

    def pool(self, last: Tensor, rows: Sequence[slice], pooling: Pooling) -> Tensor:
        """Pool as pooling.pool_each does; without the layers of a Pooling."""


class Encoder:
    """A stack of layers over embeddings.

    Args:
        distances: learned bias of each bucket of distance, (buckets, heads).

    `native` replaces run_layers once it has been shown to give the same bits (model/native/).
    """

    native: NativePass | None = None

    def __init__(
        self,
        config: EncoderConfig,
        embeddings: Embeddings,
        layers: Sequence[Layer],
        distances: Tensor | None = None,
    ) -> None:
        self.config, self.embeddings, self.layers = config, embeddings, layers
        self.distances = distances
        self._widest: Tensor | None = None  # distance bias of the longest sequence so far

    @property
    def device(self) -> torch.device:
        """Return the device that holds the weights."""
        return self.embeddings.word.device

    @property
    def kernels(self) -> Kernels:
        """Return the kernels of its layers."""
        return self.layers[0].attention.kernels

    @property
    def arithmetic(self) -> str:
        """Return the name of its kernels, with "+native" where compiled; see proof/numerics.py."""
        return f"{self.kernels.name}+native" if self.native else self.kernels.name

    def pack(self, sequences: Sequence[packing.Sequence]) -> Packed:
        """Pack sequences into this encoder's rows; see packing.pack_sequences."""
        unpadded_rows = self.native.unpadded_rows if self.native else 0
        return packing.pack_sequences(sequences, self.device, self.config.pad, unpadded_rows)

    def __call__(
        self, packed: Packed, *, hidden: Set[int] = frozenset(), traces: Set[int] = frozenset()
    ) -> Encoded:
        """Encode a packed batch.

        Args:
            hidden: which hidden states to keep, counted as Hugging Face's hidden_states:
                0 = embeddings, i = after i layers; the last one is after the final norm.
            traces: which layers' attention to keep, counted from 0.

        Of a batch with an `entry`, no state before the output of the entry's layer is kept, nor
        that layer's attention.
        """
        return (self.native or self.run_layers)(packed, hidden, traces)

    def run_layers(self, packed: Packed, hidden: Set[int], traces: Set[int]) -> Encoded:
        """Encode as `__call__` does, layer by layer."""
        entry, biases = packed.entry, self.biases(packed)
        x = self.embeddings(packed) if entry is None else entry.residual
        states: dict[int, Tensor] = {0: x} if 0 in hidden and entry is None else {}
        by_layer: dict[int, Trace] = {}
        for index in range(entry.layer if entry else 0, len(self.layers)):
            gates = [(rows, scales[index]) for rows, scales in packed.gates if index in scales]
            patches = [(rows, heads[index]) for rows, heads in packed.patches if index in heads]
            if entry is not None and index == entry.layer:
                x = self.layers[index].resume(entry, gates, patches)
            else:
                x, trace = self.layers[index](x, packed, biases, gates, patches)
                if index in traces:
                    by_layer[index] = trace
            if index + 1 in hidden:
                states[index + 1] = x
        return Encoded(packed, x, states, by_layer)

    def pool(self, last: Tensor, rows: Sequence[slice], pooling: Pooling) -> Tensor:
        """Return one vector per sequence; see pooling.pool_each."""
        if last.device.type != "cpu":
            return pool_together(last, rows, pooling)
        if self.native is None or pooling.layers:
            return pool_each(last, rows, pooling)
        return self.native.pool(last, rows, pooling)

    def biases(self, packed: Packed) -> list[Tensor | None]:
        """Return the score bias of each group, (1 or heads, query, key); None: no bias."""
        if self.distances is None:
            return [_unseen_bias(group, self.embeddings.word) for group in packed.groups]
        longest = max(group.length for group in packed.groups)
        widest = self._widest
        if widest is None or widest.shape[1] < longest:  # several threads may compute it at once
            widest = self._widest = distance_bias(self.distances, longest)
        return [_group_distance_bias(group, widest) for group in packed.groups]


def _group_distance_bias(group: Group, widest: Tensor) -> Tensor:
    """Return a group's distance bias, which also hides unseen tokens, (heads, query, key)."""
    own = widest[:, : group.length, : group.length].contiguous()
    hidden = _unseen_bias(group, widest)
    return own if hidden is None else own + hidden


def _unseen_bias(group: Group, like: Tensor) -> Tensor | None:
    """Return the bias that hides a group's unseen tokens, (1, query, key); None without any.

    Args:
        like: a tensor of the dtype and on the device of the scores.
    """
    if not group.unseen:
        return None
    hidden = like.new_zeros(1, group.length, group.length)
    hidden[:, :, -group.unseen :] = max(HIDING_SCORE, torch.finfo(like.dtype).min)
    return hidden


def distance_bias(table: Tensor, tokens: int) -> Tensor:
    """Return the bias by distance of a sequence of this length, (heads, query, key).

    Shorter sequences use its top left corner, so one tensor serves all lengths.
    """
    buckets = distance_buckets(tokens, len(table), table.device)
    return table[buckets].permute(2, 0, 1).contiguous()
