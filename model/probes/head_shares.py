"""What each head adds to a product with a text's vector, exactly, with the pass's pattern frozen.

With attention's probabilities P, the divisors sigma of norms and the factors m of activations kept
as a pass computed them (carried.py), what follows a layer's heads is linear in what they write. So
a text's reduced vector u has, with any vector v and in each layer by itself,

    <u, v> = sum_h <Z_h, r_h> + rest

where r is what carries v back to what W^O reads: the gradient of <u, v>, as u is computed by
carried.py, through one layer after the other, the last first (backward.py).

A head is counted with the bias of its values. All but the heads is the rest: what passes the layer
without its attention, and the biases of W^O, of feed-forward blocks and of norms.

Sources: Elhage et al. 2021, "A Mathematical Framework for Transformer Circuits", on what heads add;
Modarressi et al. 2023, "DecompX" (arXiv 2306.02873), on what is frozen.
"""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from model.config import EncoderConfig, PoolingMode
from model.encoder import Encoded, Encoder
from model.packing import Sequence
from model.probes.backward import LAYER_SECONDS, carry_back, gradients
from model.probes.carried import Carried, Carrier, reduce_parts


@dataclass(frozen=True, slots=True, eq=False)
class Targets(Carried):
    """What each head adds to the products of a text's reduced vector with targets.

    Args:
        vectors: (targets, modes * width).
        modes: how tokens are reduced to one vector.
    """

    name: ClassVar = "shares"
    vectors: Tensor
    modes: tuple[PoolingMode, ...]

    def __len__(self) -> int:
        return len(self.vectors)

    def run(self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence) -> Tensor:
        return share_heads(encoder, sequence, self)

    def call_seconds(self, config: EncoderConfig) -> float:
        return LAYER_SECONDS * config.layers


@torch.inference_mode(mode=False)  # whose tensors autograd does not keep
def share_heads(encoder: Encoder, sequence: Sequence, targets: Targets) -> Tensor:
    """Return what each head adds to each product, then what the rest adds.

    Returns:
        (layers, heads + 1, targets) float32; in each layer they sum to the products.
    """
    carrier, shares, count = Carrier(encoder, sequence), list[Tensor](), len(encoder.layers)
    encoded, own = encoder(carrier.packed, hidden=frozenset(range(count))), carrier.own
    left = encoded.last[own].float()[None].requires_grad_()
    u, v = reduce_parts(left, targets.modes), targets.vectors.to(encoder.device).float()
    products, (g,) = v @ u.detach()[0], gradients(v[:, None], u, left)
    for index in reversed(range(count)):
        x = encoded.hidden[index][own].float()[None]
        back = carry_back(carrier, g, x, index)
        # what the pass rounded in this layer stays in none of its shares
        products = products + _multiply(back.written - left, g).sum(1)
        heads = _multiply(back.mixed, back.read).view(len(v), carrier.attention(index).heads, -1)
        heads = heads.sum(2).T
        shares.append(torch.cat([heads, products[None] - heads.sum(0, keepdim=True)]))
        g, left = back.entered, x
    return torch.stack(shares[::-1])


def _multiply(x: Tensor, g: Tensor) -> Tensor:
    """Return products of x, (1, tokens, width), with g, summed over tokens, (targets, width)."""
    return (x.detach() * g).sum((1, 2))
