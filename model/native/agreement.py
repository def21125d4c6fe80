"""Checks that the compiled operator gives the loop's bits, before it runs in place of the loop."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from model import packing
from model.attention import TILE_QUERIES
from model.config import EncoderConfig, PoolingMode
from model.encoder import Encoded, Encoder
from model.native.stack import NativeStack
from model.pooling import Pooling, pool_each

POOLING_MODES = get_args(PoolingMode)  # all of them
TESTED_LENGTHS = (1, 3, 40, 40, 40)  # tokens of each test sequence
UNSEEN_SEQUENCE = 4  # index of the test sequence with unseen last tokens
TILED_LENGTH = 2 * TILE_QUERIES + 1  # tokens of one more sequence, for encoders with windows


def agrees_with_loop(encoder: Encoder, stack: NativeStack) -> bool:
    """Tell whether both give the same bits: for one sequence, a batch, an entry, and pooling."""
    every = frozenset(range(encoder.config.layers))
    states, batch = every | {encoder.config.layers}, list(_test_sequences(encoder.config))
    trials = [
        (batch[:1], frozenset[int](), frozenset[int]()),
        (batch, states, every),
        ([_start_inside(encoder, batch[0])], states, every),
    ]
    passes = all(_agree_on_batch(encoder, stack, *trial) for trial in trials)
    alone = encoder.pack(batch[:1])
    last, rows = encoder.run_layers(alone, *trials[0][1:]).last, [alone.rows(0)]
    ways = (Pooling((mode,), normalize) for mode in POOLING_MODES for normalize in (False, True))
    return passes and all(
        torch.equal(pool_each(last, rows, pooling), stack.pool(last, rows, pooling))
        for pooling in ways
    )


def _agree_on_batch(
    encoder: Encoder,
    stack: NativeStack,
    sequences: list[packing.Sequence],
    hidden: frozenset[int],
    traces: frozenset[int],
) -> bool:
    """Tell whether both give the same bits of a batch, with the fill of either."""
    where = encoder.device, encoder.config.pad
    packed = packing.pack_sequences(sequences, *where)
    expected = encoder.run_layers(packed, hidden, traces)
    unpadded = packing.pack_sequences(sequences, *where, stack.unpadded_rows)
    return all(same_bits(expected, stack(batch, hidden, traces)) for batch in (packed, unpadded))


def same_bits(one: Encoded, other: Encoded) -> bool:
    """Tell whether two passes over a batch gave the same bits; `other` may have less fill."""
    pairs = zip(kept_tensors(one), kept_tensors(other), strict=True)
    return all(torch.equal(a[: len(b)], b) for a, b in pairs)


def kept_tensors(encoded: Encoded) -> list[Tensor]:
    """Return all tensors of a pass's result, in a fixed order."""
    tensors = [encoded.last, *(encoded.hidden[i] for i in sorted(encoded.hidden))]
    for layer in sorted(encoded.traces):
        trace = encoded.traces[layer]
        tensors += [trace.q, trace.k, trace.v, trace.z, *trace.normalisers]
    return tensors


def _test_sequences(config: EncoderConfig) -> Iterator[packing.Sequence]:
    """Yield one sequence per length; some have embeddings, gates and patches, or unseen tokens."""
    random = torch.Generator().manual_seed(0)
    lengths = (*TESTED_LENGTHS, TILED_LENGTH) if any(config.windows) else TESTED_LENGTHS
    for index, length in enumerate(min(length, config.max_tokens) for length in lengths):
        ids = torch.randint(config.vocabulary, (length,), generator=random).tolist()
        types = torch.randint(max(1, config.types), (length,), generator=random).tolist()
        if index == 1:
            vectors = torch.randn(length, config.embedding_width, generator=random)
            yield packing.Sequence(embeddings=vectors)
        elif index == 2:
            gates = {layer: {config.heads - 1: 0.5} for layer in range(config.layers)}
            value = torch.randn(length, config.head_dim, generator=random)
            patches = {layer: {0: value} for layer in range(config.layers)}
            yield packing.Sequence(ids, types, gates=gates, patches=patches)
        elif index == UNSEEN_SEQUENCE:
            yield packing.Sequence(ids, types, unseen=length // 2)
        else:
            yield packing.Sequence(ids, types)


def _start_inside(encoder: Encoder, sequence: packing.Sequence) -> packing.Sequence:
    """Return the sequence with an entry in the first layer, and gates there and in the last."""
    encoded = encoder.run_layers(encoder.pack([sequence]), frozenset({0}), frozenset({0}))
    rows = encoded.packed.rows(0)
    entry = packing.Entry(0, encoded.hidden[0][rows], encoded.traces[0].z[rows])
    gates = {layer: {0: 0.5} for layer in {0, encoder.config.layers - 1}}
    return replace(sequence, gates=gates, entry=entry)
