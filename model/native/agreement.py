"""The compiled operator is held to the loop over layers, to the bit, before it runs for it."""

from collections.abc import Iterator
from dataclasses import replace
from typing import get_args

import torch
from torch import Tensor

from model import packing
from model.attention import TILE
from model.config import EncoderConfig, Mode
from model.encoder import Encoded, Encoder
from model.native.stack import Stack
from model.pooling import Pooling, pool_each

MODES = get_args(Mode)
LENGTHS = (1, 3, 40, 40, 40)  # tokens
UNSEEN = 4  # place of the one whose last tokens no token looks at
SEVERAL_TILES = 2 * TILE + 1  # tokens of one more, where a window makes tiles


def agrees(encoder: Encoder, stack: Stack) -> bool:
    """Whether both give the same bits: alone, in company with all that is kept, and as vectors."""
    every = frozenset(range(encoder.config.layers))
    states, batch = every | {encoder.config.layers}, list(_sequences(encoder.config))
    alone, together = encoder.pack(batch[:1]), encoder.pack(batch)
    inside = encoder.pack([_inside(encoder, batch[0])])
    trials = [
        (alone, frozenset[int](), frozenset[int]()),
        (together, states, every),
        (inside, states, every),
    ]
    passes = all(equal(encoder.loop(*trial), stack(*trial)) for trial in trials)
    last, rows = encoder.loop(*trials[0]).last, [alone.rows(0)]
    ways = (Pooling((mode,), normalize) for mode in MODES for normalize in (False, True))
    return passes and all(
        torch.equal(pool_each(last, rows, how), stack.pool(last, rows, how)) for how in ways
    )


def equal(one: Encoded, other: Encoded) -> bool:
    """Whether two passes over a batch left the same bits."""
    pairs = zip(left(one), left(other), strict=True)
    return all(torch.equal(a, b) for a, b in pairs)


def left(encoded: Encoded) -> list[Tensor]:
    """All that a pass left, in one order."""
    tensors = [encoded.last, *(encoded.hidden[i] for i in sorted(encoded.hidden))]
    for layer in sorted(encoded.traces):
        trace = encoded.traces[layer]
        tensors += [trace.q, trace.k, trace.v, trace.z, *trace.normalisers]
    return tensors


def _sequences(config: EncoderConfig) -> Iterator[packing.Sequence]:
    """One of each length: the second of vectors, the third edited, the fifth with an unseen end."""
    random = torch.Generator().manual_seed(0)
    lengths = (*LENGTHS, SEVERAL_TILES) if any(config.windows) else LENGTHS
    for place, length in enumerate(min(length, config.max_tokens) for length in lengths):
        ids = torch.randint(config.vocabulary, (length,), generator=random).tolist()
        types = torch.randint(max(1, config.types), (length,), generator=random).tolist()
        if place == 1:
            vectors = torch.randn(length, config.embedding_width, generator=random)
            yield packing.Sequence(embeddings=vectors)
        elif place == 2:
            gates = {layer: {config.heads - 1: 0.5} for layer in range(config.layers)}
            value = torch.randn(length, config.head, generator=random)
            patches = {layer: {0: value} for layer in range(config.layers)}
            yield packing.Sequence(ids, types, gates=gates, patches=patches)
        elif place == UNSEEN:
            yield packing.Sequence(ids, types, unseen=length // 2)
        else:
            yield packing.Sequence(ids, types)


def _inside(encoder: Encoder, sequence: packing.Sequence) -> packing.Sequence:
    """A sequence that begins in the first layer, with a gate there and in the last."""
    encoded = encoder.loop(encoder.pack([sequence]), frozenset({0}), frozenset({0}))
    rows = encoded.packed.rows(0)
    entry = packing.Entry(0, encoded.hidden[0][rows], encoded.traces[0].z[rows])
    gates = {layer: {0: 0.5} for layer in {0, encoder.config.layers - 1}}
    return replace(sequence, gates=gates, entry=entry)
