"""How scores of many sentences vary by part -> what heads of layer 0 go by: words or positions.

The parts are those of why.py, and so is the share of a pair in how scores vary, here over all rows
of all sentences together. A share may follow from what the parts are, whichever weights multiply
them. So the control is the head itself with the numbers of its W^Q and of its W^K shuffled: of
DRAWS such heads, the largest share of any pair that 95 % of them stay below. A pair is the head's
mechanism where it has a MAJORITY of the variation, and more than the control.

Source: Kamath et al. 2025, "Tracing Attention Computation Through Feature Interactions"
(transformer-circuits.pub/2025/attention-qk); the control is our own.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from model import packing
from model.encoder import Encoder
from model.probes.why import PARTS, shuffle_weights, sum_scores

MAJORITY = 0.6  # least share of a mechanism
DRAWS = 20  # heads with shuffled weights, for each head
BELOW = 0.95  # the part of them that stay below the control


@dataclass(frozen=True, slots=True)
class Mechanism:
    """The parts of query and of key that a head goes by, their share, and the control's."""

    query: str
    key: str
    share: float
    control: float


class MechanismTally:
    """Sums up over sentences how the scores of layer 0's heads vary with each pair of parts.

    Args:
        sequences: the sentences; none are changed.
    """

    def __init__(self, encoder: Encoder, sequences: Sequence[packing.Sequence]) -> None:
        self._encoder, self._sequences = encoder, sequences
        self._shares: list[Tensor] = []  # of each draw, (heads, query parts, key parts)

    def add_draw(self, draw: int) -> None:
        """Measure all sentences with one draw of shuffled weights, from 1 on, or, 0, without.

        Draws are added in order, in any thread: each reads every sentence.
        """
        weight = shuffle_weights(self._encoder.layers[0].attention, draw)
        sums = [sum_scores(self._encoder, sequence, weight) for sequence in self._sequences]
        covariance, variance = (torch.stack(each).sum(0).cpu() for each in zip(*sums, strict=True))
        self._shares.append(covariance / variance[:, None, None])

    def mechanisms(self) -> list[Mechanism | None]:
        """Return the mechanism of each head; None where no pair is one."""
        own, *drawn = self._shares
        controls = torch.stack(drawn).flatten(2).amax(2).quantile(BELOW, 0)
        return [_find(*of_head) for of_head in zip(own, controls.tolist(), strict=True)]


def _find(shares: Tensor, control: float) -> Mechanism | None:
    """Return the pair of parts with the largest share, (query parts, key parts), if it is one."""
    query, key = divmod(int(shares.argmax()), len(PARTS))
    share = float(shares[query, key])
    if not (share >= MAJORITY and share > control):  # which NaN is not either
        return None
    return Mechanism(PARTS[query], PARTS[key], share, control)
