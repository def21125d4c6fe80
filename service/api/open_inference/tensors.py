"""A tensor as the Open Inference Protocol carries it: elements in JSON, or bytes after it.

The bytes are little-endian and row-major, without padding; an element of BYTES is 4 bytes of
length and then itself. Source: Triton's extension_binary_data.md.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import orjson

from service.api.open_inference.request import InferInput
from service.encode.answer import Array, raw
from service.refusals import Refused
from service.wording.words import counted, received

DATATYPES: dict[str, np.dtype[Any]] = {
    "BOOL": np.dtype(np.uint8),  # of which only 0 and 1 are right, which the reader checks
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
}
# what an element is in JSON; FP16 has no form there
ELEMENTS: dict[str, set[type]] = {
    "BOOL": {bool},
    "INT32": {int},
    "INT64": {int},
    "FP32": {int, float},
    "BYTES": {str},
}
NAMES = {dtype: name for name, dtype in DATATYPES.items()}
LENGTH_BYTES = 4  # before an element of BYTES


def strings(tensor: InferInput, data: memoryview | None) -> list[str]:
    """The elements of a BYTES tensor as texts.

    Args:
        data: its bytes, where they come after the JSON.

    Raises:
        Refused: they are not what its shape says, or not UTF-8.
    """
    if data is None:
        return _elements(tensor)
    elements: list[memoryview] = []
    start = 0
    while start < len(data):
        end = start + LENGTH_BYTES
        start, size = end, int.from_bytes(data[start:end], "little")
        if end + size > len(data):
            detail = f"element {len(elements)} is said to be longer than the bytes that are left"
            raise Refused.at("payload_length_mismatch", tensor.name, detail=detail)
        elements.append(data[start : start + size])
        start += size
    if len(elements) != math.prod(tensor.shape):
        raise Refused.at("payload_length_mismatch", tensor.name, detail=_count(tensor, elements))
    try:
        return [str(text, "utf-8") for text in elements]
    except UnicodeDecodeError:
        raise Refused.at("invalid_text", tensor.name, detail="expected UTF-8") from None


def numbers(tensor: InferInput, data: memoryview | None) -> Array:
    """A tensor of numbers, in its shape; over the bytes where it came as such.

    Args:
        data: its bytes, where they come after the JSON.

    Raises:
        Refused: they are not what its shape and datatype say.
    """
    dtype = DATATYPES[tensor.datatype]
    if data is not None:
        size = math.prod(tensor.shape) * dtype.itemsize
        if len(data) != size:
            detail = f"expected {size:,} bytes, as shape and datatype say, received {len(data):,}"
            raise Refused.at("payload_length_mismatch", tensor.name, detail=detail)
        return np.frombuffer(data, dtype).reshape(tensor.shape)
    elements = _elements(tensor)
    try:
        with np.errstate(over="ignore"):  # what float32 cannot hold becomes inf, and is refused
            return np.array(elements, dtype).reshape(tensor.shape)
    except OverflowError:
        detail = f"a number is too large for {tensor.datatype}"
        raise Refused.at("out_of_range", tensor.name, detail=detail) from None


def _elements(tensor: InferInput) -> list[Any]:
    """The elements in JSON, nested as the shape says or flat, as one list."""
    flat = tensor.data or []
    for size in tensor.shape[1:]:
        if not all(isinstance(inner, list) and len(inner) == size for inner in flat):
            break  # flat all along, or of another shape
        flat = list(chain.from_iterable(flat))
    kinds, right = set(map(type, flat)), ELEMENTS.get(tensor.datatype, set()) | {list}
    if not kinds <= right:
        wrong = next(element for element in flat if type(element) not in right)
        detail = f"expected elements of {tensor.datatype}, received {received(wrong)}"
        detail += " (FP16 comes as bytes alone)" * (tensor.datatype == "FP16")
        raise Refused.at("invalid_type", tensor.name, detail=detail)
    if list in kinds or len(flat) != math.prod(tensor.shape):
        raise Refused.at("shape_mismatch", tensor.name, detail=_count(tensor, flat))
    return flat


def _count(tensor: InferInput, elements: Sequence[object]) -> str:
    """What a shape says, and how many elements there are."""
    product = math.prod(tensor.shape)
    return f"expected {counted(product, 'element')}, as the shape says, received {len(elements):,}"


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the answer, made piece by piece.

    Args:
        blocks: arrays that, end to end, are the tensor in row-major order.
        binary: whether it comes as bytes after the JSON.
    """

    name: str
    shape: Sequence[int]
    dtype: np.dtype[Any]
    blocks: Iterable[Array]
    binary: bool

    def json(self) -> Iterator[bytes]:
        """What the JSON says of it, in pieces: all, or all but the elements."""
        header: dict[str, Any] = {"name": self.name, "shape": self.shape}
        header["datatype"] = NAMES[self.dtype]
        if self.binary:
            header["parameters"] = {"binary_data_size": math.prod(self.shape) * self.dtype.itemsize}
            yield orjson.dumps(header)
            return
        yield orjson.dumps(header)[:-1] + b',"data":['
        for index, block in enumerate(self.blocks):
            flat = np.ascontiguousarray(block).reshape(-1)
            yield b"," if index else b""
            yield orjson.dumps(flat, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1]
        yield b"]}"

    def bytes(self) -> Iterator[bytes]:
        """What comes of it after the JSON, in pieces."""
        if self.binary:
            yield from chain.from_iterable(map(raw, self.blocks))
