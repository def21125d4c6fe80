"""Scores to which distance adds by content: disentangled attention.

    score_ij = (q_i k_j + q_i K_d + Q_d k_j) / sqrt(terms head_dim)     d the row of distance i - j

K and Q are what a layer's projections make of one learned table of distances, and do not change
with the text. A distance up to a quarter of the table's rows has its own; further ones share rows
by logarithm. One of the two terms may be absent; `terms` counts those that are there.

Sources: He et al. 2020, "DeBERTa", section 3.1; He et al. 2021, "DeBERTaV3". The rows are
transformers' own, operation for operation: distance 511 of 512 lies on the edge between two.
"""

import torch
from torch import Tensor
from torch.nn import functional as F

from model.config import Relative
from model.kernels import Affine
from model.steady import without_idle_threads

ALL_HEADS = slice(None)  # an index along the axis of heads
MOST_CELLS = 512 * 512  # most scores of one head that are computed at a time


def distance_rows(relative: Relative, tokens: int) -> Tensor:
    """Return the table's row of each key - query from 1 - tokens on, (2 tokens - 1,) int64."""
    distance = torch.arange(tokens - 1, -tokens, -1)  # query - key
    if relative.furthest is not None:
        half = relative.reach // 2
        log_range = torch.tensor((relative.furthest - 1) / half).log()
        share = (distance.abs().clamp_min(half) / half).log() / log_range
        far = (share * (half - 1)).ceil().long() + half
        distance = torch.where(distance.abs() <= half, distance, far * distance.sign())
    return (distance + relative.reach).clamp(0, 2 * relative.reach - 1)


def project_table(table: Tensor, linear: Affine, heads: int, scale: float) -> Tensor:
    """Project a table for each head and scale it, (heads, rows, head_dim).

    Args:
        table: (rows, width) float32.
        linear: the projection, whose dtype the result has.
        scale: factor of the projected numbers.
    """
    weight, bias = linear
    projected = F.linear(table, weight.float(), None if bias is None else bias.float()) * scale
    return projected.view(len(table), heads, -1).transpose(0, 1).to(weight.dtype).contiguous()


class DistanceBias:
    """The score bias of disentangled attention in one layer.

    Args:
        keys: K, scaled, (heads, rows, head_dim), or None without that term.
        queries: Q, likewise; at least one of the two is given.
        rows: of `distance_rows` for the longest sequence; on the host.
    """

    by_content = True  # the bias follows from the text: each sequence has its own

    def __init__(self, keys: Tensor | None, queries: Tensor | None, rows: Tensor) -> None:
        self.keys, self.queries = keys, queries
        tables = [table for table in (keys, queries) if table is not None]
        self.terms, self._rows = len(tables), rows.to(tables[0].device)
        self._row_list: list[int] = rows.tolist()  # on the host, for the ends of a slice

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
            q, k: of all its tokens and all heads, (heads, tokens, head_dim).
            queries, keys: which tokens.
            heads: which heads; all by default.
        """
        q, k = q[heads][:, queries], k[heads]
        tokens, middle = k.shape[1], len(self._rows) // 2
        # the rows that so many tokens read; later keys are at smaller distances
        first, last = self._row_list[middle + tokens - 1], self._row_list[middle + 1 - tokens]
        # a row of this view is a token's distances to all keys, the last token's first
        views = self._rows.unfold(0, middle + 1, 1)[:, keys]
        place = middle - torch.arange(tokens, device=q.device)[queries]
        index = views[place].sub_(first)  # (queries, keys)
        added = None
        if self.keys is not None:
            table = self.keys[heads, first : last + 1].to(q.dtype)
            line = torch.arange(len(index), device=q.device)[:, None]
            with without_idle_threads(len(q)):
                products = q @ table.mT
            added = _gather_cells(products, line * table.shape[1] + index)
        if self.queries is not None:
            table, k = self.queries[heads, first : last + 1].to(q.dtype), k[:, keys]
            column = torch.arange(k.shape[1], device=q.device)
            with without_idle_threads(len(k)):
                products = table @ k.mT
            by_key = _gather_cells(products, index * k.shape[1] + column)
            added = by_key if added is None else added.add_(by_key)
        if added is None:
            raise RuntimeError("distances without a term: this is a bug")
        return added


def _gather_cells(products: Tensor, places: Tensor) -> Tensor:
    """Pick some cells of each head's products, (heads, queries, keys).

    A gather along one axis takes two to three times as long.

    Args:
        products: (heads, rows, columns).
        places: flat indices, row * columns + column, (queries, keys).
    """
    chosen = products.flatten(1).index_select(1, places.flatten())
    return chosen.view(len(products), *places.shape)


def queries_per_pass(tokens: int) -> int:
    """Return how many queries of a sequence of this length are computed at a time."""
    return max(1, min(tokens, MOST_CELLS // tokens))
