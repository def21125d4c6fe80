"""How alike two models find the same texts, whose vectors may differ in size.

    likeness      of two texts under a model: the cosine of their vectors, 0 where one has no length
    correlation   Pearson's, over all pairs of texts, of their likenesses under the two models
    overlap       of a text's NEAREST most alike, the share that both models name; the texts' mean

All is float64; likenesses that differ by less than its rounding are equal. By chance the overlap of
n texts is NEAREST / (n - 1).
"""

from collections.abc import Hashable, Iterable
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]

MOST_TEXTS = 128  # so that a scrape waits a few milliseconds for both numbers
FEWEST = 32  # texts of which both are told; with fewer the overlap is high by chance
NEAREST = 10
DIGITS = 12  # of a likeness: what float64 leaves of a sum of thousands of products
EQUAL = 10.0 ** (1 - DIGITS)  # likenesses that spread no further do not tell pairs apart


class Pair(NamedTuple):
    """A text's vectors under either model, (width,) float32, of two widths."""

    own: Array
    other: Array


class Likened(NamedTuple):
    """The two numbers; None where there are too few texts, or a model finds all equally alike."""

    correlation: float | None = None
    overlap: float | None = None


class Window:
    """The last texts that both models have encoded, none of them twice."""

    def __init__(self) -> None:
        self._of: Hashable = ()
        self._pairs, self._told = dict[int, Pair](), Likened()
        self._stale = False

    def __len__(self) -> int:
        return len(self._pairs)

    def add(self, of: Hashable, texts: Iterable[tuple[str, Pair]]) -> None:
        """Take in texts; the oldest leave.

        Args:
            of: the other model and its width. Another than before empties the window.
        """
        if of != self._of:
            self._pairs.clear()
            self._of = of
        for text, pair in texts:
            self._pairs.pop(hash(text), None)
            self._pairs[hash(text)] = pair
            if len(self._pairs) > MOST_TEXTS:
                del self._pairs[next(iter(self._pairs))]
        self._stale = True

    def likened(self) -> Likened:
        """Return the two numbers of the texts that are in it."""
        if self._stale:
            self._stale = False
            self._told = liken(self._pairs.values())
        return self._told


def liken(pairs: Iterable[Pair]) -> Likened:
    """Return how alike two models find some texts."""
    texts = list(pairs)
    if len(texts) < FEWEST:
        return Likened()
    own, other = _likeness([t.own for t in texts]), _likeness([t.other for t in texts])
    above = np.triu_indices(len(texts), 1)
    return Likened(_correlation(own[above], other[above]), _overlap(own, other))


def _likeness(vectors: list[Array]) -> Array:
    """Return the likeness of all pairs, (texts, texts)."""
    rows = np.stack(vectors).astype(np.float64)
    lengths = np.linalg.norm(rows, axis=1, keepdims=True)
    rows = np.divide(rows, lengths, out=np.zeros_like(rows), where=lengths > 0)
    likeness: Array = np.round(rows @ rows.T, DIGITS)
    return likeness


def _correlation(one: Array, other: Array) -> float | None:
    if min(np.ptp(one), np.ptp(other)) <= EQUAL:
        return None
    one, other = one - one.mean(), other - other.mean()
    one, other = one / np.linalg.norm(one), other / np.linalg.norm(other)
    return min(1.0, max(-1.0, float(one @ other)))


def _overlap(one: Array, other: Array) -> float:
    """Return the mean share of the nearest that both name; of equal ones the older is nearer."""
    shared = [
        len({*mine} & {*theirs})
        for mine, theirs in zip(_nearest(one), _nearest(other), strict=True)
    ]
    return sum(shared) / (NEAREST * len(shared))


def _nearest(likeness: Array) -> list[list[int]]:
    apart = -likeness
    np.fill_diagonal(apart, np.inf)  # none is its own neighbour
    nearest: list[list[int]] = np.argsort(apart, axis=1, kind="stable")[:, :NEAREST].tolist()
    return nearest
