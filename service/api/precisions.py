"""The vectors of an answer, each as the request wants it written; encode/precisions.py says how."""

import base64
from collections.abc import Iterator, Mapping
from typing import Literal, get_args

import numpy as np

from service.encode.answer import Array, Encoded
from service.encode.precisions import quantize

Precision = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
NUMBER_BYTES: Mapping[Precision, float] = {  # of a vector's number as it is written, in the mean
    "float": 12,
    "base64": 16 / 3,
    "int8": 3.1,
    "uint8": 4,
    "binary": 0.5,
    "ubinary": 0.5,
}


def pooled_vectors(encoded: Encoded) -> Iterator[Array]:
    """Yield the vector of each input, which was asked for."""
    for item in encoded.items:
        if item.pooled is None:
            raise RuntimeError("a vector that was asked for is missing: this is a bug")
        yield item.pooled


def to_precision(vector: Array, precision: Precision) -> Array | str:
    """Return a vector, (numbers,) float32 of length 1, as it is written.

    Returns:
        Base64 of its little-endian bytes; or an array: itself, or a smaller one.
    """
    match precision:
        case "float":
            return vector
        case "base64":
            return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").data).decode()
        case _:
            return quantize(vector, precision)
