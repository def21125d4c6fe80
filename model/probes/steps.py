"""Every step of one sequence through one layer, as model/lessons.py computes and names them."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from model.config import EncoderConfig
from model.encoder import Encoded, Encoder
from model.flops import SHORT_TOKENS, pass_flops
from model.lessons import explain_layer, step_weights
from model.packing import Sequence
from model.probes.probe import FLOAT_BYTES, Probe, Sizes

PASSES = 3  # cost of explaining a layer, in passes through it of SHORT_TOKENS or more
SCORE_COST = 1500  # of each attention score, besides
# How many tensors an explained layer has of the shapes (tokens, width), (heads, tokens, head_dim)
# and (heads, query, key); and at most of weights of the shapes (width, heads * head_dim) and (n,)
ROWS, MIXED, MAPS = 5, 5, 2
SQUARES, VECTORS = 4, 10


@dataclass(frozen=True, slots=True, eq=False)
class Steps(Probe):
    """Makes the steps by name.

    Args:
        layer: which one.
        weights: whether to show its weights too, by names with a dot.
    """

    name: ClassVar = "steps"
    layer: int
    weights: bool = False

    @property
    def states(self) -> Collection[int]:
        return (self.layer,)

    def run(
        self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence
    ) -> Mapping[str, Tensor]:
        steps = explain_layer(encoder, self.layer, encoded.hidden[self.layer][rows])
        return steps | step_weights(encoder, self.layer) if self.weights else steps

    def cost(self, config: EncoderConfig, tokens: int) -> float:
        layer = pass_flops(config, max(tokens, SHORT_TOKENS)) / config.layers
        return PASSES * layer + SCORE_COST * config.heads * tokens**2

    def bytes(self, config: EncoderConfig, tokens: int, number: int = FLOAT_BYTES) -> Sizes:
        width, mixed = config.width, config.mixed_width
        fixed = (SQUARES * width * mixed + VECTORS * max(width, mixed)) * self.weights
        rows = tokens * (MIXED * mixed + (ROWS + config.pre_norm) * width)
        maps = MAPS * config.heads * tokens**2
        return {"attention": number * maps, "steps": number * (fixed + rows)}
