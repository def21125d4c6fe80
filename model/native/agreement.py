"""Checks that the compiled operator gives the loop's bits, before it runs in place of the loop."""

from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from typing import Any, get_args

import torch
from torch import Tensor

from model import packing
from model.attention.attention import TILE_QUERIES
from model.config import EncoderConfig, PoolingMode
from model.encoder import Encoded, Encoder
from model.native.stack import NativeStack
from model.packing import pack_sequences
from model.pooling import Pooling, pool_each

POOLING_MODES = get_args(PoolingMode)  # all of them
# Tokens of vectors, of most test sequences, and of one of several tiles, for encoders with windows
TESTED_LENGTHS = 3, 40, 2 * TILE_QUERIES + 1


def agrees_with_loop(encoder: Encoder, stack: NativeStack) -> bool:
    """Tell whether both give the same bits: for one sequence, a batch, an entry, and pooling."""
    return all(torch.equal(found, expected) for found, expected in _both_ways(encoder, stack))


def _both_ways(encoder: Encoder, stack: NativeStack) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield each tensor of the operator, in a batch with its fill or the loop's, and the loop's."""
    every, nothing = frozenset(range(encoder.config.layers)), frozenset[int]()
    states, batch = every | {encoder.config.layers}, list(_test_sequences(encoder.config))
    entered = [_start_inside(encoder, batch[0])]
    trials = (batch[:1], nothing, nothing), (batch, states, every), (entered, states, every)
    for sequences, hidden, traces in trials:
        where = sequences, encoder.device, encoder.config.pad
        expected = encoder.run_layers(pack_sequences(*where), hidden, traces)
        for unpadded_rows in (0, stack.unpadded_rows):
            found = stack(pack_sequences(*where, unpadded_rows), hidden, traces)
            yield from pair_tensors(found, expected)
    last, rows = expected.last, [expected.packed.rows(0)]
    for mode, normalize in product(POOLING_MODES, (False, True)):
        pooling = Pooling((mode,), normalize)
        yield stack.pool(last, rows, pooling), pool_each(last, rows, pooling)


def pair_tensors(found: Encoded, expected: Encoded) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield all tensors of two passes over a batch, of which `found` may have less fill."""
    for few, many in zip(kept_tensors(found), kept_tensors(expected), strict=True):
        yield few, many[: len(few)]


def kept_tensors(encoded: Encoded) -> list[Tensor]:
    """Return all tensors of a pass's result, in a fixed order."""
    tensors = [encoded.last, *(encoded.hidden[i] for i in sorted(encoded.hidden))]
    for layer in sorted(encoded.traces):
        trace = encoded.traces[layer]
        tensors += [trace.q, trace.k, trace.v, trace.z, *trace.normalisers]
    return tensors


def _test_sequences(config: EncoderConfig) -> Iterator[packing.Sequence]:
    """Yield sequences, some with embeddings, gates and patches, or unseen tokens."""
    random = torch.Generator().manual_seed(0)

    def draw(length: int, **more: Any) -> packing.Sequence:
        """Return a sequence of random ids and types."""
        ids = torch.randint(config.vocabulary, (length,), generator=random)
        types = torch.randint(max(1, config.types), (length,), generator=random)
        return packing.Sequence(ids.tolist(), types.tolist(), **more)

    few, some, many = (min(length, config.max_tokens) for length in TESTED_LENGTHS)
    value = torch.randn(some, config.head_dim, generator=random)
    gates = {layer: {config.heads - 1: 0.5} for layer in range(config.layers)}
    yield draw(1)
    yield packing.Sequence(embeddings=torch.randn(few, config.embedding_width, generator=random))
    yield draw(some, gates=gates, patches=dict.fromkeys(gates, {0: value}))
    yield draw(some)
    yield draw(some, unseen=some // 2)
    if any(config.windows):
        yield draw(many)


def _start_inside(encoder: Encoder, sequence: packing.Sequence) -> packing.Sequence:
    """Return the sequence with an entry in the first layer, and gates there and in the last."""
    encoded = encoder.run_layers(encoder.pack([sequence]), frozenset({0}), frozenset({0}))
    rows = encoded.packed.rows(0)
    entry = packing.Entry(0, encoded.hidden[0][rows], encoded.traces[0].z[rows])
    gates = {layer: {0: 0.5} for layer in {0, encoder.config.layers - 1}}
    return replace(sequence, gates=gates, entry=entry)
