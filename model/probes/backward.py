"""Carries products back through layers, from what leaves them to what enters, the pass kept.

With attention's probabilities, norms' divisors and activations' factors kept (carried.py), products
with what a layer writes are products with what enters it: autograd turns all of a layer but the
mixing, which is turned by hand, tile by tile: autograd would keep all of P.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from model.probes.carried import Carrier

LAYER_SECONDS = 0.004  # of the calls for a layer, however small it is: 3.5 ms on a Xeon of 2023


class LayerBack(NamedTuple):
    """One layer on the way back.

    Args:
        entered: what products with the layer's output are of its input, (targets, 1, tokens,
            width).
        read: the same of what W^O reads, (targets, 1, tokens, heads * head_dim).
        mixed: what W^O reads, (1, tokens, heads * head_dim).
        written: the layer's output, (1, tokens, width).
    """

    entered: Tensor
    read: Tensor
    mixed: Tensor
    written: Tensor


def carry_back(
    carrier: Carrier, g: Tensor, x: Tensor, index: int, mixed: Tensor | None = None
) -> LayerBack:
    """Carry products with a layer's output back to its input.

    Args:
        g: what the output is multiplied with, (targets, 1, tokens, width).
        x: what enters the layer, (1, tokens, width) float32.
        mixed: what W^O reads; None: as the pass mixes x, in the pass's own number format.
    """
    x = x.detach().requires_grad_()
    values, trace = carrier.make_values(x, index)
    z = trace.z[carrier.own].float()[None] if mixed is None else mixed.detach()
    written = carrier.write_mixed(x, z.requires_grad_(), index)
    passed, read = gradients(g, written, x, z)
    by_values = carrier.mix(read[:, 0], trace, index, back=True)
    return LayerBack(passed + gradients(by_values[:, None], values, x)[0], read, z, written)


def gradients(g: Tensor, made: Tensor, *sources: Tensor) -> tuple[Tensor, ...]:
    """Return the gradients in sources of made's products with g, (targets, *shape of made)."""
    return torch.autograd.grad(made, sources, g, is_grads_batched=True)


class Stack:
    """Layers that parts were carried through, and the way back.

    Args:
        parts: that enter the first layer, (1 + sources, tokens, width).
        layers: how many there are.

    Attributes:
        last: the parts after the last layer.
    """

    def __init__(self, carrier: Carrier, parts: Tensor, layers: int) -> None:
        self._carrier = carrier
        self._kept = list[tuple[Tensor, Tensor]]()  # of the pass in each layer: input, mixed values
        for index in range(layers):
            values, trace = carrier.make_values(parts, index)
            mixed = carrier.mix(values, trace, index)
            self._kept.append((parts[:1].clone(), mixed[:1].clone()))
            parts = carrier.write_mixed(parts, mixed, index)
        self.last = parts

    def carry_back(self, g: Tensor) -> Tensor:
        """Carry products with what leaves the last layer back to what enters the first.

        Args:
            g: (targets, 1, tokens, width), as what is returned.
        """
        for index, (x, mixed) in reversed([*enumerate(self._kept)]):
            g = carry_back(self._carrier, g, x, index, mixed).entered
        return g
