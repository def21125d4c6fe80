"""Linears of int8: eight bits for each input and each weight, sums of the products exact.

    q_j = trunc(clamp(x_j / a_j + c_j, 0, 255))        u8, one scale and shift for each channel
    y_i = s_i sum_j w_ij q_j + b_i                     w s8; the sum int32, all else float32

A channel's range is measured once, in float32, on sequences that stand for all that will come: the
scales are static, so nothing of a row's bits follows from its batch. What one channel has more than
another is moved into the weights, w_ij s_i ~ W_ij a_j (Xiao et al. 2022, "SmoothQuant"), and the
shift into the bias: b_i = B_i + s_i sum_j w_ij (1/2 - c_j), where 1/2 makes of trunc a rounding.

oneDNN multiplies (`onednn::qlinear_pointwise`, as torch's compiler calls it). Its sums are exact
where the processor adds four products into 32 bits in one step (AVX512-VNNI); elsewhere pairs of
products are cut to 16 bits. `exact` tries it. Attention, norms and activations stay float32.
"""

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from model.attention import MultiHeadAttention
from model.config import Activation
from model.encoder import Encoder, Layer
from model.kernels import FUSED_NAMES, Linear, NormedLinear

# The share of a channel's range that its weights take over, where 1 gives all channels the same
# range; of 0.65 to 0.85 the one of the highest cosines (docs/decisions/0028-int8.md)
MOVED = 0.75
LEVELS, MOST = 255, 127  # of an input; of a weight
TINY = 1e-6  # a range that is next to nothing
# how much wider than measured the range of mixed values is taken: a token that looks at one other
# alone mixes less, and so lies further out, than the measured ones may have
ROOM = 2.0


class Site(NamedTuple):
    """A linear of a layer, by the name that a refusal gives it, and where the encoder has it.

    Args:
        room: times its measured ranges that its inputs may take.
    """

    name: str
    owner: MultiHeadAttention | Layer | NormedLinear
    attribute: str
    room: float = 1.0

    @property
    def linear(self) -> Linear:
        """Return the linear that is there."""
        found: Linear = getattr(self.owner, self.attribute)
        return found

    def put(self, linear: Linear) -> None:
        """Put another linear there."""
        setattr(self.owner, self.attribute, linear)


def sites(encoder: Encoder) -> Iterator[Site]:
    """Yield every linear of the layers, in the order in which a pass first meets them."""
    for index, layer in enumerate(dict.fromkeys(encoder.layers)):  # ALBERT's are all one
        yield Site(f"layer {index}, queries, keys and values", layer.attention, "project")
        yield _inner(Site(f"layer {index}, attention output", layer.attention, "output", ROOM))
        yield Site(f"layer {index}, feed-forward up", layer, "up")
        yield _inner(Site(f"layer {index}, feed-forward down", layer, "down"))


def _inner(site: Site) -> Site:
    """Return the linear alone of one whose outputs are normalised."""
    if isinstance(site.linear, NormedLinear):
        return site._replace(owner=site.linear, attribute="linear")
    return site


class Ranged:
    """A linear that keeps the least and the most of each input channel, (inputs,)."""

    def __init__(self, linear: Linear) -> None:
        self.linear, self.bias = linear, linear.bias
        self.least: Tensor | None = None
        self.most: Tensor | None = None

    def __call__(self, x: Tensor) -> Tensor:
        self._look(x)
        return self.linear(x)

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        self._look(x)
        return self.linear.activated(x, activation)

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        self._look(x)
        return self.linear.add(x, residual)

    def weight(self) -> Tensor:
        return self.linear.weight()

    def _look(self, x: Tensor) -> None:
        least, most = x.amin(0), x.amax(0)
        self.least = least if self.least is None else torch.minimum(self.least, least)
        self.most = most if self.most is None else torch.maximum(self.most, most)


