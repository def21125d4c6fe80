"""Layers behind an encoder that map each row by itself: to logits of classes, or to vectors."""

from dataclasses import dataclass

from torch import Tensor

from model.pooling import Dense, PoolingLayer


@dataclass(frozen=True, slots=True, eq=False)
class Projection:
    """Maps rows by layers: to logits of classes, labels or words, or to vectors."""

    layers: tuple[PoolingLayer, ...]

    @property
    def outputs(self) -> int:
        """Return how many numbers a row is mapped to."""
        return self.layers[-1].outputs

    def __call__(self, x: Tensor) -> Tensor:
        """Project (rows, width) of any dtype -> (rows, outputs) float32."""
        x = x.float()
        for layer in self.layers:
            x = layer(x)
        return x

    def count_flops(self, rows: int) -> int:
        """Count the floating-point operations of so many rows; a product and its sum are two."""
        return 2 * rows * sum([one.weight_count for one in self.layers if isinstance(one, Dense)])
