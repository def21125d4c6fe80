"""Writes answers with arrays as JSON, base64 or safetensors.

An answer is written in pieces of at most about PIECE_BYTES of array, so that other requests get a
turn between them; a small one is written at once.
"""

import asyncio
import base64
from collections.abc import Iterator, Mapping
from itertools import chain, repeat
from typing import Any

import numpy as np
import orjson

from service.shapes.answer import PIECE_BYTES, Answer, AnswerItem, Array, Each, Records
from service.shapes.call import Turn

PIECE_LEAST = 1024  # bytes that even a smaller piece counts as, since its item may take as long
# Bytes of array in a piece of base64: a multiple of 3 and of the size of every dtype
BASE64_BYTES = 3 * 16 * 1024
NO_BYTES = b""  # a piece of work that writes nothing yet, and counts as PIECE_LEAST
METADATA = "headlight"  # key of the JSON in the metadata of a safetensors answer

# Names of dtypes in safetensors
SAFETENSORS_TYPES = {
    "float32": "F32",
    "float16": "F16",
    "int32": "I32",
    "int8": "I8",
    "uint8": "U8",
}
WIDTHS = (4, 2, 1)  # bytes of a number of these, in the order of a file

# Stands where a value is written later; JSON has no such byte, not even in a string
HELD_MARK = b"\0"
HELD_PLACE = orjson.Fragment(HELD_MARK)


def to_json(encoded: Answer) -> dict[str, Any]:
    """Return an answer of Headlight's own API as nested JSON with arrays as leaves."""
    data = Each(map(_item_json, encoded.items))
    return {**encoded.preamble, "data": data, "usage": encoded.usage}


def write_whole(tree: Any, encoding: str = "json") -> bytes:
    """Return what `write_pieces` yields, written at once: for a small answer, in half the time."""

    def join(value: Any) -> Any:
        """Return the entries of a list, or the JSON of any other value that orjson lacks."""
        if isinstance(value, Each):
            return list(value.entries)
        return orjson.Fragment(b"".join(_write_value(value, encoding)))

    option = None if encoding == "base64" else orjson.OPT_SERIALIZE_NUMPY
    return orjson.dumps(tree, join, option)


def write_pieces(tree: Any, encoding: str = "json") -> Iterator[bytes]:
    """Yield nested JSON with arrays as bytes, in pieces; NaN and infinity become null.

    Args:
        tree: dicts and lists with arrays, Records and Each in them.
        encoding: how to write arrays: `json` (numbers) or `base64`.
    """
    held = list[Any]()

    def hold(value: Any) -> orjson.Fragment:
        """Hold a value back until its turn has come."""
        held.append(value)
        return HELD_PLACE

    first, *rest = orjson.dumps(tree, hold).split(HELD_MARK)
    yield first
    for value, after in zip(held, rest, strict=True):
        yield from _write_value(value, encoding)
        yield after


