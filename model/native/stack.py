"""An encoder's weights in the compiled operator, which then runs what the loop over layers does."""

from collections.abc import Iterator, Sequence, Set
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from model.attention import TILE, Biases, Trace
from model.encoder import Encoded, Encoder, Layer
from model.kernels import (
    FUSED_NAMES,
    Affine,
    Kernels,
    NormedLinear,
    PackedLinear,
    attend_fused,
)
from model.packing import Packed
from model.pooling import Pooling

Pair = tuple[Tensor | None, Tensor | None]  # weight and bias as the operator reads them


def fits(kernels: Kernels) -> bool:
    """Tell whether these are the kernels that the operator calls."""
    return kernels.linear is PackedLinear and kernels.attend is attend_fused


class Stack:
    """The operator with the weights of one encoder, which it shares.

    Args:
        encoder: one whose kernels fit.
        operator: what library.load gives.

    Raises:
        NotImplementedError: the operator does not compute such an encoder.
    """

    def __init__(self, encoder: Encoder, operator: Any) -> None:
        self._encoder, self._nothing = encoder, torch.empty(0)
        config, attention = encoder.config, encoder.layers[0].attention
        if attention.distances is not None:
            raise NotImplementedError("it adds nothing to scores by distance")
        self._stack = operator(
            attention.heads,
            attention.parts[1],
            attention.head_dim,
            attention.scale,
            TILE,
            config.norm_eps,
            config.norm == "rms",
            config.pre_norm,
            config.gated,
            *FUSED_NAMES[config.activation],
        )
        tables = encoder.embeddings
        norms = (*_norm(tables.norm), *_linear(tables.project), *_norm(encoder.norm))
        self._stack.embed([tables.word, tables.position, tables.types, *norms], tables.offset)
        for layer in encoder.layers:
            reach = (-1 if side is None else side for side in layer.attention.reach)
            self._stack.add(*_weights(layer), *reach)
        self.any_rows: int = self._stack.any_rows()

    def __call__(self, packed: Packed, hidden: Set[int], traces: Set[int]) -> Encoded:
        """Return what Encoder.loop gives, to the bit; and whether it is finite."""
        biases, states, layers = self._encoder.biases(packed), sorted(hidden), sorted(traces)
        gates, patches, entry = list(_gates(packed)), list(_patches(packed)), packed.entry
        tensors, finite = self._stack.run(
            packed.token_ids,
            packed.positions,
            packed.types,
            [rows.start for rows, _ in packed.embeddings],
            [vectors for _, vectors in packed.embeddings],
            [n for group in packed.groups for n in (group.start, group.count, group.length)],
            [self._nothing if bias is None else bias for bias in biases],
            [place for *places, _ in gates for place in places],
            [scale for *_, scale in gates],
            [place for *places, _ in patches for place in places],
            [value for *_, value in patches],
            entry.layer if entry else 0,
            [entry.residual, entry.mixed] if entry else [],
            states,
            layers,
        )
        if entry:  # there is nothing before it
            states = [state for state in states if state > entry.layer]
            layers = [layer for layer in layers if layer > entry.layer]
        left = iter(tensors)
        last = next(left)
        kept = dict(zip(states, left, strict=False))
        by_layer = {i: self._trace(i, left, packed, biases) for i in layers}
        return Encoded(packed, last, kept, by_layer, finite)

    def pool(self, last: Tensor, rows: Sequence[slice], how: Pooling) -> Tensor:
        """Return what pooling.pool_each gives without dense layers, to the bit."""
        places = [n for each in rows for n in (each.start, each.stop - each.start)]
        modes, most = list(how.modes), how.dimensions or 0
        vectors: Tensor = self._stack.pool(last, places, modes, how.normalize, most)
        return vectors

    def _trace(self, i: int, left: Iterator[Tensor], packed: Packed, biases: Biases) -> Trace:
        """Return the next of the tensors that the operator left, as layer i's trace."""
        q, k, v, z, *normalisers = islice(left, 4 + len(packed.groups))
        attention = self._encoder.layers[i].attention
        return Trace(attention, q, k, v, z, packed.groups, tuple(normalisers), biases)


def _weights(layer: Layer) -> tuple[list[Tensor | None], list[Tensor | None], list[Tensor | None]]:
    """Return a layer's linears, norms and angles, in the order in which the operator takes them."""
    attention = layer.attention
    linears = (attention.project, attention.output, layer.up, layer.down)
    inner = [linear.linear if isinstance(linear, NormedLinear) else linear for linear in linears]
    heads, rotation = attention.norms, attention.rotation
    norms = [layer.attention_norm, layer.feed_forward_norm]
    norms += [None, None] if heads is None else [heads.query, heads.key]
    norms += [each.norm if isinstance(each, NormedLinear) else None for each in linears[1::2]]
    turns = (None, None) if rotation is None else (rotation.cos, rotation.sin)
    tensors = [part for each in inner for part in _linear(each)]
    return tensors, [part for norm in norms for part in _norm(norm)], list(turns)


def _linear(linear: Any) -> Pair:
    return (None, None) if linear is None else (linear.packed, linear.bias)


def _norm(norm: Affine | None) -> Pair:
    return (None, None) if norm is None else norm


def _gates(packed: Packed) -> Iterator[tuple[int, int, int, int, float]]:
    """Yield layer, first row, last row, head and scale of each gate."""
    for rows, by_layer in packed.gates:
        for layer, scales in by_layer.items():
            for head, scale in scales.items():
                yield layer, rows.start, rows.stop, head, float(scale)


def _patches(packed: Packed) -> Iterator[tuple[int, int, int, int, Tensor]]:
    """Yield layer, first row, last row, head and values of each patch."""
    for rows, by_layer in packed.patches:
        for layer, values in by_layer.items():
            for head, value in values.items():
                yield layer, rows.start, rows.stop, head, value
