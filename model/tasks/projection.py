"""Token vectors -> logits: a dense layer, an activation and a LayerNorm where there are, a linear.

Every family's heads are this; they differ in which of the parts they have, and in the activation.
All is float32, whatever the encoder's dtype.
"""

from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from model.kernels import Affine, Linear, normalise
from model.pooling import Layer


@dataclass(frozen=True, slots=True, eq=False)
class Transform:
    """LayerNorm(activation(W x + b)); without a norm, activation(W x + b)."""

    dense: Linear
    activation: Callable[[Tensor], Tensor]
    norm: Affine | None
    eps: float

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, width) -> (rows, size)."""
        x = self.activation(self.dense(x))
        return x if self.norm is None else normalise(x, self.norm, self.eps)


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """Logits of rows.

    Args:
        transform: before the output, where the family has one.
        outputs: numbers of a row that come out.
        weights: of all its matrices, numbers.
    """

    transform: Transform | None
    output: Linear
    outputs: int
    weights: int

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, width) of any dtype -> (rows, outputs) float32."""
        x = x.float()
        return self.output(x if self.transform is None else self.transform(x))

    def flops(self, rows: int) -> int:
        """Floating-point operations of so many rows; a product and its sum are two."""
        return 2 * self.weights * rows


@dataclass(frozen=True, slots=True, eq=False)
class Stack:
    """Logits of rows by the layers that sentence-transformers puts behind a Pooling.

    Args:
        weights: of all its matrices, numbers.
    """

    layers: tuple[Layer, ...]
    weights: int

    def __call__(self, x: Tensor) -> Tensor:
        """(rows, inputs) of any dtype -> (rows, outputs) float32."""
        x = x.float()
        for layer in self.layers:
            x = layer(x)
        return x

    def flops(self, rows: int) -> int:
        """Floating-point operations of so many rows; a product and its sum are two."""
        return 2 * self.weights * rows
