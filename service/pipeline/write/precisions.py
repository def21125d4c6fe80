"""Quantizes vectors of length 1 to 8 bits or 1 bit per number.

    int8, uint8       one of 256 equal steps from -bound to bound; a number beyond gets the first
                      or the last; int8 is uint8 less 128
    binary, ubinary   a bit for each number, 1 above 0, eight in a byte, the first highest, the last
                      byte filled with 0; binary is ubinary less 128
    bound             8 / sqrt(numbers), eight times their quadratic mean, at most 1

The bound depends on the number of numbers alone: no text's vector depends on others, and all
numbers have one scale: (int8 + 1) * 2 bound / 255 is the number but for its rounding. The
arithmetic is `quantize_embeddings` of sentence-transformers 5 with these ranges, bit for bit.
"""

import math

import numpy as np

from service.shapes.answer import Array
from service.shapes.outputs import SmallPrecision

INT8_STEPS, INT8_MIDDLE = 255, 128  # the last step, and the one that is 0 as int8
WIDEST_RANGE = 8  # the bound, as a multiple of the quadratic mean of a vector's numbers


def range_end(numbers: int) -> float:
    """Return the bound of int8 and uint8 for vectors of this many numbers."""
    return min(1.0, WIDEST_RANGE / math.sqrt(numbers))


def quantize(vectors: Array, precision: SmallPrecision) -> Array:
    """Quantize float32 vectors of length 1, (.., numbers), to int8 or uint8.

    Returns:
        (.., numbers); for bits (.., numbers / 8), rounded up.
    """
    match precision:
        case "int8" | "uint8":
            steps = _to_steps(vectors)
            return steps.astype(np.uint8) if precision == "uint8" else _to_signed(steps)
        case "binary" | "ubinary":
            bits = np.packbits(vectors > 0, axis=-1)
            return bits if precision == "ubinary" else _to_signed(bits)


def _to_steps(vectors: Array) -> Array:
    """Return the step of each number, 0 to INT8_STEPS."""
    last = np.float32(range_end(vectors.shape[-1]))
    width = (last - -last) / np.float32(INT8_STEPS)
    steps: Array = np.clip(np.floor((vectors - -last) / width), 0, INT8_STEPS)
    return steps


def _to_signed(steps: Array) -> Array:
    """Return bytes less 128, as int8."""
    return (steps.astype(np.int16) - INT8_MIDDLE).astype(np.int8)
