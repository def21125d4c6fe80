"""What the kernels of bfloat16 round, by plain torch on any processor; the sums are float32's.

The order of sums is another, so bits are too. It is what docs/models.md measures families by.
"""

from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Activation
from model.kernels import ACTIVATIONS, Kernels, Linear
from model.loading import checkpoint
from model.loading.checkpoint import Model
from tests.model.loads import CPU


def rounded(x: Tensor) -> Tensor:
    """Numbers of bfloat16, as float32."""
    return x.bfloat16().float()


class RoundedLinear(Linear):
    """A linear that rounds what it multiplies, as HalfLinear of model/native/operators.py."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self.bias = rounded(weight), None if bias is None else bias.float()

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(rounded(x), self._weight, self.bias)

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """Return activation(x W^T + b), rounded."""
        return ACTIVATIONS[activation](self(x)).bfloat16()

    def weight(self) -> Tensor:
        """Return the rounded weight, (outputs, inputs)."""
        return self._weight


def attend(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend as attend_plain, with queries, keys, values and softmax weights rounded."""
    scores = rounded(q) @ rounded(k).transpose(-2, -1) * scale
    if bias is not None:
        scores = scores + bias
    most = scores.amax(-1, keepdim=True)
    weights = (scores - most).exp()
    sums = weights.sum(-1, keepdim=True)
    mixed = rounded(weights) @ rounded(v) / sums
    return mixed, (sums.log() + most).squeeze(-1)


ROUNDED = Kernels("rounded", RoundedLinear, attend, half=True)


def load_rounded(folder: Path) -> Model:
    """A folder's model in bfloat16, computed so."""
    return checkpoint.load_checkpoint(folder, CPU, torch.bfloat16, ROUNDED)
