"""Token vectors -> one vector."""

from dataclasses import dataclass
from typing import Literal

from torch import Tensor

Mode = Literal["mean", "cls", "max", "last"]
SMALLEST_NORM = 1e-12  # what a zero vector is divided by, as torch.nn.functional.normalize


@dataclass(frozen=True, slots=True)
class Pooling:
    """How a sequence becomes one vector.

    Args:
        mode: mean or max over all tokens, or the first (cls) or last token.
        normalize: scale to length 1.
        dimensions: keep the first so many numbers, before normalising; None keeps all.
    """

    mode: Mode
    normalize: bool
    dimensions: int | None = None


def pool(tokens: Tensor, how: Pooling) -> Tensor:
    """One vector, (width or dimensions,) float32, of one sequence's (tokens, width)."""
    pooled = _reduce(tokens.float(), how.mode)[: how.dimensions]
    if how.normalize:
        pooled = pooled / pooled.norm().clamp_min(SMALLEST_NORM)
    return pooled


def _reduce(tokens: Tensor, mode: Mode) -> Tensor:
    match mode:
        case "mean":
            return tokens.mean(0)
        case "max":
            return tokens.amax(0)
        case "cls":
            return tokens[0]
        case "last":
            return tokens[-1]
