"""Statistics of attention by the compiled operator, whose twin is the walk of model/maps/.

They differ in their last digits, by at most NEAR: the operator adds up in another order.
"""

from collections.abc import Iterator
from collections.abc import Sequence as Many
from typing import Any

import torch
from torch import Tensor

from model import packing
from model.attention import Trace
from model.encoder import Encoder
from model.maps import statistics as walk
from model.maps.statistics import Statistics
from model.maps.tiles import Look

NEAR = 1e-5  # the largest difference, absolute or of the number itself
LENGTHS = (1, 2, 17, 64, 150)  # tokens: one, a pair, more than a block, a panel, several panels


class Compiled:
    """The operator's statistics, called as maps.statistics.Statistics says.

    Args:
        operator: what library.statistics gives.
    """

    def __init__(self, operator: Any) -> None:
        self._table = operator().table

    def __call__(
        self,
        traces: Many[Trace],
        rows: slice,
        heads: Many[Many[int]],
        cls: int | None,
        separators: Many[int],
    ) -> Tensor:
        """Return FIELDS of every head of every layer, (heads, fields)."""
        parts = [part for trace in traces for part in _parts(trace, rows)]
        sides = (side for trace in traces for side in trace.attention.reach)
        reaches = [-1 if side is None else side for side in sides]
        asked = [n for layer, some in enumerate(heads) for head in some for n in (layer, head)]
        apart, first = sorted(set(separators)), -1 if cls is None else cls
        table: Tensor = self._table(parts, reaches, asked, traces[0].attention.scale, first, apart)
        return table


def _parts(trace: Trace, rows: slice) -> Iterator[Tensor]:
    """Yield what the operator reads of a layer, in its order."""
    bias = trace.bias(rows)
    yield from (trace.q[rows], trace.k[rows], trace.normaliser(rows))
    yield trace.q.new_empty(0) if bias is None else bias
    yield from (trace.z[rows], trace.attention.triangles)


def agrees(encoder: Encoder, compiled: Statistics) -> bool:
    """Tell whether operator and walk give the same statistics but for NEAR, at several lengths."""
    random, config = torch.Generator().manual_seed(0), encoder.config
    lengths = sorted({min(length, config.max_tokens) for length in LENGTHS})
    ids = [torch.randint(config.vocabulary, (n,), generator=random).tolist() for n in lengths]
    packed = encoder.pack([packing.Sequence(each) for each in ids])
    traces = encoder.loop(packed, frozenset(), frozenset(range(config.layers))).traces
    return all(
        _agree(compiled, list(traces.values()), packed.rows(place), length - 1)
        for place, length in enumerate(lengths)
    )


def _agree(compiled: Statistics, traces: Many[Trace], rows: slice, last: int) -> bool:
    """Compare all heads of one sequence, whose last token separates."""
    heads = [range(trace.attention.heads) for trace in traces]
    looks = [Look(trace, rows, some) for trace, some in zip(traces, heads, strict=True)]
    expected = walk.statistics(looks, traces, rows, 0, [last])
    found = compiled(traces, rows, heads, 0, [last])
    return torch.allclose(found, expected, rtol=NEAR, atol=NEAR, equal_nan=True)