def write_safetensors(encoded: Answer) -> Iterator[bytes]:
    """Yield an answer as one safetensors file, in pieces; its JSON stands in the metadata."""
    tensors: dict[str, Array] = {}
    data = []
    for index, item in enumerate(encoded.items):
        for name, array in _named_arrays(item):
            tensors[f"{index}.{name}"] = array
            yield from repeat(NO_BYTES, 1 + array.nbytes // PIECE_LEAST)  # it was made just now
        data.append(_item_facts(item))
        yield NO_BYTES  # an item may have no arrays
    yield from write_file({**encoded.preamble, "data": Each(data), "usage": encoded.usage}, tensors)


def write_file(metadata: Mapping[str, Any], tensors: Mapping[str, Array]) -> Iterator[bytes]:
    """Yield a safetensors file, in pieces, which are empty while its header is made.

    The library's own writer copies every array three times. Source of the layout: safetensors'
    README, "Format"; wider numbers stand first, so that all are aligned.

    Args:
        metadata: put into the file's metadata, as nested JSON.
        tensors: by name.
    """
    header, arrays, end = [b'{"__metadata__":{"%s":"' % METADATA.encode()], list[Array](), 0
    for piece in write_pieces(metadata):
        header.append(orjson.dumps(piece.decode())[1:-1])
        yield from repeat(NO_BYTES, 1 + len(piece) // PIECE_LEAST)
    header.append(b'"}')
    by_width = {width: list[tuple[str, Array]]() for width in WIDTHS}
    for name, array in tensors.items():
        by_width[array.itemsize].append((name, array))
        yield NO_BYTES
    for name, array in chain.from_iterable(by_width.values()):
        start, end = end, end + array.nbytes
        kind = SAFETENSORS_TYPES[array.dtype.name]
        entry = {name: {"dtype": kind, "shape": array.shape, "data_offsets": (start, end)}}
        header.append(b"," + orjson.dumps(entry)[1:-1])
        arrays.append(array)
        yield NO_BYTES
    size = sum(map(len, header)) + 1
    header.append(b"}" + b" " * (-size % 8))
    yield (size + -size % 8).to_bytes(8, "little")
    yield from header
    for array in arrays:
        yield from write_raw(array)


def write_raw(array: Array) -> Iterator[bytes]:
    """Yield an array's bytes, little-endian, in pieces."""
    return (bytes(piece) for piece in _cut_bytes(array, PIECE_BYTES))


def _cut_bytes(array: Array, piece_bytes: int) -> Iterator[memoryview]:
    """Yield an array's bytes, little-endian, in pieces; without a copy if it is contiguous."""
    flat = np.ascontiguousarray(array).reshape(-1)
    step = piece_bytes // flat.itemsize
    for first in range(0, flat.size, step):
        piece = flat[first : first + step]
        yield piece.astype(piece.dtype.newbyteorder("<"), copy=False).data.cast("B")


async def collect_body(pieces: Iterator[bytes], turn: Turn) -> list[bytes]:
    """Write a body and return it in chunks of about PIECE_BYTES; other tasks run between them.

    It is not joined to one string, which would take its memory twice.

    Args:
        pieces: of the body, written as they are read.
        turn: lock to hold while a large body is written: with one writer at a time, other tasks
            wait for one chunk, not for one of each answer that is being written.
    """
    chunks, parts, size, work, held = list[bytes](), list[bytes](), 0, 0, False
    try:
        for piece in pieces:
            parts.append(piece)
            size, work = size + len(piece), work + max(len(piece), PIECE_LEAST)
            if work < PIECE_BYTES:
                continue
            if size >= PIECE_BYTES:
                chunks.append(b"".join(parts))
                parts, size = [], 0
            work, held = 0, held or await turn.acquire()
            await asyncio.sleep(0)
        return [*chunks, b"".join(parts)] if parts else chunks
    finally:
        if held:
            turn.release()


def _item_facts(item: AnswerItem) -> dict[str, Any]:
    """Return the fields of one item without arrays, as JSON."""
    facts = dict(item.facts)
    for task in item.tasks:
        facts |= task.facts()
    return {**facts, "attention": item.attention} if item.attention else facts


def _named_arrays(item: AnswerItem) -> Iterator[tuple[str, Array]]:
    """Yield the arrays of one item with their names in a safetensors answer."""
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


def _item_json(item: AnswerItem) -> dict[str, Any]:
    """Return one item as nested JSON with arrays as leaves."""
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


def _write_value(value: Array | Records | Each, encoding: str) -> Iterator[bytes]:
    """Yield the JSON of a value that orjson lacks, in pieces."""
    if isinstance(value, np.ndarray):
        yield from _write_base64(value) if encoding == "base64" else write_numbers(value)
        return
    opening = b"["
    if isinstance(value, Records):
        for rows in value.pieces():
            yield opening + orjson.dumps(rows)[1:-1]
            opening = b","
    else:
        for entry in value.entries:
            pieces = write_pieces(entry, encoding)
            yield opening + next(pieces)
            yield from pieces
            opening = b","
    yield b"[]" if opening == b"[" else b"]"


def write_numbers(array: Array) -> Iterator[bytes]:
    """Yield an array as nested JSON lists of numbers, in pieces."""
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
        listed = orjson.dumps(piece, option=orjson.OPT_SERIALIZE_NUMPY)
        yield (b"," if first else b"") + listed[1:-1]
    yield b"]"


def _write_base64(array: Array) -> Iterator[bytes]:
    """Yield an array as {"shape", "dtype", "data"}, little-endian, in pieces."""
    header = {"shape": array.shape, "dtype": array.dtype.name}
    yield orjson.dumps(header)[:-1] + b',"data":"'
    yield from map(base64.b64encode, _cut_bytes(array, BASE64_BYTES))
    yield b'"}'
