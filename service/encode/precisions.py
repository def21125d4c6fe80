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

import math

import numpy as np

from service.encode.answer import Array
from service.outputs import SmallPrecision

INT8_STEPS, INT8_MIDDLE = 255, 128
WIDEST_RANGE = 8  # times the quadratic mean of a vector's numbers


def range_end(numbers: int) -> float:
    """Return the end of the range of int8 and uint8."""
    return min(1.0, WIDEST_RANGE / math.sqrt(numbers))


def quantize(vectors: Array, precision: SmallPrecision) -> Array:
    """Return vectors, (.., numbers) float32 of length 1, as int8 or uint8.

    Returns:
        (.., numbers), or of bits (.., numbers / 8), rounded up.
    """
    match precision:
        case "int8" | "uint8":
            steps = _to_steps(vectors)
            return steps.astype(np.uint8) if precision == "uint8" else _to_signed(steps)
        case "binary" | "ubinary":
            bits = np.packbits(vectors > 0, axis=-1)
            return bits if precision == "ubinary" else _to_signed(bits)


def _to_steps(vectors: Array) -> Array:
    """Quantize each number to one of the steps 0 to INT8_STEPS."""
    last = np.float32(range_end(vectors.shape[-1]))
    width = (last - -last) / np.float32(INT8_STEPS)
    steps: Array = np.clip(np.floor((vectors - -last) / width), 0, INT8_STEPS)
    return steps


def _to_signed(steps: Array) -> Array:
    return (steps.astype(np.int16) - INT8_MIDDLE).astype(np.int8)
