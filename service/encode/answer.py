"""Arrays -> JSON, base64, safetensors.

An answer is made in pieces of at most about PIECE_BYTES of array, so that other requests get a
turn between them; a small one is written at once.
"""

import asyncio
import base64
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import orjson
from numpy.typing import NDArray

from service.encode.shown import Shown
from service.engine.fair.rotation import FairLock

if TYPE_CHECKING:  # the chart is rendered where there is no torch
    from service.engine.work import Result

JSON, SAFETENSORS = "application/json", "application/vnd.safetensors"
OCTETS = "application/octet-stream"
INFERENCE_HEADER = "inference-header-content-length"  # bytes of JSON before those of arrays
PIECE_ROWS = 2048  # of records, a millisecond
PIECE_BYTES = 64 * 1024  # as numbers some 200 KiB, half a millisecond
PIECE_LEAST = 256  # that take no longer to make than a smaller piece
TOLD_BYTES = 64  # of what is said of a token, without its arrays
BASE64_BYTES = 3 * 16 * 1024  # of array in a piece of base64: whole threes, and whole numbers
METADATA = "headlight"  # where a safetensors answer holds its JSON

SAFETENSORS_TYPES = {
    "float32": "F32",
    "float16": "F16",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}

Array = NDArray[Any]


class NotFinite(Exception):
    """A number is too large for the dtype asked for."""


@dataclass(frozen=True, slots=True)
class Identity:
    """Of the model that made an answer; equal ones give equal bits to equal inputs."""

    model: str
    weights: str
    numerics: str

    def adapted(self, name: str, digest: str, numerics: str) -> "Identity":
        """Return that of the model with an adapter, of which `digest` tells all."""
        return replace(self, model=f"{self.model}:{name}", weights=digest, numerics=numerics)

    def preamble(self, dtype: str) -> dict[str, str]:
        """Return what every answer says of it."""
        return {
            "model": self.model,
            "weights": self.weights,
            "dtype": dtype,
            "numerics": self.numerics,
        }


@dataclass(frozen=True, slots=True)
class Item:
    """What is answered for one sequence.

    Args:
        tokens_run: tokens the model ran.
        facts: its tokens, length and so on, as they go into JSON.
        pooled: (width,) or None.
        tokens: (tokens, width) or None.
        layers: (tokens, width) by hidden state.
        attention: what it says of itself, as it goes into JSON; None where none was asked for.
        maps: its arrays as JSON nests them, and arrays: as safetensors names them.
        tasks: what the checkpoint's task heads made of it.
        parts: (spans, width), of the spans that the facts name.
    """

    tokens_run: int
    facts: Mapping[str, Any]
    pooled: Array | None = None
    tokens: Array | None = None
    layers: Mapping[int, Array] = field(default_factory=dict)
    attention: Mapping[str, Any] | None = None
    maps: Mapping[str, Any] = field(default_factory=dict)
    arrays: Mapping[str, Array] = field(default_factory=dict)
    tasks: Sequence[Shown] = ()
    parts: Array | None = None


@dataclass(frozen=True, slots=True)
class Encoded:
    """An answered request, to be written in some dialect.

    Args:
        preamble: what every answer says of the model.
        items: one for each input, each made when the answer has come so far, once.
        usage: what the request took: tokens and more; and how many inputs were cut, if some were.
        results: what the items are made of.
    """

    preamble: Mapping[str, Any]
    items: Iterable[Item]
    usage: Mapping[str, Any]
    results: "Sequence[Result]" = ()

    @property
    def small(self) -> bool:
        """Return whether it takes no longer to write than a piece of another answer."""
        usage = self.usage
        return bool(usage["answer_bytes"] + TOLD_BYTES * usage["tokens"] <= PIECE_BYTES)


class Records(NamedTuple):  # and no dataclass, which orjson would write by itself
    """Columns of equal length that JSON shows as one object a row.

    Args:
        named: whether a row has the columns' names; else it is a list.
    """

    columns: Mapping[str, Array]
    named: bool = True

    def pieces(self) -> Iterator[list[Any]]:
        """Yield the rows, some at a time."""
        for first in range(0, len(next(iter(self.columns.values()))), PIECE_ROWS):
            columns = (array[first : first + PIECE_ROWS] for array in self.columns.values())
            rows = zip(*(column.tolist() for column in columns), strict=True)
            named = self.named
            yield [dict(zip(self.columns, row, strict=True)) if named else row for row in rows]


class Each(NamedTuple):
    """Entries of a JSON list, each made when the answer has come so far, once.

    Args:
        plain: whether they hold no arrays.
    """

    entries: Iterable[Any]
    plain: bool = False


