"""What POST /v2/models/{model}/infer answers: outputs padded to the batch's longest sequence."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import chain, groupby
from typing import Any

import numpy as np
import orjson

from service.api.open_inference.request import ATTENTION, LAYERS, LENGTHS, POOLED, VERSION
from service.api.open_inference.tensors import Tensor
from service.encode.answer import Array, Item


def write(
    outputs: Mapping[str, bool], id: str | None, model: str, items: Sequence[Item]
) -> tuple[Iterator[bytes], Iterator[bytes]]:
    """An answer's JSON, and the bytes that follow it; each in pieces.

    Args:
        outputs: those answered, in order, and whether each comes as bytes.
        id: the client's own, given back.
        items: one for each sequence.
    """
    tensors = [_tensor(name, items, binary) for name, binary in outputs.items()]
    head = {"model_name": model, "model_version": VERSION}
    if id is not None:
        head["id"] = id
    return _json(head, tensors), chain.from_iterable(tensor.bytes() for tensor in tensors)


def _tensor(name: str, items: Sequence[Item], binary: bool) -> Tensor:
    """One output of all sequences."""
    longest = max(item.tokens_run for item in items)
    if name == LENGTHS:
        lengths = np.array([item.tokens_run for item in items], np.int64)
        return Tensor(name, lengths.shape, lengths.dtype, [lengths], binary)
    shape, first = [len(items)], next(_arrays(name, items[0]))
    if name == LAYERS:
        shape.append(len(items[0].layers))
    if name == ATTENTION:
        shape += [len(items[0].arrays) // len(first), len(first), longest, longest]
    else:
        shape += first.shape if name == POOLED else (longest, *first.shape[1:])
    blocks = (_padded(name, array, longest) for item in items for array in _arrays(name, item))
    return Tensor(name, shape, np.dtype(np.float32), blocks, binary)


def _arrays(name: str, item: Item) -> Iterator[Array]:
    """One sequence's arrays of an output, in order; a layer's maps as one, for there are many."""
    if name == LAYERS:
        yield from item.layers.values()
    elif name == ATTENTION:
        by_layer = groupby(item.arrays, key=lambda key: key.rpartition(".")[0])
        for _, keys in by_layer:
            yield np.stack([item.arrays[key] for key in keys])
    else:
        array = item.pooled if name == POOLED else item.tokens
        if array is None:
            raise RuntimeError("an output that was not asked for: this is a bug")
        yield array


def _padded(name: str, array: Array, longest: int) -> Array:
    """An array with zeros where a longer sequence has tokens."""
    tokens = array.shape[-2] if name != POOLED else longest
    if tokens == longest:
        return array
    after = (0, longest - tokens)
    return np.pad(array, ((0, 0), after, after) if name == ATTENTION else (after, (0, 0)))


def _json(head: Mapping[str, Any], tensors: Sequence[Tensor]) -> Iterator[bytes]:
    """The JSON of an answer, in pieces."""
    yield orjson.dumps(head)[:-1] + b',"outputs":['
    for index, tensor in enumerate(tensors):
        yield b"," if index else b""
        yield from tensor.json()
    yield b"]}"
