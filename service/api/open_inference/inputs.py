"""The inputs of POST /v2/models/{model}/infer: exactly one of texts, token ids and embeddings."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from service.api.open_inference.request import InferInput
from service.api.open_inference.tensors import numbers, strings
from service.encode.answer import Array
from service.encode.request import Item
from service.refusals import Refused

TEXT, IDS, TYPES = "text", "input_ids", "token_type_ids"
EMBEDS, MASK = "inputs_embeds", "attention_mask"
# what each input may be: its datatypes, and how many axes it may have
INPUTS: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    TEXT: (("BYTES",), (1, 2)),
    IDS: (("INT64",), (2,)),
    TYPES: (("INT64",), (2,)),
    EMBEDS: (("FP32", "FP16"), (3,)),
    MASK: (("INT64", "INT32", "BOOL"), (2,)),
}
BESIDE = {TYPES: (IDS,), MASK: (IDS, EMBEDS)}  # inputs that need one of others


def read(inputs: Sequence[InferInput], data: memoryview, most: int) -> list[str | Item]:
    """The inputs as the native request has them; in their order they take the bytes of `data`.

    Args:
        data: what follows the JSON.
        most: sequences in a request.

    Raises:
        Refused: they are not what they say, or do not go together.
    """
    sequences: set[int] = set()
    for index, tensor in enumerate(inputs):
        if tensor.name not in INPUTS or tensor.name in [other.name for other in inputs[:index]]:
            raise Refused.at("out_of_range", "inputs", index, "name")
        _check(tensor, most)
        sequences.add(tensor.shape[0])
    if len(sequences) > 1:
        raise Refused.at("shape_mismatch", "inputs")
    elements: dict[str, Any] = {}
    for tensor in inputs:
        size = tensor.parameters.binary_data_size
        if (size is None) == (tensor.data is None):
            raise Refused.at("missing_field" if size is None else "out_of_range", tensor.name)
        part, data = (None, data) if size is None else (data[:size], data[size:])
        if part is not None and len(part) != size:
            raise Refused.at("payload_length_mismatch", tensor.name)
        elements[tensor.name] = (strings if tensor.name == TEXT else numbers)(tensor, part)
    if len(data):
        raise Refused.at("payload_length_mismatch", "inputs")
    return _items(elements)


def _check(tensor: InferInput, most: int) -> None:
    """Refuse a datatype or a shape that the input cannot have."""
    datatypes, axes = INPUTS[tensor.name]
    if tensor.datatype not in datatypes:
        raise Refused.at("invalid_type", tensor.name)
    columns = tensor.shape[1] if tensor.name == TEXT and len(tensor.shape) > 1 else 1
    if len(tensor.shape) not in axes or min(tensor.shape) < 0 or columns != 1:
        raise Refused.at("shape_mismatch", tensor.name)
    if not tensor.shape[0]:
        raise Refused.at("batch_empty", tensor.name)
    if tensor.shape[0] > most:
        raise Refused("batch_too_large", limit=most)
    if 0 in tensor.shape:
        raise Refused.at("sequence_empty", tensor.name)


def _items(tensors: Mapping[str, Any]) -> list[str | Item]:
    """The inputs as the native request has them."""
    if sum(name in tensors for name in (TEXT, IDS, EMBEDS)) != 1:
        raise Refused.at("exactly_one_input", "inputs")
    for name, others in BESIDE.items():
        if name in tensors and not any(other in tensors for other in others):
            raise Refused.at("out_of_range", name)
    if TEXT in tensors:
        return list(tensors[TEXT])
    rows = tensors[IDS] if IDS in tensors else tensors[EMBEDS]
    for name in BESIDE:
        if name in tensors and tensors[name].shape != rows.shape[:2]:
            raise Refused.at("shape_mismatch", name)
    lengths = _lengths(tensors[MASK]) if MASK in tensors else [rows.shape[1]] * len(rows)
    if EMBEDS in tensors:
        return [Item(embeddings=row[:end]) for row, end in zip(rows, lengths, strict=True)]
    types = tensors[TYPES] if TYPES in tensors else np.zeros_like(rows)
    return [
        Item(token_ids=row[:end].tolist(), token_type_ids=kinds[:end].tolist())
        for row, kinds, end in zip(rows, types, lengths, strict=True)
    ]


def _lengths(mask: Array) -> list[int]:
    """How long each sequence is: ones, then zeros; anything else is no length."""
    lengths = (mask != 0).sum(1)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]):
        raise Refused.at("out_of_range", MASK)
    if not lengths.all():
        raise Refused.at("sequence_empty", MASK)
    return [int(length) for length in lengths]