def cast_array(array: Array, dtype: str) -> Array:
    """Return a float32 array in the dtype asked for.

    Raises:
        NotFinite: float16 cannot hold a number of it.
    """
    if dtype == "float32":
        return array
    with np.errstate(over="ignore"):  # it becomes infinity, and is refused
        half = array.astype(np.float16)
    if np.isinf(half).any():
        raise NotFinite
    return half


def to_json(encoded: Encoded) -> dict[str, Any]:
    """Return an answer of our own API as JSON nests it, with arrays as leaves."""
    data = Each(map(_item_json, encoded.items))
    return {**encoded.preamble, "data": data, "usage": encoded.usage}


def write_whole(tree: Any, encoding: str = "json") -> bytes:
    """Return a tree as JSON, at once; the same bytes as in pieces.

    Args:
        encoding: base64, where arrays are to be written so.
    """
    if encoding == "base64":
        return orjson.dumps(tree, _to_base64)
    return orjson.dumps(tree, _to_plain, orjson.OPT_SERIALIZE_NUMPY)


def write_pieces(tree: Any, encoding: str = "json") -> Iterator[bytes]:
    """Return the same in pieces; a number that is not finite is null."""
    return _write_value(tree, _write_base64 if encoding == "base64" else write_numbers)


def write_safetensors(encoded: Encoded) -> Iterator[bytes]:
    """Yield an answer as one safetensors file, in pieces; its JSON stands in the metadata."""
    tensors: dict[str, Array] = {}
    data = []
    for index, item in enumerate(encoded.items):
        tensors |= {f"{index}.{name}": array for name, array in _named_arrays(item)}
        data.append(_item_facts(item))
    yield from write_file({**encoded.preamble, "data": data, "usage": encoded.usage}, tensors)


def write_file(told: Mapping[str, Any], tensors: Mapping[str, Array]) -> Iterator[bytes]:
    """Yield a safetensors file, in pieces.

    The library's own writer copies every array three times. Source of the layout: safetensors'
    README, "Format"; wider numbers stand first, so that all are aligned.

    Args:
        told: what stands as JSON in its metadata.
    """
    header: dict[str, Any] = {"__metadata__": {METADATA: orjson.dumps(told).decode()}}
    arrays = sorted(tensors.items(), key=lambda entry: -entry[1].itemsize)
    end = 0
    for name, array in arrays:
        start, end = end, end + array.nbytes
        kind = SAFETENSORS_TYPES[array.dtype.name]
        header[name] = {"dtype": kind, "shape": array.shape, "data_offsets": (start, end)}
    opening = orjson.dumps(header)
    opening += b" " * (-len(opening) % 8)
    yield len(opening).to_bytes(8, "little") + opening
    for _, array in arrays:
        yield from write_raw(array)


def write_raw(array: Array) -> Iterator[bytes]:
    """Yield an array's bytes, little-endian, in pieces."""
    return (bytes(piece) for piece in _cut_bytes(array, PIECE_BYTES))


def _cut_bytes(array: Array, most: int) -> Iterator[memoryview]:
    """Yield the same in this many bytes each, without a copy where the array lies so already."""
    flat = np.ascontiguousarray(array).reshape(-1)
    step = most // flat.itemsize
    for first in range(0, flat.size, step):
        piece = flat[first : first + step]
        yield piece.astype(piece.dtype.newbyteorder("<"), copy=False).data.cast("B")


async def collect_body(pieces: Iterator[bytes], turn: FairLock) -> list[bytes]:
    """Return a body in pieces of PIECE_BYTES or of many small ones; others get a turn between them.

    It is never one string: that would take its bytes twice.

    Args:
        turn: held while a large answer is written. A loop lets all that are ready go once round:
            with one writer, a round is one piece long however many answers wait.
    """
    whole, parts, since, held = list[bytes](), list[bytes](), 0, False
    try:
        for piece in pieces:
            parts.append(piece)
            since += max(len(piece), PIECE_LEAST)
            if since >= PIECE_BYTES:
                whole.append(b"".join(parts))
                parts, since, held = [], 0, held or await turn.acquire()
                await asyncio.sleep(0)
        return [*whole, b"".join(parts)] if parts else whole
    finally:
        if held:
            turn.release()


def _item_facts(item: Item) -> dict[str, Any]:
    """Return what is answered of one sequence besides arrays."""
    facts = dict(item.facts)
    for task in item.tasks:
        facts |= task.facts()
    return {**facts, "attention": item.attention} if item.attention else facts


