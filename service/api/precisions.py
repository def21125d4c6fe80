"""The vectors of an answer in the precision of the request; see pipeline/write/precisions.py."""

import base64
from collections.abc import Iterator, Mapping
from typing import Literal

import numpy as np

from service.pipeline.write.precisions import quantize
from service.shapes.answer import Answer, Array

# How other APIs' requests have vectors written
Precision = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
NUMBER_BYTES: Mapping[Precision, float] = {  # bytes of JSON for a number of a vector, on average
    "float": 12,
    "base64": 16 / 3,
    "int8": 3.1,
    "uint8": 4,
    "binary": 0.5,
    "ubinary": 0.5,
}


def pooled_vectors(encoded: Answer) -> Iterator[Array]:
    """Yield the pooled vector of each input."""
    for item in encoded.items:
        if item.pooled is None:
            raise RuntimeError("a vector that was asked for is missing: this is a bug")
        yield item.pooled


def to_precision(vector: Array, precision: Precision) -> Array | str:
    """Convert a vector, (numbers,) float32 of length 1, to a precision.

    Returns:
        "float": the vector; "base64": a string, of its little-endian bytes; else an array of
        whole numbers.
    """
    match precision:
        case "float":
            return vector
        case "base64":
            return to_base64(vector.astype("<f4", copy=False))
        case _:
            return quantize(vector, precision)


def to_base64(vector: Array) -> str:
    """Return the bytes of a vector's numbers as base64."""
    return base64.b64encode(np.ascontiguousarray(vector).data).decode()
