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
    q, k, normaliser = trace.sequence(rows)
    chosen = list(heads)
    queries, keys, shift = q[chosen].float(), k[chosen].float(), normaliser[chosen].unsqueeze(-1)
    tokens = q.shape[1]
    bias = trace.biases.get(tokens)
    maps = torch.zeros(len(heads), tokens, tokens, device=q.device)
    for query, key in near(tokens, trace.window):
        scores = torch.bmm(queries[:, query], keys[:, key].transpose(1, 2)).mul_(trace.scale)
        if bias is not None:
            scores += bias[chosen][:, query, key]
        if trace.window is not None:
            scores += hidden(query, key, trace.window, scores)
        maps[:, query, key] = scores.sub_(shift[:, query]).exp_()
    return maps
