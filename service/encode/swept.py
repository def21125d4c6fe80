"""What a sweep says of its heads: how vectors, logits and scores differ without each."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from service.encode.interventions import Heads
from service.engine.work import Array, Result


def moved(heads: Heads, whole: Result, copies: Sequence[Result]) -> dict[str, Any]:
    """Return what POST /v1/encode answers of one input, keyed by layer, then head.

    cosine  of the vector with the head scaled and the untouched one
    logits  each class's with the head scaled, less the untouched one
    """
    told: dict[str, Any] = {}
    if whole.pooled is not None:
        vectors = _vectors(copies)
        untouched = np.broadcast_to(whole.pooled.astype(np.float64), vectors.shape)
        told["cosine"] = by_head(heads, _cosines(vectors, untouched).tolist())
    if "logits" in whole.task:
        logits = np.stack([copy.task["logits"] for copy in copies]).astype(np.float64)
        told["logits"] = by_head(heads, (logits - whole.task["logits"]).tolist())
    return told


def changed(
    heads: Heads,
    left: Result,
    right: Result,
    left_copies: Sequence[Result],
    right_copies: Sequence[Result],
) -> dict[str, Any]:
    """Return what POST /v1/similarity answers of one text on the right.

    change  of the score, when the head is scaled in both texts
    """
    score = _cosines(_vectors([left]), _vectors([right]))
    scores = _cosines(_vectors(left_copies), _vectors(right_copies))
    return {"change": by_head(heads, (scores - score).tolist())}


def by_head(heads: Heads, numbers: Sequence[Any]) -> dict[str, dict[str, Any]]:
    """Return numbers in the order of heads, keyed by layer, then head."""
    rest = iter(numbers)
    return {
        str(layer): {str(head): next(rest) for head in of_layer}
        for layer, of_layer in heads.items()
    }


def _vectors(copies: Sequence[Result]) -> Array:
    """Return the pooled vectors of copies, (copies, width) float64."""
    return np.stack([copy.pooled for copy in copies if copy.pooled is not None]).astype(np.float64)


def _cosines(one: Array, other: Array) -> Array:
    """Return the cosines of the rows of two matrices, (rows,); 0 where one has no length."""
    lengths = np.linalg.norm(one, axis=1) * np.linalg.norm(other, axis=1)
    products = (one * other).sum(axis=1)
    cosines: Array = np.divide(products, lengths, out=np.zeros_like(lengths), where=lengths > 0)
    return cosines
