"""The compiled operator with an encoder's weights, in place of the loop over its layers."""

from collections import defaultdict
from collections.abc import Sequence, Set
from typing import Any, NamedTuple

from torch import Tensor

from model import kernels
from model.attention.attention import TILE_QUERIES, Trace
from model.encoder import Encoded, Encoder, Layer
from model.kernels import Affine, Kernels, NormedLinear
from model.native.operators import ONEDNN_NAMES
from model.packing import Packed
from model.pooling import Pooling

# weight and bias, or cosines and sines; None: there is none
TensorPair = tuple[Tensor | None, Tensor | None]


# the linears and attentions that the operator calls itself
CALLED = [
    (way.linear, way.attend)
    for way in (kernels.ONEDNN, kernels.NEON, kernels.PANELS, kernels.TILES)
    if way
]


class OperatorBatch(NamedTuple):
    """A packed batch as the operator reads it; see packing.Packed."""

    token_ids: Tensor  # (rows,), as the next two
    positions: Tensor
    types: Tensor
    embeddings: list[tuple[int, Tensor]]  # first row, and vectors
    groups: list[tuple[int, int, int, Tensor | None]]  # start, count, length; and the bias
    entry: tuple[int, Tensor, Tensor] | None  # layer, residual, mixed values


class Edits(NamedTuple):
    """Changes to the mixed values of one layer's heads, as the operator reads them."""

    gates: list[tuple[int, int, int, float]]  # rows from, to; head; factor
    patches: list[tuple[int, int, int, Tensor]]  # rows from, to; head; values


def calls_same_kernels(way: Kernels) -> bool:
    """Tell whether these kernels are those that the compiled operator calls itself."""
    return (way.linear, way.attend) in CALLED


class NativeStack:
    """The operator with the weights of one encoder, which it shares.

    Args:
        encoder: one for which `calls_same_kernels`.
        operator: the class that library.load_operator returns.

    Raises:
        NotImplementedError: the operator does not compute such an encoder.
    """

    def __init__(self, encoder: Encoder, operator: Any) -> None:
        self._encoder = encoder
        config, attention = encoder.config, encoder.layers[0].attention
        if not kernels.COMPILED:
            raise NotImplementedError("it has no kernels for this processor")
        if attention.distances is not None:
            raise NotImplementedError("it adds nothing to scores by distance")
        self._stack = operator(
            attention.heads,
            attention.parts[1],
            attention.head_dim,
            attention.scale,
            TILE_QUERIES,
            config.norm_eps,
            config.norm == "rms",
            config.pre_norm,
            config.gated,
            *ONEDNN_NAMES[config.activation],
            encoder.kernels.half,
        )
        tables = encoder.embeddings
        self._stack.embed(
            tables.word,
            tables.position,
            tables.types,
            tables.offset,
            _norm_pair(tables.norm),
            _linear_pair(tables.project),
            _norm_pair(encoder.layers[-1].norms.after if config.pre_norm else None),
        )
        for layer in encoder.layers:
            reach = (-1 if side is None else side for side in layer.attention.reach)
            self._stack.add(_layer_weights(layer), *reach)
        self.unpadded_rows: int = self._stack.unpadded_rows()

    def __call__(self, packed: Packed, hidden: Set[int], traces: Set[int]) -> Encoded:
        """Encode as Encoder.run_layers does, to the bit, and tell whether all is finite."""
        biases, entry = self._encoder.biases(packed), packed.entry
        batch = OperatorBatch(
            packed.token_ids,
            packed.positions,
            packed.types,
            [(rows.start, vectors) for rows, vectors in packed.embeddings],
            [
                (group.start, group.count, group.length, bias)
                for group, bias in zip(packed.groups, biases, strict=True)
            ],
            (entry.layer, entry.residual, entry.mixed) if entry else None,
        )
        last, states, traced, finite = self._stack.run(
            batch, _edits_by_layer(packed), list(hidden), list(traces)
        )
        by_layer = {}
        for i, (q, k, v, z, normalisers) in traced.items():
            attention = self._encoder.layers[i].attention
            by_layer[i] = Trace(attention, q, k, v, z, packed.groups, tuple(normalisers), biases)
        return Encoded(packed, last, states, by_layer, finite)

    def pool(self, last: Tensor, rows: Sequence[slice], pooling: Pooling) -> Tensor:
        """Pool as pooling.pool_each does, to the bit, but without the layers of a Pooling."""
        places = [(each.start, each.stop - each.start) for each in rows]
        modes, dimensions = list(pooling.modes), pooling.dimensions or 0
        vectors: Tensor = self._stack.pool(last, places, modes, pooling.normalize, dimensions)
        return vectors


def _layer_weights(layer: Layer) -> dict[str, TensorPair]:
    """Return a layer's weights by the operator's names."""
    attention, rotation = layer.attention, layer.attention.rotation
    first, second = layer.norms[:2] if layer.config.pre_norm else layer.norms[1:]
    query, key = (heads.query, heads.key) if (heads := attention.norms) else (None, None)
    return {
        "project": _linear_pair(attention.project),
        "rotation": (rotation.cos, rotation.sin) if rotation else (None, None),
        "query_norm": _norm_pair(query),
        "key_norm": _norm_pair(key),
        "output": _linear_pair(attention.output),
        "output_norm": _norm_pair(getattr(attention.output, "norm", None)),
        "attention_norm": _norm_pair(first),
        "up": _linear_pair(layer.up),
        "down": _linear_pair(layer.down),
        "down_norm": _norm_pair(getattr(layer.down, "norm", None)),
        "feed_forward_norm": _norm_pair(second),
    }


def _linear_pair(linear: Any) -> TensorPair:
    """Return a linear's packed weight and bias, without its norm; two None without a linear."""
    own: Any = linear.linear if isinstance(linear, NormedLinear) else linear
    return (None, None) if own is None else (own.packed, getattr(own, "added", own.bias))


def _norm_pair(norm: Affine | None) -> TensorPair:
    """Return a norm's weight and bias; two None without a norm."""
    return (None, None) if norm is None else norm


def _edits_by_layer(packed: Packed) -> list[tuple[int, Edits]]:
    """Return the layers in which mixed values are edited, each with its edits."""
    edits = defaultdict[int, Edits](lambda: Edits([], []))
    for rows, gates in packed.gates:
        for layer, scales in gates.items():
            edits[layer].gates.extend((rows.start, rows.stop, *each) for each in scales.items())
    for rows, patches in packed.patches:
        for layer, values in patches.items():
            edits[layer].patches.extend((rows.start, rows.stop, *each) for each in values.items())
    return list(edits.items())
