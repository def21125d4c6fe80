"""What position does: sinusoids, rotation, relative distance, windows.

    PE(pos, 2i) = sin(pos / 10000^(2i/d))   PE(pos, 2i+1) = cos(pos / 10000^(2i/d))

Sources: Vaswani et al. 2017, section 3.5 (sinusoids); Su et al. 2021, "RoFormer" (rotation);
Raffel et al. 2020, T5, section 2.1 (buckets of distance, as MPNet has them).
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


class Rotation:
    """Turns pairs of channels of queries and keys by an angle proportional to position.

    Channel c is paired with c + head/2; in float32, whatever the dtype.
    """

    def __init__(self, theta: float, head: int, positions: int, device: torch.device) -> None:
        channel = torch.arange(0, head, 2, dtype=torch.float32, device=device)
        rates = 1.0 / theta ** (channel / head)
        angles = torch.arange(positions, dtype=torch.float32, device=device)[:, None] * rates
        self.cos, self.sin = angles.cos(), angles.sin()  # (positions, head / 2)

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x, (rows, heads, head), by each row's position, (rows,)."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        left, right = x.float().chunk(2, dim=-1)
        turned = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return turned.to(x.dtype)


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
