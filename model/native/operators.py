"""The compiled operator's linear and attention, for encoders whose layers run in Python.

Both are what the compiled forward pass computes with, so that it can give the loop's bits.
"""

from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Activation
from model.native import library

PANEL = 64  # outputs side by side; as native/kinds.h
# oneDNN's name of each activation, and the algorithm
ONEDNN_NAMES: dict[Activation, tuple[str, str]] = {
    "gelu": ("gelu", "none"),
    "gelu_tanh": ("gelu", "tanh"),
    "relu": ("relu", "none"),
    "silu": ("swish", "none"),
}


class PanelLinear:
    """A linear of float32 by our own product, whose bits follow from a row and the weight alone.

    Weights lie in panels of PANEL outputs side by side.

    Args:
        weight: (outputs, inputs), of any dtype.
        bias: (outputs,) or None; added in float32.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.outputs, self.inputs = weight.shape
        self.packed = self._pack(weight)
        self.bias = None if bias is None else bias.float().clone()
        self.added = (
            weight.new_zeros(self.outputs, dtype=torch.float32) if bias is None else self.bias
        )

    def __call__(self, x: Tensor) -> Tensor:
        """Return x W^T + b, (rows, outputs) float32."""
        return self._run(x, None, "none", "")

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """Return activation(x W^T + b), (rows, outputs)."""
        return self._run(x, None, *ONEDNN_NAMES[activation])

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return x W^T + b + residual, (rows, outputs) float32; residual itself is unchanged."""
        return self._run(x, residual, "none", "")

    def weight(self) -> Tensor:
        """Return the weight as plain rows, (outputs, inputs) float32."""
        rows = self.packed.transpose(1, 2).flatten(0, 1).flatten(1)
        return rows[: self.outputs, : self.inputs].float()

    def _pack(self, weight: Tensor) -> Tensor:
        """Return the weight as (panels, inputs, PANEL), the last filled up with zeros."""
        rows = F.pad(weight.float(), (0, 0, 0, -self.outputs % PANEL))
        return rows.view(-1, PANEL, self.inputs).transpose(1, 2).contiguous()

    def _run(self, x: Tensor, residual: Tensor | None, activation: str, algorithm: str) -> Tensor:
        result: Tensor = torch.ops.headlight.panel_linear(
            x, self.packed, self.added, residual, activation, algorithm
        )
        return result


class HalfLinear(PanelLinear):
    """A PanelLinear of bfloat16, whose sums are float32; x is rounded to bfloat16.

    Two inputs of a weight lie side by side, as avx512_bf16 multiplies them. What an activation
    returns is bfloat16.
    """

    def _pack(self, weight: Tensor) -> Tensor:
        """Return the weight as (panels, pairs, PANEL, 2)."""
        fill = (0, self.inputs % 2, 0, -self.outputs % PANEL)
        rows = F.pad(weight.bfloat16(), fill).view(-1, PANEL, (self.inputs + 1) // 2, 2)
        return rows.transpose(1, 2).contiguous()


def attend_compiled(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None, half: bool = False
) -> tuple[Tensor, Tensor]:
    """Attend as kernels.attend_plain, with all scores of a few queries at a time.

    Args:
        half: whether q, k, v and the weights are rounded to bfloat16 before they are multiplied.
    """
    mixed, sums = torch.ops.headlight.attend(q, k, v, bias, scale, half)
    return mixed, sums


def find_attention(half: bool) -> bool:
    """Tell whether `attend_compiled` runs on this machine."""
    x: Any = torch.zeros(1, 1, 1, 16)
    try:
        library.load_operator()
        torch.ops.headlight.attend(x, x, x, None, 1.0, half)
    except (library.OperatorMissing, RuntimeError):  # not built, or not for this processor
        return False
    return True
