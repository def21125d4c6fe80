"""q, k and the softmax normaliser -> the attention maps asked for.

The forward pass never holds a (query, key) matrix. It leaves queries, keys and the log of each
softmax row's sum; from these any map follows exactly, for the named heads only:

    P = exp(scale q k^T - normaliser)
"""

from collections.abc import Sequence as Many

import torch
from torch import Tensor

from model.attention import Trace, hidden, near


def full(trace: Trace, rows: slice, heads: Many[int]) -> Tensor:
    """The attention probabilities of one sequence in one layer.

    Args:
        rows: the sequence's rows in its batch.
        heads: which heads, counted from 0.

    Returns:
        (heads asked, query, key) float32; each row sums to 1 over key.
    """
    chosen = list(heads)
    queries, keys = (part[rows].transpose(0, 1)[chosen].float() for part in (trace.q, trace.k))
    shift = trace.normaliser(rows)[chosen].unsqueeze(-1)
    tokens = rows.stop - rows.start
    bias, attention = trace.biases.get(tokens), trace.attention
    maps = torch.zeros(len(heads), tokens, tokens, device=queries.device)
    for query, key in near(tokens, attention.window):
        scores = torch.bmm(queries[:, query], keys[:, key].transpose(1, 2)).mul_(attention.scale)
        if bias is not None:
            scores += bias[chosen][:, query, key]
        if attention.window is not None:
            scores += hidden(query, key, attention.window, scores)
        maps[:, query, key] = scores.sub_(shift[:, query]).exp_()
    return maps
