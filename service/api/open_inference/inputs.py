"""The inputs of POST /v2/models/{model}/infer, and what GET /v2/models/{model} says of them."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from service.api.open_inference.tensors import (
    ATTENTION,
    LAYERS,
    LENGTHS,
    MODEL_VERSION,
    POOLED,
    TOKENS,
    InferInput,
    read_numbers,
    read_strings,
)
from service.shapes.answer import Array
from service.shapes.inputs import InputItem, Texts
from service.tables.refusals import Refused
from service.tables.wording.words import count_noun, list_names, quote_names, suggest_name

TEXT, IDS, TYPES = "text", "input_ids", "token_type_ids"  # names of input tensors
EMBEDS, MASK = "inputs_embeds", "attention_mask"
# Input tensors by name: the datatypes that each may have, and how many axes
INPUT_TENSORS: dict[str, tuple[Sequence[str], Sequence[int]]] = {
    TEXT: (("BYTES",), (1, 2)),
    IDS: (("INT64",), (2,)),
    TYPES: (("INT64",), (2,)),
    EMBEDS: (("FP32", "FP16"), (3,)),
    MASK: (("INT64", "INT32", "BOOL"), (2,)),
}
COLUMN_RULE = ", and the last of two is 1"  # ends the detail of a refusal of a shape of texts
REQUIRED_BESIDE = {TYPES: (IDS,), MASK: (IDS, EMBEDS)}  # inputs -> others, one of which they need


def read_inputs(inputs: Sequence[InferInput], data: memoryview, most: int) -> Texts:
    """Convert input tensors to native inputs.

    Args:
        data: the bytes after the JSON, which binary tensors consume in order.
        most: most sequences in a request.

    Raises:
        Refused: a tensor does not fit its datatype or shape, or they do not go together.
    """
    sequences: set[int] = set()
    for index, tensor in enumerate(inputs):
        if tensor.name not in INPUT_TENSORS or tensor.name in [
            other.name for other in inputs[:index]
        ]:
            near = "" if tensor.name in INPUT_TENSORS else suggest_name(tensor.name, INPUT_TENSORS)
            detail = f"expected {quote_names(INPUT_TENSORS)}, each once{near}"
            raise Refused.at("out_of_range", "inputs", index, "name", detail=detail)
        _check_shape(tensor, most)
        sequences.add(tensor.shape[0])
    if len(sequences) > 1:
        detail = "expected as many sequences in every tensor, the first number of its shape"
        raise Refused.at("shape_mismatch", "inputs", detail=detail)
    elements: dict[str, Any] = {}
    for tensor in inputs:
        size = tensor.parameters.binary_data_size
        if (size is None) == (tensor.data is None):
            code = "missing_field" if size is None else "out_of_range"
            received = "neither" if size is None else "both"
            detail = f"expected either data or the parameter binary_data_size, received {received}"
            raise Refused.at(code, tensor.name, detail=detail)
        part, data = (None, data) if size is None else (data[:size], data[size:])
        if part is not None and len(part) != size:
            detail = f"expected {size:,} bytes after the JSON, received {len(part):,}"
            raise Refused.at("payload_length_mismatch", tensor.name, detail=detail)
        elements[tensor.name] = (read_strings if tensor.name == TEXT else read_numbers)(
            tensor, part
        )
    if len(data):
        detail = f"{count_noun(len(data), 'byte')} of the body belong to no tensor"
        raise Refused.at("payload_length_mismatch", "inputs", detail=detail)
    return _make_inputs(elements)


def _check_shape(tensor: InferInput, most: int) -> None:
    """Refuse a datatype or shape that the input cannot have, and more than `most` sequences."""
    datatypes, axes = INPUT_TENSORS[tensor.name]
    if tensor.datatype not in datatypes:
        raise Refused.at(
            "invalid_type", tensor.name, detail=f"expected datatype {list_names(datatypes)}"
        )
    columns = tensor.shape[1] if tensor.name == TEXT and len(tensor.shape) > 1 else 1
    if len(tensor.shape) not in axes or min(tensor.shape) < 0 or columns != 1:
        dimensions = list_names(f"{count}" for count in axes)
        detail = f"expected a shape of {dimensions} dimensions, none of them negative"
        raise Refused.at(
            "shape_mismatch", tensor.name, detail=detail + COLUMN_RULE * (columns != 1)
        )
    if not tensor.shape[0]:
        raise Refused.at("batch_empty", tensor.name)
    if tensor.shape[0] > most:
        detail = f"it holds {tensor.shape[0]:,}, and the limit is {most:,}"
        raise Refused("batch_too_large", detail=detail, limit=most)
    if 0 in tensor.shape:
        raise Refused.at("sequence_empty", tensor.name, detail="a dimension of its shape is 0")


def _make_inputs(tensors: Mapping[str, Any]) -> Texts:
    """Convert input tensors, by name, to native inputs; refuse those that do not go together."""
    if sum(name in tensors for name in (TEXT, IDS, EMBEDS)) != 1:
        raise Refused.at("exactly_one_input", "inputs")
    for name, others in REQUIRED_BESIDE.items():
        if name in tensors and not any(other in tensors for other in others):
            raise Refused.at("out_of_range", name, detail=f"it goes with {list_names(others)}")
    if TEXT in tensors:
        return list(tensors[TEXT])
    rows = tensors[IDS] if IDS in tensors else tensors[EMBEDS]
    for name in REQUIRED_BESIDE:
        if name in tensors and tensors[name].shape != rows.shape[:2]:
            shape = tuple(rows.shape[:2])
            detail = f"expected the shape of its tokens, {shape}, received {tensors[name].shape}"
            raise Refused.at("shape_mismatch", name, detail=detail)
    lengths = _mask_lengths(tensors[MASK]) if MASK in tensors else [rows.shape[1]] * len(rows)
    if EMBEDS in tensors:
        # copies: views of the body would keep all of it in memory
        return [
            InputItem.model_construct(embeddings=row[:end].astype(np.float32))
            for row, end in zip(rows, lengths, strict=True)
        ]
    types = tensors[TYPES] if TYPES in tensors else np.zeros_like(rows)
    return [
        InputItem.model_construct(token_ids=row[:end].tolist(), token_type_ids=kinds[:end].tolist())
        for row, kinds, end in zip(rows, types, lengths, strict=True)
    ]


def _mask_lengths(mask: Array) -> list[int]:
    """Return each sequence's length by a mask; refuse one that is not ones, then zeros."""
    lengths = (mask != 0).sum(1)
    if not np.array_equal(mask, np.arange(mask.shape[1]) < lengths[:, None]):
        detail = "expected ones, and zeros only at the end of a row"
        raise Refused.at("out_of_range", MASK, detail=detail)
    if not lengths.all():
        raise Refused.at("sequence_empty", MASK, detail="a row holds zeros alone")
    return [int(length) for length in lengths]


def describe_model(name: str, width: int, embedding: int, pooled: int) -> dict[str, Any]:
    """Return the protocol's metadata of the model; in shapes, -1 is an axis of any length.

    Args:
        width: numbers in a token's vector.
        embedding: numbers in a token's embedding.
        pooled: numbers in a pooled vector.
    """
    shapes = {
        POOLED: [-1, pooled],
        TOKENS: [-1, -1, width],
        LAYERS: [-1, -1, -1, width],
        ATTENTION: [-1] * 5,
        LENGTHS: [-1],
    }
    inputs = [
        {
            "name": input_name,
            "datatype": datatypes[0],
            "shape": [-1, -1, embedding] if input_name == EMBEDS else [-1] * axes[0],
        }
        for input_name, (datatypes, axes) in INPUT_TENSORS.items()
    ]
    outputs = [
        {"name": output, "datatype": "INT64" if output == LENGTHS else "FP32", "shape": shape}
        for output, shape in shapes.items()
    ]
    return {
        "name": name,
        "versions": [MODEL_VERSION],
        "platform": "pytorch",
        "inputs": inputs,
        "outputs": outputs,
    }
