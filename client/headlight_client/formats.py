"""Write and read JSON, and read safetensors."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]  # of any dtype

LENGTH_BYTES = 8  # at the start of a safetensors file: the length of its header
METADATA = "__metadata__"  # key of the header that is no array
DTYPES: dict[str, np.dtype[Any]] = {  # by safetensors' names
    "F32": np.dtype("<f4"),
    "F16": np.dtype("<f2"),
    "I32": np.dtype("<i4"),
    "I8": np.dtype("i1"),
    "U8": np.dtype("u1"),
}


def write_json(value: Any) -> bytes:
    """Write a value as JSON, with numpy's numbers and arrays as lists.

    Raises:
        TypeError: JSON cannot hold it.
    """
    try:
        return _ENCODER.encode(value).encode()
    except (ValueError, RecursionError) as error:  # NaN, half a character, a list inside itself
        raise TypeError(str(error)) from None


def read_json(body: bytes | str) -> Any:
    """Read JSON.

    Raises:
        ValueError: it is not JSON.
    """
    try:
        return json.loads(body)
    except RecursionError:
        raise ValueError("too deep") from None


def to_pair(ends: Iterable[int]) -> tuple[int, int]:
    """Return a JSON list of two numbers as a tuple."""
    first, last = ends
    return first, last


def read_safetensors(file: bytes) -> tuple[dict[str, Array], Mapping[str, str]]:
    """Read the arrays of a safetensors file by name, and its metadata.

    Source of the layout: safetensors' README, "Format".

    Raises:
        LookupError, OverflowError, TypeError, ValueError: it is no such file, or not the service's.
    """
    start = LENGTH_BYTES + int.from_bytes(file[:LENGTH_BYTES], "little")
    header, data = read_json(file[LENGTH_BYTES:start]), memoryview(file)[start:]
    metadata: Mapping[str, str] = header[METADATA]
    arrays = {name: _read_array(entry, data) for name, entry in header.items() if name != METADATA}
    if sum(array.nbytes for array in arrays.values()) != len(data):
        raise ValueError("the file is longer than its arrays")
    return arrays, metadata


def _read_array(entry: Mapping[str, Any], data: memoryview) -> Array:
    """Return a copy of a header entry's array, in this machine's byte order."""
    begin, end = entry["data_offsets"]
    dtype = DTYPES[entry["dtype"]]
    stored = np.frombuffer(data[begin:end], dtype).reshape(entry["shape"])
    return stored.astype(dtype.newbyteorder("="))


def _to_python(value: Any) -> Any:
    """Return a numpy number or array as a Python number or list."""
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    raise TypeError(f"{type(value)} cannot be written as JSON")


_ENCODER = json.JSONEncoder(
    ensure_ascii=False, allow_nan=False, separators=(",", ":"), default=_to_python
)