def _named_arrays(item: Item) -> Iterator[tuple[str, Array]]:
    """Return the arrays of one sequence by the names they have in a safetensors answer."""
    if item.pooled is not None:
        yield "pooled", item.pooled
    if item.tokens is not None:
        yield "tokens", item.tokens
    for layer, vectors in item.layers.items():
        yield f"layers.{layer}", vectors
    for task in item.tasks:
        yield from task.arrays()
    if item.parts is not None:
        yield "spans", item.parts
    yield from item.arrays.items()


def _item_json(item: Item) -> dict[str, Any]:
    """Return one sequence as nested dicts with arrays as leaves."""
    tree: dict[str, Any] = dict(item.facts)
    if item.pooled is not None:
        tree["pooled"] = item.pooled
    if item.tokens is not None:
        tree["token_vectors"] = item.tokens
    if item.layers:
        tree["layers"] = {str(layer): vectors for layer, vectors in item.layers.items()}
    for task in item.tasks:
        tree |= task.to_json()
    if item.parts is not None:
        spans = zip(item.facts["spans"], item.parts, strict=True)
        tree["spans"] = Each([{**span, "pooled": vector} for span, vector in spans])
    if item.attention is not None:
        tree["attention"] = {**item.attention, **item.maps}
    return tree


def _write_value(value: Any, encode: Any) -> Iterator[bytes]:
    """Write a part of a tree in pieces."""
    if isinstance(value, dict):
        yield from _write_object(value, encode)
    elif isinstance(value, np.ndarray):
        yield from encode(value)
    elif isinstance(value, Records):
        yield from _write_records(value)
    elif isinstance(value, Each):
        yield from _write_list(value, encode)
    else:
        yield orjson.dumps(value)


def _write_object(tree: Mapping[str, Any], encode: Any) -> Iterator[bytes]:
    opening = b"{"
    for key, value in tree.items():
        yield opening + orjson.dumps(key) + b":"
        yield from _write_value(value, encode)
        opening = b","
    yield b"{}" if opening == b"{" else b"}"


def _write_list(each: Each, encode: Any) -> Iterator[bytes]:
    opening = b"["
    for entry in each.entries:
        if each.plain:
            yield opening + orjson.dumps(entry)
        else:
            yield opening
            yield from _write_value(entry, encode)
        opening = b","
    yield b"[]" if opening == b"[" else b"]"


def _write_records(records: Records) -> Iterator[bytes]:
    opening = b"["
    for rows in records.pieces():
        yield opening + orjson.dumps(rows)[1:-1]
        opening = b","
    yield b"[]" if opening == b"[" else b"]"


def _to_plain(value: Any) -> Any:
    """Return as lists and arrays what orjson does not know."""
    if isinstance(value, Each):
        return list(value.entries)
    if isinstance(value, Records):
        return [row for rows in value.pieces() for row in rows]
    if isinstance(value, np.ndarray):  # whose numbers do not lie in order
        return np.ascontiguousarray(value)
    raise TypeError(f"{type(value).__name__} is no JSON: this is a bug")


def _to_base64(value: Any) -> Any:
    """Return the same, and an array as {"shape", "dtype", "data"}, little-endian."""
    if not isinstance(value, np.ndarray):
        return _to_plain(value)
    data = b"".join(map(base64.b64encode, _cut_bytes(value, BASE64_BYTES)))
    return {"shape": value.shape, "dtype": value.dtype.name, "data": data.decode()}


def write_numbers(array: Array) -> Iterator[bytes]:
    """Yield an array as nested lists of numbers, cut along its axes into pieces."""
    if array.ndim > 1 and array[:1].nbytes > PIECE_BYTES:
        for index, part in enumerate(array):
            yield b"," if index else b"["
            yield from write_numbers(part)
        yield b"]"
        return
    yield b"["
    rows = max(1, len(array) * PIECE_BYTES // max(1, array.nbytes))
    for first in range(0, len(array), rows):
        piece = np.ascontiguousarray(array[first : first + rows])
        yield (b"," if first else b"") + orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)[
            1:-1
        ]
    yield b"]"


def _write_base64(array: Array) -> Iterator[bytes]:
    """Yield an array as {"shape", "dtype", "data"}, little-endian, in pieces."""
    facts = {"shape": array.shape, "dtype": array.dtype.name}
    yield orjson.dumps(facts)[:-1] + b',"data":"'
    yield from map(base64.b64encode, _cut_bytes(array, BASE64_BYTES))
    yield b'"}'
