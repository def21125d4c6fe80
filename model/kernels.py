"""The arithmetic: linears and attentions that agree, and the test that picks.

`ONEDNN` holds weights in oneDNN's own blocked layout and calls ATen's fused CPU attention
directly, which also returns the softmax normaliser that the attention maps need. `PLAIN` is
public torch, exact everywhere, slower. This is the only file that touches private ATen
operators; `choose_kernels` takes them when they exist and agree with PLAIN on this machine.

Which kernel runs follows from the machine alone, never from a batch: that is what keeps the
same input at the same bits (docs/decisions/0001-batch-invariance.md).
"""

import platform
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Protocol

import torch
from torch import Tensor
from torch.nn import functional as F

from model import cuda
from model.attention.positions import hiding_bias
from model.attention.reach import EVERYWHERE, Reach
from model.config import Activation, NormKind
from model.native.operators import (
    ONEDNN_NAMES,
    HalfLinear,
    PanelLinear,
    attend_compiled,
    find_attention,
)
from model.packing import Sequence, pack_sequences
from model.steady import ACTIVATIONS, without_idle_threads

Affine = tuple[Tensor, Tensor | None]  # weight and bias of a linear or a norm

DEFAULT_HEAD_DIM = 64  # channels of a head, in most checkpoints
# largest difference between the fast and the plain answer, absolute or relative
TOLERANCES = {torch.float32: 1e-4, torch.bfloat16: 3e-2, torch.float16: 4e-3}
# Whether this processor multiplies bfloat16, and in tiles, which oneDNN uses only where it does
HAS_HALF = bool(getattr(torch.cpu, "_is_avx512_bf16_supported", bool)())
HAS_NEON = platform.machine() == "aarch64"
HAS_AMX = HAS_HALF and bool(getattr(torch.cpu, "_is_amx_tile_supported", bool)())


class Linear(Protocol):
    """x W^T + b for rows x, (rows, inputs); weight is (outputs, inputs), bias may be None."""

    bias: Tensor | None

    def __call__(self, x: Tensor) -> Tensor: ...

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """Return activation(x W^T + b), (rows, outputs)."""
        return ACTIVATIONS[activation](self(x))

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return x W^T + b + residual, (rows, outputs); residual itself is unchanged."""
        return self(x).add_(residual)

    def weight(self) -> Tensor:
        """Return the weight as plain rows, (outputs, inputs)."""


class PlainLinear(Linear):
    """A linear of public torch operators."""

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self._weight, self.bias = weight.clone(), None if bias is None else bias.clone()

    def __call__(self, x: Tensor) -> Tensor:
        return F.linear(x, self._weight, self.bias)

    def weight(self) -> Tensor:
        """Return the weight, (outputs, inputs)."""
        return self._weight


class PackedLinear(Linear):
    """A linear whose weight lies in oneDNN's blocked layout, with fused epilogues.

    Reading cold weights dominates a short sentence; in this layout they are read once, in
    order.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        self.packed = torch.ops.mkldnn._reorder_linear_weight(weight)
        self.bias = None if bias is None else bias.clone()

    def __call__(self, x: Tensor) -> Tensor:
        return _pointwise(x, self.packed, self.bias, "none", [], "")

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """Return activation(x W^T + b), (rows, outputs), in one kernel."""
        name, algorithm = ONEDNN_NAMES[activation]
        return _pointwise(x, self.packed, self.bias, name, [], algorithm)

    def add_to(self, x: Tensor, residual: Tensor) -> Tensor:
        """Return x W^T + b + residual in one kernel; residual itself is unchanged."""
        return _pointwise_binary(x, residual, self.packed, self.bias, "add")

    def weight(self) -> Tensor:
        """Return the weight unpacked, (outputs, inputs)."""
        rows: Tensor = self.packed.to_dense()
        return rows


def normalise(x: Tensor, norm: Affine, eps: float, kind: NormKind = "layer") -> Tensor:
    """Apply LayerNorm over the last axis, or RMSNorm; Ba et al. 2016, Zhang and Sennrich 2019.

    RMSNorm computes in the wider of both dtypes, and returns that of x.
    """
    if kind == "rms":
        wide = torch.promote_types(x.dtype, norm[0].dtype)
        return F.rms_norm(x.to(wide), [x.shape[-1]], norm[0].to(wide), eps).to(x.dtype)
    return torch.native_layer_norm(x, [x.shape[-1]], *norm, eps)[0]


class RoundedLinear(PackedLinear):
    """A PackedLinear of bfloat16 between float32: x is rounded, and what oneDNN rounds is widened.

    For AMX, which is faster than HalfLinear's vectors.
    """

    def __init__(self, weight: Tensor, bias: Tensor | None) -> None:
        super().__init__(weight.bfloat16(), None if bias is None else bias.float())

    def __call__(self, x: Tensor) -> Tensor:
        return super().__call__(x.bfloat16()).float()

    def activate(self, x: Tensor, activation: Activation) -> Tensor:
        """Return activation(x W^T + b), (rows, outputs) bfloat16, in one kernel."""
        return super().activate(x.bfloat16(), activation)

    add_to = Linear.add_to  # of what is widened

    def weight(self) -> Tensor:
        """Return the weight unpacked, (outputs, inputs) float32."""
        return super().weight().float()


