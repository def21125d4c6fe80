"""What follows from positions: sinusoids, buckets of distance, masks of reach, rotation.

    PE(pos, 2i) = sin(pos / 10000^(2i/d))   PE(pos, 2i+1) = cos(pos / 10000^(2i/d))
    rate(c) = theta^(-2c / head_dim)        angle(position, c) = position * rate(c)

Sources: Vaswani et al. 2017, section 3.5 (sinusoids); Raffel et al. 2020, T5, section 2.1 (buckets
of distance, as MPNet has them); Su et al. 2021, "RoFormer"; Chen et al. 2023, "Positional
Interpolation" (linear); Peng et al. 2023, "YaRN"; Su 2023, https://kexue.fm/archives/9706 (NTK).
The rates are transformers' own, NTK's those of GTE's code, operation for operation: the last bit of
one is worth 5e-4 radians at position 8191.
"""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from model.attention.reach import Reach

SINUSOID_BASE = 10_000.0  # of the wavelengths
FURTHEST_BUCKET = 128  # distances from here on share the last bucket, in MPNet as in T5


def sinusoids(positions: int, width: int) -> Tensor:
    """Return the table of sinusoids, (positions, width) float32, sine and cosine interleaved.

    Angles are computed in float64: in float32 they drift for long sequences.
    """
    channel = torch.arange(0, width, 2, dtype=torch.float64)
    bases = SINUSOID_BASE ** (channel / width)
    angles = torch.arange(positions, dtype=torch.float64)[:, None] / bases
    table = torch.empty(positions, width)
    table[:, 0::2] = angles.sin()
    table[:, 1::2] = angles[:, : width // 2].cos()
    return table


def distance_buckets(tokens: int, count: int, device: torch.device) -> Tensor:
    """Return the bucket of every distance, (query, key) int64: half for keys after the query."""
    positions = torch.arange(tokens, device=device)
    ahead = positions[None, :] - positions[:, None]
    half = count // 2
    exact = half // 2  # distances below have a bucket each, further ones share by logarithm
    distance = ahead.abs()
    share = (distance.float() / exact).log() / math.log(FURTHEST_BUCKET / exact)
    far = (exact + (share * (half - exact)).to(torch.int64)).clamp_max(half - 1)
    return (ahead > 0) * half + torch.where(distance < exact, distance, far)


def hiding_bias(query: slice, key: slice, reach: Reach, like: Tensor) -> Tensor:
    """Return a tile's bias, (1, query, key), as a tensor like `like`: -inf beyond reach, else 0."""
    queries = torch.arange(query.start, query.stop, device=like.device)
    keys = torch.arange(key.start, key.stop, device=like.device)
    far = beyond_reach(queries, keys, reach)
    mask = torch.zeros(far.shape, dtype=like.dtype, device=like.device)
    return mask.masked_fill_(far, -math.inf)[None]


def beyond_reach(queries: Tensor, keys: Tensor, reach: Reach) -> Tensor:
    """Return a bool mask of positions, (query, key): True where a key is beyond reach."""
    ahead = keys - queries[:, None]
    before, after = reach
    if before is None:
        return ahead > after if after is not None else torch.zeros_like(ahead, dtype=torch.bool)
    return ahead < -before if after is None else (ahead < -before).logical_or_(ahead > after)


@dataclass(frozen=True, kw_only=True, slots=True)
class Rope:
    """A rotary embedding: how fast each pair of channels rotates with position; not stretched.

    Args:
        theta: base of the rates.
        amplitude: factor of the rotated queries and keys.
    """

    theta: float
    amplitude: float = 1.0

    def rotation_rates(self, head_dim: int) -> Tensor:
        """Return the radians per position of each pair of channels, (head_dim / 2,) float32."""
        return 1.0 / self.rotation_bases(head_dim)

    def rotation_bases(self, head_dim: int, pairs: int | None = None) -> Tensor:
        """Return positions per radian for the first pairs of channels, float32; all by default."""
        # not cut afterwards: a power's last bit follows from both
        stop = head_dim if pairs is None else 2 * pairs
        return self.theta ** (torch.arange(0, stop, 2, dtype=torch.float32) / head_dim)


@dataclass(frozen=True, kw_only=True, slots=True)
class LinearRope(Rope):
    """Position interpolation: every rate is divided by a factor."""

    factor: float

    def rotation_rates(self, head_dim: int) -> Tensor:
        """Return Rope's rates divided by the factor, (head_dim / 2,) float32."""
        return 1.0 / self.rotation_bases(head_dim) / self.factor


@dataclass(frozen=True, kw_only=True, slots=True)
class NtkRope(Rope):
    """NTK scaling: the slowest rate is divided by a factor, the others by less.

    rate(c) = (theta factor)^(-2c / head_dim) / factor^(2 / head_dim)
    """

    factor: float

    def rotation_rates(self, head_dim: int) -> Tensor:
        """Return Rope's rates scaled by NTK, (head_dim / 2,) float32."""
        bases = Rope(theta=self.theta * self.factor).rotation_bases(head_dim)
        return (1.0 / bases).div(self.factor ** (2 / head_dim))


@dataclass(frozen=True, kw_only=True, slots=True)
class YarnRope(Rope):
    """YaRN: slow rates are divided by a factor, fast ones kept, with a ramp between them.

    Args:
        trained: tokens of the longest sequence before stretching.
        fast, slow: turns within `trained` from which on a rate is kept, and up to which it is
            divided.
        whole: whether the ramp begins and ends at whole channels.
    """

    factor: float
    trained: float
    fast: float = 32.0
    slow: float = 1.0
    whole: bool = True

    def rotation_rates(self, head_dim: int) -> Tensor:
        """Return Rope's rates scaled by YaRN, (head_dim / 2,) float32."""
        low = self._pair_with_turns(self.fast, head_dim)
        high = self._pair_with_turns(self.slow, head_dim)
        if self.whole:
            low, high = math.floor(low), math.ceil(high)
        low, high = max(low, 0), min(high, head_dim - 1)
        high += 0.001 if low == high else 0  # a ramp needs a length
        ramp = (torch.arange(head_dim // 2, dtype=torch.float32) - low) / (high - low)
        kept, bases = 1 - ramp.clamp(0, 1), self.rotation_bases(head_dim)
        return 1.0 / (self.factor * bases) * (1 - kept) + 1.0 / bases * kept

    def _pair_with_turns(self, turns: float, head_dim: int) -> float:
        """Return the index of the pair of channels that makes so many turns within `trained`."""
        ratio = math.log(self.trained / (turns * 2 * math.pi))
        return (head_dim * ratio) / (2 * math.log(self.theta))


@dataclass(frozen=True, kw_only=True, slots=True)
class Llama3Rope(Rope):
    """Llama 3: rates of long waves are divided by a factor, those of short waves kept.

    Args:
        trained: tokens of the longest sequence before stretching.
        low, high: a wave is long from trained / low on, short up to trained / high.
    """

    factor: float
    trained: float
    low: float
    high: float

    def rotation_rates(self, head_dim: int) -> Tensor:
        """Return Rope's rates scaled as in Llama 3, (head_dim / 2,) float32."""
        plain = 1.0 / self.rotation_bases(head_dim)
        wave = 2 * math.pi / plain
        share = (self.trained / wave - self.low) / (self.high - self.low)
        between = (1 - share) * plain / self.factor + share * plain
        rates = torch.where(wave > self.trained / self.low, plain / self.factor, between)
        return torch.where(wave < self.trained / self.high, plain, rates)


@dataclass(frozen=True, kw_only=True, slots=True)
class ProportionalRope(Rope):
    """A share of the pairs of channels rotates, at rates divided by a factor; others do not."""

    factor: float
    share: float

    def rotation_rates(self, head_dim: int) -> Tensor:
        """Return Rope's rates divided by the factor, then 0 for still pairs, (head_dim / 2,)."""
        turning = int(self.share * head_dim // 2)
        still = torch.zeros(head_dim // 2 - turning)
        return torch.cat((1.0 / self.rotation_bases(head_dim, turning), still)) / self.factor


class Rotation:
    """Rotates pairs of channels of queries and keys by an angle proportional to position.

    Channel c is paired with c + head_dim/2; computed in float32.
    """

    def __init__(self, rope: Rope, head_dim: int, positions: int, device: torch.device) -> None:
        places = torch.arange(positions, dtype=torch.float32, device=device)
        angles = places[:, None] * rope.rotation_rates(head_dim).to(device)
        # (positions, head_dim / 2) each
        self.cos, self.sin = angles.cos() * rope.amplitude, angles.sin() * rope.amplitude

    def __call__(self, x: Tensor, positions: Tensor) -> Tensor:
        """Rotate x, (rows, heads, head_dim), by each row's position, (rows,)."""
        cos, sin = self.cos[positions][:, None], self.sin[positions][:, None]
        left, right = x.float().chunk(2, dim=-1)
        rotated = torch.cat((left * cos - right * sin, right * cos + left * sin), dim=-1)
        return rotated.to(x.dtype)
