"""A text without one of its heads -> how far its encoding moves.

    moved(h) = 1 - cos(pooled, pooled with head h's mixed values set to 0 before W^O)

Only heads of one layer compare: what the last layer's write is pooled as it is, what an earlier
one's write goes through all that follows.

Source: Michel et al. 2019, "Are Sixteen Heads Really Better than One?", section 3.2.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

from model import packing
from model.encoder import Encoder
from model.pooling import Pooling, pool

BATCH = 16  # copies of the text in one pass


def ablate(encoder: Encoder, token_ids: Sequence[int], pooling: Pooling) -> Tensor:
    """How far the encoding moves without each head, (layers, heads), 0 is not at all."""
    layers, heads = encoder.config.layers, encoder.config.heads
    copies = [packing.Sequence(token_ids)]
    copies += [
        packing.Sequence(token_ids, gates={layer: {head: 0.0}})
        for layer in range(layers)
        for head in range(heads)
    ]
    vectors: list[Tensor] = []
    for first in range(0, len(copies), BATCH):
        vectors += _encode(encoder, copies[first : first + BATCH], pooling)
    rows = torch.stack(vectors).double()
    return (1 - torch.cosine_similarity(rows[1:], rows[:1])).view(layers, heads)


def _encode(
    encoder: Encoder, sequences: Sequence[packing.Sequence], pooling: Pooling
) -> list[Tensor]:
    """The pooled vector of each sequence of one batch."""
    encoded = encoder(encoder.pack(sequences))
    rows = [encoded.packed.rows(index) for index in range(len(sequences))]
    return [pool(encoded.last[part], pooling).cpu() for part in rows]
