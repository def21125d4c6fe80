"""The arithmetic: two linears and two attentions that agree, and the test that picks.

`ONEDNN` holds weights in oneDNN's own blocked layout and calls ATen's fused CPU attention
directly, which also returns the softmax normaliser that the attention maps need. `PLAIN` is
public torch, exact everywhere, slower. This is the only file that touches private ATen
operators; `choose` takes them when they exist and agree with PLAIN on this machine.

Which kernel runs follows from the machine alone, never from a batch: that is what keeps the
same input at the same bits (docs/decisions/0001-batch-invariance.md).
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

AGREEMENT = 1e-4  # largest difference between the fast and the plain answer, absolute


class Linear(Protocol):
    """x W^T + b for rows x, (rows, inputs); weight is (outputs, inputs)."""

    def __call__(self, x: Tensor) -> Tensor: ...

    def gelu(self, x: Tensor) -> Tensor:
        """GELU (the exact, erf one) of x W^T + b."""

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        """x W^T + b + residual."""

    def weight(self) -> Tensor:
        """The weight as plain rows, (outputs, inputs)."""


class PlainLinear:
    """A linear of public torch operators."""

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self._weight, self.bias = weight.clone(), bias.clone()

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self.bias)

    def gelu(self, x: Tensor) -> Tensor:
        return F.gelu(self(x))

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        return self(x).add_(residual)

    def weight(self) -> Tensor:
        return self._weight


class PackedLinear:
    """A linear whose weight lies in oneDNN's blocked layout, with fused epilogues.

    Reading cold weights dominates a short sentence; in this layout they are read once, in
    order (measured: benchmarks/results.md).
    """

    def __init__(self, weight: Tensor, bias: Tensor) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = bias.clone()

    def __call__(self, x: Tensor) -> Tensor:
        done: Tensor = _pointwise(x, self.packed, self.bias, "none", [], "")
        return done

    def gelu(self, x: Tensor) -> Tensor:
        done: Tensor = _pointwise(x, self.packed, self.bias, "gelu", [], "none")
        return done

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        done: Tensor = _pointwise_binary(x, residual, self.packed, self.bias, "add")
        return done

    def weight(self) -> Tensor:
        rows: Tensor = self.packed.to_dense()
        return rows


def attend_plain(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """Scaled dot-product attention, every step written out.

    Args:
        q, k, v: (sequences, heads, tokens, head).
        scale: what the scores are multiplied by.

    Returns:
        The mixed values, shaped as v, and the log of each row's softmax normaliser,
        (sequences, heads, tokens), float32.
    """
    # one sequence at a time: a batched product picks its kernel, and so its bits, by their number
    each = [_attend_one(*sequence, scale) for sequence in zip(q, k, v, strict=True)]
    mixed, normalisers = zip(*each, strict=True)
    return torch.stack(mixed), torch.stack(normalisers)


def _attend_one(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    scores = (q.float() @ k.float().transpose(-2, -1)) * scale  # (heads, query, key)
    normaliser = scores.logsumexp(-1)
    probabilities = (scores - normaliser.unsqueeze(-1)).exp_()
    return (probabilities @ v.float()).to(v.dtype), normaliser


def attend_fused(q: Tensor, k: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor]:
    """`attend_plain` in one pass over tiles, without a (query, key) matrix in memory."""
    mixed, normaliser = _flash(q, k, v, 0.0, False, scale=scale)
    return mixed, normaliser


@dataclass(frozen=True, slots=True)
class Kernels:
    """One way to compute; `name` is part of what answers call `numerics`."""

    name: str
    linear: Callable[[Tensor, Tensor], Linear]
    attend: Callable[[Tensor, Tensor, Tensor, float], tuple[Tensor, Tensor]]


PLAIN = Kernels("plain", PlainLinear, attend_plain)

try:
    _pointwise = torch.ops.mkldnn._linear_pointwise.default
    _pointwise_binary = torch.ops.mkldnn._linear_pointwise.binary
    _flash = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    ONEDNN: Kernels | None = Kernels("onednn", PackedLinear, attend_fused)
except (AttributeError, RuntimeError):  # a torch build without oneDNN, or a renamed operator
    ONEDNN = None


def choose(device: torch.device, dtype: torch.dtype) -> Kernels:
    """The fastest kernels that agree with the plain ones on this machine."""
    fits = ONEDNN is not None and device.type == "cpu" and dtype == torch.float32
    return ONEDNN if fits and ONEDNN is not None and _agree(ONEDNN) else PLAIN


def _agree(fast: Kernels) -> bool:
    """Compare every operation of `fast` with PLAIN on numbers from a fixed seed."""
    random = torch.Generator().manual_seed(0)
    weight, bias = torch.randn(48, 32, generator=random), torch.randn(48, generator=random)
    x, residual = torch.randn(17, 32, generator=random), torch.randn(17, 48, generator=random)
    heads = torch.randn(3, 2, 4, 7, 8, generator=random)  # q, k and v of 2 sequences
    try:
        answers = [
            _operations(kernels, weight, bias, x, residual, heads) for kernels in (fast, PLAIN)
        ]
    except RuntimeError:  # the operator is there, but this processor or build cannot run it
        return False
    return all(torch.allclose(a, b, atol=AGREEMENT) for a, b in zip(*answers, strict=True))


def _operations(
    kernels: Kernels, weight: Tensor, bias: Tensor, x: Tensor, residual: Tensor, heads: Tensor
) -> list[Tensor]:
    linear = kernels.linear(weight, bias)
    mixed = kernels.attend(heads[0], heads[1], heads[2], 0.5)
    return [linear(x), linear.gelu(x), linear.add(x, residual), linear.weight(), *mixed]