class NormedLinear(Linear):
    """A linear whose outputs are normalised before they are added to anything."""

    def __init__(self, linear: Linear, norm: Affine, eps: float, kind: NormKind) -> None:
        self.linear, self.norm, self.eps, self.kind = linear, norm, eps, kind
        self.bias = linear.bias

    def __call__(self, x: Tensor) -> Tensor:
        return normalise(self.linear(x), self.norm, self.eps, self.kind)

    def weight(self) -> Tensor:
        """Return the linear's weight, (outputs, inputs), without the norm."""
        return self.linear.weight()


def attend_plain(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Compute scaled dot-product attention, every step written out.

    Args:
        q, k, v: (sequences, heads, tokens, head_dim).
        scale: what the scores are multiplied by.
        bias: added to the scaled scores, (1 or heads, query, key); -inf hides a key.

    Returns:
        The mixed values, shaped as v, and the log of each row's softmax normaliser,
        (sequences, heads, tokens), float32.
    """
    # one sequence at a time: a batched product picks its kernel, and so its bits, by their number
    results = [_attend_sequence(*sequence, scale, bias) for sequence in zip(q, k, v, strict=True)]
    mixed, normalisers = zip(*results, strict=True)
    return torch.stack(mixed), torch.stack(normalisers)


def _attend_sequence(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None
) -> tuple[Tensor, Tensor]:
    """Attend as `attend_plain` within one sequence; all tensors are without its first axis."""
    with without_idle_threads(len(q)):
        scores = (q.float() @ k.float().transpose(-2, -1)) * scale  # (heads, query, key)
    if bias is not None:
        scores += bias
    normaliser = scores.logsumexp(-1)
    probabilities = (scores - normaliser.unsqueeze(-1)).exp_()
    with without_idle_threads(len(q)):
        return (probabilities @ v.float()).to(v.dtype), normaliser


def attend_fused(
    q: Tensor, k: Tensor, v: Tensor, scale: float, bias: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Attend as `attend_plain`, in one pass over tiles, with no (query, key) matrix in memory."""
    if COMPILED and q.dtype == torch.float32:
        return attend_compiled(q, k, v, scale, bias)
    mask = None if bias is None else bias[None]
    return _flash(q, k, v, 0.0, False, attn_mask=mask, scale=scale)


attend_half = partial(attend_compiled, half=True)


@dataclass(frozen=True, slots=True)
class Kernels:
    """Interchangeable implementations of a linear and of attention.

    Args:
        name: part of what answers call `numerics`.
        linear: makes a linear of a weight and a bias.
        attend: attention within sequences of one length, as `attend_plain`.
        attend_packed: attention within all sequences of a batch in one call, without a bias.
        half: whether what linears and attention multiply is rounded to bfloat16, and all else is
            float32; otherwise all is of one dtype.
    """

    name: str
    linear: Callable[[Tensor, Tensor | None], Linear]
    attend: Callable[[Tensor, Tensor, Tensor, float, Tensor | None], tuple[Tensor, Tensor]]
    attend_packed: cuda.AttendPacked | None = None
    half: bool = False

    def round(self, x: Tensor) -> Tensor:
        """Return x as the attention multiplies it, in its own dtype."""
        return x.bfloat16().to(x) if self.half else x

    @property
    def single(self) -> "Kernels":
        """Return the kernels of what is float32 in every model: of its heads and its pooling."""
        return (ONEDNN or PLAIN) if self.half else self

    @property
    def path(self) -> str:
        """Return where a map's softmax normaliser comes from: "fused" kernel or "exact" steps."""
        return "exact" if self.attend is attend_plain else "fused"

    @property
    def reads_strided_bias(self) -> bool:
        """Tell whether `attend` reads a bias of any strides without copying it."""
        return self.attend in (attend_fused, attend_half)


PLAIN = Kernels("plain", PlainLinear, attend_plain)  # public torch operators; the reference

try:
    _pointwise: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.default
    _pointwise_binary: Callable[..., Tensor] = torch.ops.mkldnn._linear_pointwise.binary
    _flash: Callable[..., tuple[Tensor, Tensor]] = (
        torch.ops.aten._scaled_dot_product_flash_attention_for_cpu.default
    )
    ONEDNN: Kernels | None = Kernels("onednn", PackedLinear, attend_fused)
except (AttributeError, RuntimeError):  # a torch build without oneDNN, or a renamed operator
    ONEDNN = None
COMPILED = find_attention(half=False)  # whether the compiled attention takes the place of torch's
NEON = Kernels("neon", PanelLinear, attend_fused)
PANELS = Kernels("panels", HalfLinear, attend_half, half=True)
TILES = Kernels("tiles", RoundedLinear, attend_half, half=True)


def choose_kernels(
    device: torch.device, dtype: torch.dtype, head_dim: int = DEFAULT_HEAD_DIM
) -> Kernels:
    """Return the fastest kernels that agree with the plain ones on this machine.

    Args:
        head_dim: channels of one head of the model; a GPU's kernels do not take every number.
    """
    candidates = []
    if device.type == "cpu" and dtype == torch.float32:
        candidates = [way for way in (NEON if HAS_NEON and COMPILED else None, ONEDNN) if way]
    if device.type == "cpu" and dtype == torch.bfloat16 and HAS_HALF and find_attention(half=True):
        candidates = [TILES if HAS_AMX else PANELS]
    if device.type == "cuda":
        grouped = Kernels("grouped", PlainLinear, cuda.attend_grouped)
        packed = cuda.find_packed_attention(dtype)
        candidates = [replace(grouped, name="varlen", attend_packed=attend) for attend in packed]
        candidates += [grouped]
    return next(
        (fast for fast in candidates if _agrees_with_plain(fast, device, dtype, head_dim)), PLAIN
    )


def _agrees_with_plain(
    fast: Kernels, device: torch.device, dtype: torch.dtype, head_dim: int
) -> bool:
    """Tell whether all operations of `fast` agree with PLAIN on numbers from a fixed seed."""
    random = torch.Generator().manual_seed(0)
    # the last: two sequences of 7 tokens, 4 heads; queries, keys and values as a layer has them
    shapes = ((48, 32), (48,), (17, 32), (17, 48), (2 * 7, 3, 4, head_dim))
    tolerance = TOLERANCES[dtype]
    inputs = [torch.randn(shape, generator=random).to(device, dtype) for shape in shapes]
    if fast.half:  # it would round them itself
        inputs = [numbers.float() for numbers in inputs]
    try:
        answers = [_run_operations(kernels, *inputs) for kernels in (fast, PLAIN)]
    except (RuntimeError, TypeError):  # it is there, but this processor or build cannot run it
        return False
    pairs = zip(*answers, strict=True)
    return all(
        torch.allclose(a.float(), b.float(), atol=tolerance, rtol=tolerance) for a, b in pairs
    )


def _run_operations(
    kernels: Kernels, weight: Tensor, bias: Tensor, x: Tensor, residual: Tensor, qkv: Tensor
) -> list[Tensor]:
    """Return the outputs of every operation, in a fixed order."""
    linear = kernels.linear(weight, bias)
    answers = [linear(x), linear.add_to(x, residual), linear.weight()]
    answers += [linear.activate(x, activation) for activation in ACTIVATIONS]
    # (q k v, sequences, heads, tokens, head); views, as a layer's, for kernels ask for strides too
    heads = qkv.view(2, -1, *qkv.shape[1:]).permute(2, 0, 3, 1, 4)
    heads[1:, :, 1::2] = heads[1:, :, ::2]  # two heads share keys and values
    for reach in (EVERYWHERE, Reach(1, 1), Reach(None, 0)):
        answers += _attend_pair(kernels, heads, reach)
        mask = _reach_mask(heads, Reach(1, 1))
        answers += kernels.attend(heads[0], heads[1], heads[2], 0.5, mask)
    return answers


def _attend_pair(kernels: Kernels, heads: Tensor, reach: Reach) -> tuple[Tensor, Tensor]:
    """Attend as `attend_plain`, by `attend_packed` if there; `heads` is q, k and v, stacked."""
    if kernels.attend_packed is None:
        mask = None if reach == EVERYWHERE else _reach_mask(heads, reach)
        return kernels.attend(heads[0], heads[1], heads[2], 0.5, mask)
    count, tokens = heads.shape[1], heads.shape[3]
    packed = pack_sequences([Sequence([0] * tokens)] * count, heads.device)
    rows = heads.permute(1, 3, 0, 2, 4).flatten(0, 1)  # (rows, q k v, heads, head)
    fill = len(packed.token_ids) - len(rows)
    q, k, v = F.pad(rows, (0, 0, 0, 0, 0, 0, 0, fill)).unbind(1)
    mixed, normaliser = kernels.attend_packed(q, k[:, ::2], v[:, ::2], packed, 0.5, reach)
    mixed = mixed[: count * tokens].reshape(count, tokens, *mixed.shape[1:])
    return mixed.transpose(1, 2), normaliser.reshape(-1, count, tokens).transpose(0, 1)


def _reach_mask(heads: Tensor, reach: Reach) -> Tensor:
    """Return the bias that hides keys beyond reach, (1, query, key), in the dtype of `heads`."""
    every = slice(0, heads.shape[3])
    return hiding_bias(every, every, reach, heads)
