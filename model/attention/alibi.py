"""Scores that fall with distance, in each head by a slope of its own: ALiBi, to either side.

    score_ij = q_i k_j / sqrt(head_dim) - m_h |i - j|      m_h = 2^(-8 h / n), h from 1 to n heads

So it is where n is a power of two. Other numbers of heads take the slopes of the power below n,
then every second one of the power above.

Sources: Press et al. 2022, "Train Short, Test Long", section 3, and `get_slopes` of its code;
Guenther et al. 2023, "Jina Embeddings 2", section 3.1, to either side.
"""

import math

import torch
from torch import Tensor

from model.attention.disentangled import ALL_HEADS


def head_slopes(heads: int) -> list[float]:
    """Return the slope m of each head."""
    below: int = 2 ** int(math.log2(heads))
    slopes = [2 ** (-8 * head / below) for head in range(1, below + 1)]
    return slopes if below == heads else slopes + head_slopes(2 * below)[::2][: heads - below]


class Slopes:
    """ALiBi's bias: in each head, minus its slope times the distance of query and key.

    Args:
        slopes: (heads,) float32.
    """

    terms, by_content = 0, False  # as of disentangled.DistanceBias: the bias ignores content

    def __init__(self, slopes: Tensor) -> None:
        self._slopes = -slopes[:, None, None]

    def reversed_bias(self, tokens: int, dtype: torch.dtype) -> Tensor:
        """Return the bias of all scores of a sequence whose keys are in reverse order.

        It then depends on query + key alone, so that each row is the one before it shifted by one:
        a view of one line for each head, (heads, queries, keys), at any length.
        """
        distances = torch.arange(1 - tokens, tokens, device=self._slopes.device).abs_()
        return (self._slopes[:, 0] * distances).to(dtype).unfold(1, tokens, 1)

    def __call__(
        self,
        q: Tensor,
        k: Tensor,
        queries: slice | Tensor,
        keys: slice,
        heads: slice | list[int] = ALL_HEADS,
    ) -> Tensor:
        """Return the bias of some scores of one sequence, (heads, queries, keys).

        Args:
            q, k: as DistanceBias takes them; only their size and their dtype count.
            queries, keys: which tokens.
            heads: which heads; all by default.
        """
        positions = torch.arange(k.shape[1], device=k.device)
        distances = (positions[queries][:, None] - positions[keys]).abs_().float()
        return (self._slopes[heads] * distances).to(q.dtype)
