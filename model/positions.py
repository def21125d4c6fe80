"""What position does: sinusoids, relative distance, windows; rotation.py has the rest.

    PE(pos, 2i) = sin(pos / 10000^(2i/d))   PE(pos, 2i+1) = cos(pos / 10000^(2i/d))

Sources: Vaswani et al. 2017, section 3.5 (sinusoids); Raffel et al. 2020, T5, section 2.1 (buckets
of distance, as MPNet has them).
"""

import math

import torch
from torch import Tensor

SINUSOID_BASE = 10_000.0
FURTHEST_BUCKET = 128  # distances from here on share the last bucket, in MPNet as in T5


def sinusoids(positions: int, width: int) -> Tensor:
    """The table of sinusoids, (positions, width) float32, sine and cosine interleaved.

    Angles are computed in float64: in float32 they drift for long sequences.
    """
    channel = torch.arange(0, width, 2, dtype=torch.float64)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] / SINUSOID_BASE ** (
        channel / width
    )
    table = torch.empty(positions, width)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles[:, : width // 2].cos()
    return table


def buckets(tokens: int, count: int, device: torch.device) -> Tensor:
    """The bucket of every distance, (query, key) int64: half of them for keys after the query."""
    place = torch.arange(tokens, device=device)
    ahead = place[None, :] - place[:, None]
    half = count // 2
    exact = half // 2  # distances below have a bucket each, further ones share by logarithm
    distance = ahead.abs()
    share = (distance.float() / exact).log() / math.log(FURTHEST_BUCKET / exact)
    far = (exact + (share * (half - exact)).to(torch.int64)).clamp_max(half - 1)
    return (ahead > 0) * half + torch.where(distance < exact, distance, far)


def hidden(query: slice, key: slice, window: int, like: Tensor) -> Tensor:
    """What to add to a tile's scores, (1, query, key): -inf beyond the window, else 0."""
    queries = torch.arange(query.start, query.stop, device=like.device)[:, None]
    keys = torch.arange(key.start, key.stop, device=like.device)[None, :]
    mask = torch.zeros(queries.shape[0], keys.shape[1], dtype=like.dtype, device=like.device)
    return mask.masked_fill_((queries - keys).abs() > window, -math.inf)[None]
