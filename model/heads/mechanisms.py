"""Scores of many sentences by part -> what each head of layer 0 goes by: words or positions.

The parts are those of why.py, and so is the share of a pair in how scores vary, here over all rows
of all sentences together. The control is the share that a pair has once the key's part is another
token's: shuffled among the tokens that a row may see, in one order for all rows of a sentence,
while the whole scores stay as they are. It is 0 but for chance, and shows what chance gives. A pair
whose share lies MAJORITY above it is the head's mechanism.

Source: Kamath et al. 2025, "Tracing Attention Computation Through Feature Interactions"
(transformer-circuits.pub/2025/attention-qk); the control is our own.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from model.why import PARTS

MAJORITY = 0.6  # how far at least the share of a mechanism lies above its control


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
        heads: how many there are.
    """

    def __init__(self, heads: int) -> None:
        cells = heads, len(PARTS), len(PARTS)
        self._shares = torch.zeros(cells, dtype=torch.float64)
        self._controls = torch.zeros(cells, dtype=torch.float64)
        self._variance = torch.zeros(heads, 1, 1, dtype=torch.float64)
        self._random = torch.Generator().manual_seed(0)  # the same control each time

    def add_sentence(self, scores: Tensor) -> None:
        """Add the scores of all rows of a sentence.

        Args:
            scores: (heads, query, query parts, key parts, key), as why.explain_scores returns them.
        """
        seen, scores = ~scores[0, :, 0, 0].isnan(), scores.nan_to_num().double()
        total = scores.sum((2, 3))
        self._variance += total.square().sum((1, 2))[:, None, None]
        order = torch.randperm(len(seen), generator=self._random)
        shuffled = scores.clone()
        for row, keys in enumerate(seen):
            places = keys.nonzero().flatten()
            shuffled[:, row, :, :, places] = scores[:, row][..., places[order[places].argsort()]]
        for sums, parts in ((self._shares, scores), (self._controls, shuffled)):
            sums += torch.einsum("hiabj,hij->hab", parts, total)

    def mechanisms(self) -> list[Mechanism | None]:
        """Return the mechanism of each head; None where no pair has most of the variation."""
        shares, controls = self._shares / self._variance, self._controls / self._variance
        return [_find(*of_head) for of_head in zip(shares, controls, strict=True)]


def _find(shares: Tensor, controls: Tensor) -> Mechanism | None:
    """Return the pair of parts with the largest share, (query parts, key parts), if it is one."""
    query, key = divmod(int(shares.argmax()), len(PARTS))
    share, control = float(shares[query, key]), float(controls[query, key])
    if not share - abs(control) >= MAJORITY:  # which NaN is not either
        return None
    return Mechanism(PARTS[query], PARTS[key], share, control)
