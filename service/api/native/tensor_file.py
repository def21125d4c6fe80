"""A request as a safetensors file: JSON in the metadata, whose inputs name tensors of the file."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import orjson
from pydantic_core import from_json
from safetensors import SafetensorError, deserialize

from service.api.body import LENGTH_BYTES, header_bytes
from service.encode.answer import METADATA, Array
from service.encode.request import EncodeRequest
from service.refusals import Refused, unreadable

Kinds = Mapping[str, np.dtype[Any]]

FLOATS: Kinds = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}
INTEGERS: Kinds = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
# the fields of an input that may name a tensor: which numbers it may hold, in how many axes
FIELDS: dict[str, tuple[Kinds, int]] = {
    "embeddings": (FLOATS, 2),
    "token_ids": (INTEGERS, 1),
    "token_type_ids": (INTEGERS, 1),
}


def parse(body: bytes, most_json: int) -> EncodeRequest:
    """Read a request.

    Each tensor belongs to one input: a file cannot stand for more numbers than it holds.

    Args:
        most_json: bytes of header, and so of JSON, that are read.

    Raises:
        Refused: the file is damaged, or its tensors are not what its inputs name.
        ValidationError: of the JSON; what service/refusals.py gives a status.
    """
    if most_json < header_bytes(body) < len(body):
        raise Refused("body_too_large")
    try:
        tensors = dict(deserialize(body))  # type: ignore[no-untyped-call]  # the library's gap
    except SafetensorError:
        raise Refused("invalid_safetensors") from None
    fields = _metadata(body)
    inputs = fields.get("inputs")
    if isinstance(inputs, list):
        fields["inputs"] = [_input(item, index, tensors) for index, item in enumerate(inputs)]
    request = EncodeRequest.model_validate(fields)
    if tensors:
        raise Refused("tensor_unused")
    return request


def _metadata(body: bytes) -> dict[str, Any]:
    """The JSON of the metadata, which the library's reader from bytes leaves out."""
    header = body[LENGTH_BYTES:][: header_bytes(body)]
    try:
        metadata = orjson.loads(header).get("__metadata__") or {}
    except ValueError:  # stricter than the library in what both skip
        raise Refused("invalid_safetensors") from None
    if METADATA not in metadata:
        raise Refused.at("missing_field", "__metadata__", METADATA)
    try:
        fields = from_json(metadata[METADATA])
    except ValueError as error:
        raise unreadable(error) from None
    if not isinstance(fields, dict):
        raise Refused("invalid_type")
    return fields


def _input(item: Any, index: int, tensors: dict[str, Mapping[str, Any]]) -> Any:
    """An input with the tensors that it names, each of which leaves those of the file."""
    if not isinstance(item, dict):
        return item
    arrays: dict[str, Any] = {}
    for field, (dtypes, axes) in FIELDS.items():
        reference = item.get(field)
        if not isinstance(reference, dict) or "tensor" not in reference:
            continue
        loc = ("inputs", index, field)
        if reference.keys() != {"tensor"}:
            raise Refused.at("unknown_field", *loc)
        if not isinstance(reference["tensor"], str):
            raise Refused.at("invalid_type", *loc)
        tensor = tensors.pop(reference["tensor"], None)
        if tensor is None:
            raise Refused.at("tensor_unknown", *loc)
        array = _array(tensor, dtypes, axes, loc)
        arrays[field] = array.tolist() if dtypes is INTEGERS else array
    return {**item, **arrays}


def _array(
    tensor: Mapping[str, Any],
    dtypes: Kinds,
    axes: int,
    loc: tuple[str | int, ...],
) -> Array:
    """One tensor as an array over the bytes that the library read."""
    dtype, shape = dtypes.get(tensor["dtype"]), tensor["shape"]
    if dtype is None:
        raise Refused.at("invalid_type", *loc)
    if len(shape) != axes:
        raise Refused.at("shape_mismatch", *loc)
    return np.frombuffer(tensor["data"], dtype).reshape(shape)
