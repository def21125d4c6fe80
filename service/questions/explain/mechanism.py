"""Attention without a model: a request's arrays, checked, priced and mixed.

    scores_i = Q_i K_i^T / sqrt(d / heads)            or as given
    probabilities_i = softmax(scores_i + bias)        0 where masked; or as given
    Z_i = probabilities_i V_i                         concat = Concat(Z_0, .., Z_(h-1))

In float64, like JSON's numbers: 0.6 V_1 + 0.4 V_2 has the digits that any client computes.
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from model.lessons import attention_probabilities, mix_values, score_keys
from service.pipeline.cost import DOUBLE
from service.questions.explain import ATTEND_ADAPTER, AttendRequest, MixRequest
from service.shapes.price import Layout, Part, Price
from service.tables.refusals import Refused
from service.tables.wording.words import count_noun, describe_value

Array = NDArray[np.float64]

SHARE_TOLERANCE = 1e-6  # how far the sum of a row of probabilities may be from 1


@dataclass(frozen=True, slots=True)
class Mixture:
    """A checked request of POST /v1/attend: values and the probabilities that mix them, float64.

    Args:
        value: (heads, key, d of the values).
        probabilities: computes them, ([heads,] query, key).
        price: memory that the answer takes.
        request_bytes: bytes of the request's arrays.
    """

    value: Tensor
    probabilities: Callable[[], Tensor]
    price: Price
    request_bytes: int


def read_mixture(body: bytes, most: int) -> Mixture:
    """Parse a request's body, and convert its arrays to a Mixture.

    Args:
        most: most bytes of the answer's arrays.

    Raises:
        ValidationError: it is no such request.
        Refused: the arrays do not fit each other, or the answer is too large.
    """
    request = ATTEND_ADAPTER.validate_json(body)
    value = _to_array(request.value, "value")
    if isinstance(request, AttendRequest):
        return _read_rows(request, value, most)
    return _read_scores(request, value, most)


def _read_rows(request: AttendRequest, value: Array, limit: int) -> Mixture:
    """Return the mixture of a request with queries, keys and values."""
    query, key = _to_array(request.query, "query"), _to_array(request.key, "key")
    if key.shape[1] != query.shape[1]:
        detail = f"expected rows of {query.shape[1]}, as query has, received rows of {key.shape[1]}"
        raise Refused.at("shape_mismatch", "key", detail=detail)
    if len(value) != len(key):
        detail = f"expected {count_noun(len(key), 'row')}, as key has, received {len(value)}"
        raise Refused.at("shape_mismatch", "value", detail=detail)
    pairs = (request.heads, len(query), len(key))
    price = _price_answer(pairs, value.shape[1], limit)
    keep, bias = (
        None if lists is None else _check_per_pair(_to_array(lists, name), name, pairs)
        for name, lists in (("mask", request.mask), ("bias", request.bias))
    )
    v, q, k = (_split_heads(rows, request.heads) for rows in (value, query, key))
    size = sum(tensor.nbytes for tensor in (v, q, k, keep, bias) if tensor is not None)
    return Mixture(
        v, lambda: attention_probabilities(score_keys(q, k), keep=keep, bias=bias), price, size
    )


def _read_scores(request: MixRequest, value: Array, limit: int) -> Mixture:
    """Return the mixture of a request with scores or probabilities, and values."""
    scores = _to_array(request.scores, "scores")
    heads = request.heads or (len(scores) if scores.ndim == 3 else 1)
    pairs = (heads, scores.shape[-2], len(value))
    price = _price_answer(pairs, value.shape[1], limit)
    rows = _check_per_pair(scores, "scores", pairs)
    if request.probabilities:
        within = scores.min() >= 0 and scores.max() <= 1 + SHARE_TOLERANCE
        if not within or np.abs(scores.sum(-1) - 1).max() > SHARE_TOLERANCE:
            detail = "expected shares from 0 to 1 that sum to 1 in every row"
            raise Refused.at("out_of_range", "scores", detail=detail)
    # neither refers to the request, whose lists would stay in memory with the arrays
    probabilities = (
        (lambda: rows) if request.probabilities else partial(attention_probabilities, rows)
    )
    return Mixture(_split_heads(value, heads), probabilities, price, value.nbytes + scores.nbytes)


def _to_array(lists: Any, name: str) -> NDArray[Any]:
    """Convert nested lists of a field to an array; refuse rows of several lengths or none."""
    try:
        array = np.array(lists)
    except ValueError:  # rows of different lengths
        detail = "expected rows of one length, received rows of several"
        raise Refused.at("shape_mismatch", name, detail=detail) from None
    if array.size == 0:
        raise Refused.at(
            "sequence_empty", name, detail=f"received {describe_value(lists)} without numbers"
        )
    return array


def _check_per_pair(array: NDArray[Any], name: str, pairs: tuple[int, int, int]) -> Tensor:
    """Return a field's array as a tensor; refuse another shape than (query, key) or `pairs`."""
    if array.shape not in (pairs, pairs[1:]):
        detail = f"expected the shape {pairs[1:]} or {pairs}, received {array.shape}"
        raise Refused.at("shape_mismatch", name, detail=detail)
    return torch.from_numpy(array)


def _split_heads(rows: Array, heads: int) -> Tensor:
    """Split (tokens, width) into (heads, tokens, width / heads)."""
    if rows.shape[1] % heads:
        detail = f"expected a number that divides the width, which is {rows.shape[1]}"
        raise Refused.at("shape_mismatch", "heads", detail=detail)
    return torch.unflatten(torch.from_numpy(rows), 1, (heads, -1)).transpose(0, 1)


def _price_answer(pairs: tuple[int, int, int], width: int, limit: int) -> Price:
    """Return the bytes of memory of the answer; refuse more than `limit` bytes of arrays.

    Args:
        pairs: numbers of heads, queries and keys.
        width: of a value, all heads together.
    """
    heads, queries, keys = pairs
    query_bytes = DOUBLE * (heads * keys + 2 * width)  # of one; the mixed values come twice
    maps = DOUBLE * queries * heads * keys

    sizes: dict[Part, int] = {"attention": maps, "steps": queries * query_bytes - maps}
    price = Price(sizes, Layout())
    price.check(limit, limit)
    return price


def mixed_arrays(mixture: Mixture) -> dict[str, Array]:
    """Compute the answer's arrays by name, float64.

    Returns:
        probabilities, (heads, query, key), heads, (heads, query, d of the values): Z_0 .. Z_(h-1),
        and concat, (query, heads * d of the values).

    Raises:
        Refused: the numbers are so large that a score or a mix of values is not finite.
    """
    torch.set_num_threads(1)  # in this thread, so that it opens no OpenMP region; see lanes.py
    shares = mixture.probabilities()
    probabilities = shares.expand(len(mixture.value), *shares.shape[-2:])
    heads = mix_values(probabilities, mixture.value)
    arrays = {
        "probabilities": probabilities.numpy(),
        "heads": heads.numpy(),
        "concat": heads.transpose(0, 1).flatten(1).numpy(),
    }
    if not all(np.isfinite(array).all() for array in arrays.values()):
        detail = "the numbers are so large that what is made of them is not finite"
        raise Refused("out_of_range", detail=detail)
    return arrays
