"""JSON and safetensors as the client writes and reads them."""

import json
from typing import Any

import numpy as np
import pytest
from safetensors import numpy as safetensors

from headlight_client.formats import read_json, read_safetensors, write_json

FILE = safetensors.save(
    {
        "vectors": np.linspace(-1, 1, 15, dtype=np.float32).reshape(3, 5),
        "halves": np.linspace(-7, 7, 22, dtype=np.float16).reshape(2, 11),
        "keys": np.arange(7, dtype=np.int32),
        "none": np.zeros((0, 13), np.float32),
    },
    {"headlight": '{"model": "m"}'},
)


def test_arrays_are_those_that_the_formats_own_reader_finds() -> None:
    """Number by number, in memory of their own that may be written to."""
    arrays, metadata = read_safetensors(FILE)

    expected = safetensors.load(FILE)
    assert arrays.keys() == expected.keys() and metadata == {"headlight": '{"model": "m"}'}
    for name, array in arrays.items():
        np.testing.assert_array_equal(array, expected[name], strict=True)
        assert array.flags.owndata and array.flags.writeable and array.dtype.isnative


def headed(header: Any, data: bytes = b"") -> bytes:
    """A file of a header and data."""
    text = json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def one(**changed: Any) -> bytes:
    """A file of one array of two numbers, described wrongly."""
    entry = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8], **changed}
    return headed({"__metadata__": {}, "a": entry}, bytes(8))


@pytest.mark.parametrize(
    "file",
    [
        b"",
        b"<html>hello</html>",
        FILE[:-1],
        FILE + b"0",
        headed([]),
        headed("a"),
        headed({}),
        one(dtype="F64"),
        one(shape=[3]),
        one(shape=[10**30]),
        one(data_offsets=[0, 4]),
        one(data_offsets=[0]),
        (100_000).to_bytes(8, "little") + b"[" * 100_000,
    ],
)
def test_what_is_no_such_file_is_refused(file: bytes) -> None:
    """By errors that its reader knows."""
    with pytest.raises((LookupError, OverflowError, TypeError, ValueError)):
        read_safetensors(file)


def test_json_comes_back_as_it_went() -> None:
    """Every character, every float to its last bit, numpy's numbers as Python's."""
    rows = [np.int64(3), np.float32(0.5), np.bool_(True), np.arange(6).reshape(2, 3)[:, ::2]]
    value = {"text": 'a "b" \n \u2028 \U0001f600 \x00', "float": 0.1 + 0.2, "rows": rows}

    written = write_json(value)

    assert read_json(written) == {**value, "rows": [3, 0.5, True, [[0, 2], [3, 5]]]}
    assert "\U0001f600".encode() in written and b": " not in written


CIRCLE: list[Any] = []
CIRCLE.append(CIRCLE)


@pytest.mark.parametrize(
    "value",
    [float("nan"), np.array([np.inf]), "\ud800", {"a": {1}}, CIRCLE, object()],
    ids=["NaN", "infinity", "half a character", "a set", "a circle", "an object"],
)
def test_what_json_cannot_hold_is_refused(value: Any) -> None:
    """Nothing becomes null."""
    with pytest.raises(TypeError):
        write_json(value)
