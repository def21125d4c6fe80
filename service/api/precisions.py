"""Vectors of length 1 in fewer bytes.

    int8, uint8       one of 256 steps of one width, from -bound to bound; what lies beyond has
                      the first or the last; int8 is uint8 less 128
    binary, ubinary   a bit for each number, 1 above 0, eight in a byte, the first highest, the last
                      byte filled with 0; binary is ubinary less 128
    bound             8 / sqrt(numbers), eight times what they are by quadratic mean, at most 1

The bound follows from the number of numbers alone: no text's vector depends on others, and all
numbers have one scale: (int8 + 1) * 2 bound / 255 is the number but for its rounding. The
arithmetic is `quantize_embeddings` of sentence-transformers 5 with these ranges, bit for bit.
"""

import base64
import math
from collections.abc import Iterator
from typing import Literal, get_args

import numpy as np

from service.encode.answer import Array, Encoded

Precision = Literal["float", "base64", "int8", "uint8", "binary", "ubinary"]
PRECISIONS: tuple[Precision, ...] = get_args(Precision)
STEPS, MIDDLE = 255, 128
WIDEST = 8  # times the quadratic mean of a vector's numbers


def bound(numbers: int) -> float:
    """Return the end of the range of int8 and uint8."""
    return min(1.0, WIDEST / math.sqrt(numbers))


def vectors(encoded: Encoded) -> Iterator[Array]:
    """Yield the vector of each input, which was asked for."""
    for item in encoded.items:
        if item.pooled is None:
            raise RuntimeError("a vector that was asked for is missing: this is a bug")
        yield item.pooled


def written(vector: Array, precision: Precision) -> Array | str:
    """Return a vector, (numbers,) float32 of length 1, as it is written.

    Returns:
        Base64 of its little-endian bytes; or an array: itself, (numbers,) int8 or uint8, or
        (numbers / 8,) int8 or uint8.
    """
    match precision:
        case "float":
            return vector
        case "base64":
            return base64.b64encode(np.ascontiguousarray(vector, dtype="<f4").data).decode()
        case "int8" | "uint8":
            steps = _steps(vector)
            return steps.astype(np.uint8) if precision == "uint8" else _signed(steps)
        case "binary" | "ubinary":
            bits = np.packbits(vector > 0)
            return bits if precision == "ubinary" else _signed(bits)


def _steps(vector: Array) -> Array:
    """Return the step of each number, 0 to STEPS."""
    last = np.float32(bound(len(vector)))
    width = (last - -last) / np.float32(STEPS)
    steps: Array = np.clip(np.floor((vector - -last) / width), 0, STEPS)
    return steps


def _signed(steps: Array) -> Array:
    return (steps.astype(np.int16) - MIDDLE).astype(np.int8)
