"""q, k and the softmax normaliser -> the attention maps asked for.

The forward pass never holds a (query, key) matrix. It leaves queries, keys and the log of each
softmax row's sum; from these any map follows exactly, for the named heads only:

    P = exp(scale q k^T - normaliser)
"""

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from model.attention import Trace

TILE = 128  # query rows at a time: working memory is heads * TILE * tokens numbers


def full(trace: Trace, rows: slice, heads: Many[int]) -> Tensor:
    """The attention probabilities of one sequence in one layer.

    Args:
        rows: the sequence's rows in its batch.
        heads: which heads, counted from 0.

    Returns:
        (heads asked, query, key) float32; each row sums to 1 over key.
    """
    q, k, normaliser = trace.sequence(rows)
    chosen = list(heads)
    keys = k[chosen].float().transpose(1, 2)  # (heads asked, head, key)
    queries, shift = q[chosen].float(), normaliser[chosen].unsqueeze(-1)
    tokens = q.shape[1]
    maps = torch.empty(len(heads), tokens, tokens, device=q.device)
    for first in range(0, tokens, TILE):
        tile = slice(first, first + TILE)
        scores = torch.bmm(queries[:, tile], keys).mul_(trace.scale)
        maps[:, tile] = scores.sub_(shift[:, tile]).exp_()
    return maps
