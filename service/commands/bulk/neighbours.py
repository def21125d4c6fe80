"""Which vectors are nearest to each other, and how alike pairs of them are: float64, in blocks.

    likeness(i, j)   the cosine of vectors i and j
    neighbours(i)    the k others that are most alike i; exact, every likeness is computed
    spearman         Pearson's correlation of ranks, equal values at the mean of their ranks

Memory does not grow with the width, and grows with ROWS x texts: of 50,000 texts about 150 MB.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

ROWS = 128  # whose likenesses to all texts are held at once
BLOCK_BYTES = 16 * 1024 * 1024  # of vectors in float64
MOST_PAIRS = 1_000_000  # where there are more, as many are drawn
SEED = 0  # of drawing them

Floats = NDArray[np.float64]
Places = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Rows:
    """Some rows of an array that may be on the disk.

    Args:
        array: (rows, width) of floats.
        places: which of them, (texts,).
    """

    array: NDArray[Any]
    places: Places

    def __len__(self) -> int:
        return len(self.places)

    @property
    def block(self) -> int:
        """Count the texts of a block."""
        width: int = self.array.shape[1]
        return max(1, BLOCK_BYTES // (8 * width))

    def unit(self, among: slice | Places) -> Floats:
        """Return vectors of some texts at length 1, (some, width); those of length 0 stay so."""
        rows = self.array[self.places[among]].astype(np.float64)
        lengths = np.linalg.norm(rows, axis=1, keepdims=True)
        unit: Floats = rows / lengths.clip(min=np.finfo(np.float64).tiny)
        return unit


def nearest(rows: Rows, k: int, told: Callable[[int, int], None]) -> Places:
    """Find the k nearest others of every text, (texts, k), the nearest first.

    Args:
        told: called with the texts so far and all of them.
    """
    count = len(rows)
    found = np.empty((count, k), np.intp)
    buffer = np.empty((min(ROWS, count), count))
    for start in range(0, count, ROWS):
        some = rows.unit(slice(start, start + ROWS))
        likeness = buffer[: len(some)]  # (some, texts)
        for at in range(0, count, rows.block):
            columns = slice(at, at + rows.block)
            likeness[:, columns] = some @ rows.unit(columns).T
        own = np.arange(len(some))
        likeness[own, start + own] = -np.inf
        best = np.argpartition(likeness, count - k, axis=1)[:, count - k :]
        values = np.take_along_axis(likeness, best, axis=1)
        order = np.lexsort((best, -values), axis=1)
        found[start : start + len(some)] = np.take_along_axis(best, order, axis=1)
        told(start + len(some), count)
    return found


def shared(one: Places, other: Places) -> NDArray[np.int64]:
    """Count the neighbours that each text has in both, (texts,), of (texts, k) twice."""
    both: NDArray[np.int64] = np.zeros(len(one), np.int64)
    for column in other.T:
        both += (one == column[:, None]).any(axis=1)
    return both


def pairs(count: int) -> tuple[Places, Places]:
    """Return every pair of texts, (pairs,) twice; of more than MOST_PAIRS as many, drawn."""
    if count * (count - 1) // 2 <= MOST_PAIRS:
        left, right = np.triu_indices(count, 1)
        return left, right
    draw = np.random.default_rng(SEED)
    left = draw.integers(count, size=MOST_PAIRS)
    return left, (left + draw.integers(1, count, size=MOST_PAIRS)) % count


def likenesses(rows: Rows, left: Places, right: Places) -> Floats:
    """Return the likeness of each pair, (pairs,)."""
    found = np.empty(len(left))
    for start in range(0, len(left), rows.block):
        some = slice(start, start + rows.block)
        np.einsum("pw,pw->p", rows.unit(left[some]), rows.unit(right[some]), out=found[some])
    return found


def spearman(one: Floats, other: Floats) -> float | None:
    """Correlate the ranks of two lists, (pairs,) twice; None where all of one are equal."""
    ranks = [_ranks(values) for values in (one, other)]
    centred = [each - each.mean() for each in ranks]
    left, right = (float(each @ each) for each in centred)
    if not left or not right:
        return None
    return float(centred[0] @ centred[1]) / math.sqrt(left * right)


def _ranks(values: Floats) -> Floats:
    """Rank from 1, equal values at the mean of their ranks."""
    _, which, counts = np.unique(values, return_inverse=True, return_counts=True)
    last = np.cumsum(counts)
    means: Floats = last - (counts - 1) / 2
    return means[which]