class Int8Linear:
    """A linear of int8 products.

    Args:
        weight: (outputs, inputs), float32.
        bias: (outputs,) or None.
        least, most: of each input channel, (inputs,).
    """

    def __init__(self, weight: Tensor, bias: Tensor | None, least: Tensor, most: Tensor) -> None:
        self.bias = bias
        self.steps = _steps(weight, most - least)
        moved = weight * self.steps
        self.scales = moved.abs().amax(1).clamp_min(TINY * TINY) / MOST
        self.codes = (moved / self.scales[:, None]).round_().to(torch.int8)
        # the middle of a range gets the middle code
        shift = LEVELS / 2 - (least + most) / 2 / self.steps
        self.inverse, self.shift = 1 / self.steps, shift + 0.5
        folded = -self.scales * (self.codes.double() @ shift.double()).float()
        self.folded = folded if bias is None else folded + bias
        self.packed: Tensor = torch.ops.onednn.qlinear_prepack(self.codes, None)
        self._zeros = torch.zeros(len(weight), dtype=torch.int64)

    def __call__(self, x: Tensor) -> Tensor:
        return self._run(x, "none", "")

    def activated(self, x: Tensor, activation: Activation) -> Tensor:
        return self._run(x, *FUSED_NAMES[activation])

    def add(self, x: Tensor, residual: Tensor) -> Tensor:
        y: Tensor = torch.ops.onednn.qlinear_pointwise.binary(
            *self._operands(x), residual, *self._ends(), 1.0, 0, "add", 1.0, "none", [], ""
        )
        return y

    def weight(self) -> Tensor:
        """Return the weight that the codes stand for, (outputs, inputs)."""
        return self.codes * self.scales[:, None] / self.steps

    def quantise(self, x: Tensor) -> Tensor:
        """Return the codes of rows, (rows, inputs) uint8."""
        # in two steps: a fused product would round the last rows of a batch differently
        return (x * self.inverse).add_(self.shift).clamp_(0, LEVELS).to(torch.uint8)

    def _run(self, x: Tensor, post: str, algorithm: str) -> Tensor:
        y: Tensor = torch.ops.onednn.qlinear_pointwise.default(
            *self._operands(x), *self._ends(), post, [], algorithm
        )
        return y

    def _operands(self, x: Tensor) -> tuple[Tensor, float, int, Tensor, Tensor, Tensor]:
        return self.quantise(x), 1.0, 0, self.packed, self.scales, self._zeros

    def _ends(self) -> tuple[Tensor, float, int, torch.dtype]:
        return self.folded, 1.0, 0, torch.float32


def _steps(weight: Tensor, ranges: Tensor) -> Tensor:
    """Return the distance of two codes of each input channel, (inputs,).

    One step for all would be the widest channel's; each channel's own would leave the outliers to
    the weights' single scale. Between them, as `MOVED` says.
    """
    ranges = ranges.clamp_min(TINY * ranges.max()).clamp_min(TINY)
    largest = weight.abs().amax(0).clamp_min(TINY)
    steps = ranges**MOVED / largest ** (1 - MOVED)
    return steps * (ranges / steps).max() / LEVELS


def quantise(encoder: Encoder, run: Callable[[], object]) -> None:
    """Replace every linear of an encoder's layers by int8's.

    Args:
        run: sends through the encoder what its channels are measured on.
    """
    before = [(site, Ranged(site.linear)) for site in sites(encoder)]
    for site, ranged in before:
        site.put(ranged)
    run()
    for site, ranged in before:
        if ranged.least is None or ranged.most is None:
            raise RuntimeError("nothing was sent through the encoder: this is a bug")
        middle, reach = (ranged.most + ranged.least) / 2, (ranged.most - ranged.least) / 2
        ends = middle - site.room * reach, middle + site.room * reach
        site.put(Int8Linear(ranged.weight().float(), ranged.bias, *ends))


def stored(linear: Linear) -> tuple[Tensor, ...]:
    """Return the tensors that decide what an int8 linear makes of an input."""
    if not isinstance(linear, Int8Linear):
        raise TypeError("no int8 linear: this is a bug")
    return linear.codes, linear.scales, linear.folded, linear.inverse, linear.shift


def quantised(encoder: Encoder) -> bool:
    """Tell whether the layers' linears are int8's."""
    return isinstance(encoder.layers[0].up, Int8Linear)


def exact() -> bool:
    """Tell whether this processor's sums of int8 products are exact: of the largest numbers."""
    try:
        inputs = torch.full((1, 64), LEVELS, dtype=torch.uint8)
        packed = torch.ops.onednn.qlinear_prepack(
            torch.full((32, 64), MOST, dtype=torch.int8), None
        )
        ones, zeros = torch.ones(32), torch.zeros(32, dtype=torch.int64)
        sums = torch.ops.onednn.qlinear_pointwise.default(
            *(inputs, 1.0, 0, packed, ones, zeros),
            *(None, 1.0, 0, torch.float32, "none", [], ""),
        )
    except (AttributeError, RuntimeError):  # no oneDNN, or a processor that it does not serve
        return False
    return bool((sums == 64 * LEVELS * MOST).all())
