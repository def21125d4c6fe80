"""What each input token adds to a score that a task head reads out, exactly, with the pass kept.

With attention's probabilities, norms' divisors and activations' factors kept as the pass computed
them (carried.py), and those of the head (frozen_heads.py), a logit, or a sum of logits with
weights such as the first less the second, is linear in what enters the first layer:

    score = sum_t <x_t, g_t> + rest

g is the score's gradient at the embeddings' rows, carried back once for all tokens (backward.py);
<x_t, g_t> is token t's share. The rest, of all biases, is carried forward by itself: that the sum
is the score is no definition but a result.

Source: Modarressi et al. 2023, "DecompX" (arXiv 2306.02873), on what is kept.
"""

from collections.abc import Hashable
from collections.abc import Sequence as Many
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from model.config import EncoderConfig
from model.decider import Decider
from model.decisions import KINDS
from model.encoder import Encoded, Encoder
from model.flops import pass_flops
from model.packing import Sequence
from model.probes.backward import LAYER_SECONDS, Stack, gradients
from model.probes.carried import CARRY_PASSES, Carried, Carrier, Sources, add_bias
from model.probes.frozen_heads import LinearHead, read_logits
from model.probes.probe import FLOAT_BYTES, Made

FORTH_AND_BACK = 2 * CARRY_PASSES + 1  # passes besides one for each target: the last, of all biases


@dataclass(frozen=True, slots=True, eq=False)
class Readout(Carried):
    """What each input token adds to scores, which are sums of a head's logits with weights.

    Args:
        head: one that `check_linear` returns.
        weights: of the logits in each score, (targets, outputs).
        places: of a Tagger, the token of each target.
    """

    name: ClassVar = "readout"
    head: LinearHead
    weights: Tensor
    places: Many[int] = ()

    def __len__(self) -> int:
        return len(self.weights)

    @property
    def layers(self) -> Encoder | None:
        """Return the head's own layers; None: it has none."""
        return self.head.layers if isinstance(self.head, Decider) else None

    @property
    def price_key(self) -> Hashable:
        return self.name, len(self), id(self.layers)

    def run(self, encoder: Encoder, encoded: Encoded, rows: slice, sequence: Sequence) -> Made:
        return share_scores(encoder, sequence, self)

    def flops(self, config: EncoderConfig, tokens: int) -> int:
        passes = [pass_flops(each, tokens) for each in self._configs(config)]
        return (len(self) + FORTH_AND_BACK) * sum(passes)

    def call_seconds(self, config: EncoderConfig) -> float:
        return LAYER_SECONDS * sum(each.layers for each in self._configs(config))

    def scratch_bytes(self, config: EncoderConfig, tokens: int) -> int:
        configs = self._configs(config)
        kept = sum(each.layers * (each.width + each.mixed_width) for each in configs)
        carried = max(Carried.scratch_bytes(self, each, tokens) for each in configs)
        return carried + FLOAT_BYTES * tokens * kept

    def _configs(self, config: EncoderConfig) -> list[EncoderConfig]:
        """Return the configs of the encoder and of the head's own layers."""
        return [config] if self.layers is None else [config, self.layers.config]

    def read(self, parts: Tensor) -> Tensor:
        """Return what parts that leave the last layer add to each score, (parts, targets)."""
        logits = read_logits(self.head, parts, self.places)
        return (logits * self.weights.to(parts)).sum(-1)


@torch.inference_mode(mode=False)  # whose tensors autograd does not keep
def share_scores(encoder: Encoder, sequence: Sequence, readout: Readout) -> dict[str, Tensor]:
    """Return what each token adds to each score, and what all biases add.

    Returns:
        shares: (targets, tokens) float32; rest: (targets,) float32. They sum to the scores.
    """
    carrier, head = Carrier(encoder, sequence), readout.head
    entered = carrier.enter(Sources((1,) * len(sequence), range(1)))  # the pass, and biases
    stacks = [Stack(carrier, entered, len(encoder.layers))]
    parts = stacks[0].last
    if isinstance(head, Decider):
        parts = add_bias(parts.clone(), head.types[KINDS.index(head.kind)])
    if isinstance(head, Decider) and head.layers is not None:
        within = Carrier(head.layers, head.sequence(stacks[0].last[0]))
        stacks.append(Stack(within, parts, len(head.layers.layers)))
        parts = stacks[1].last
    last = parts[:1].clone().requires_grad_()
    scores = readout.read(last)
    (g,) = gradients(torch.eye(len(readout)).to(last)[:, None], scores, last)
    for stack in reversed(stacks):
        g = stack.carry_back(g)
    shares = (g[:, 0] * entered[0]).sum(-1)
    return {"shares": shares, "rest": readout.read(parts)[1]}
