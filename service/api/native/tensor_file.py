"""A request as a safetensors file: JSON in the metadata, whose inputs name tensors in the file."""

from collections.abc import Mapping
from typing import Any, TypeVar

import numpy as np
import orjson
from pydantic_core import from_json
from safetensors import SafetensorError, deserialize

from service.api.body import LENGTH_BYTES, header_bytes
from service.encode.answer import METADATA, Array
from service.refusals import Refused, unreadable
from service.wire import Wire
from service.wording.words import Loc, counted, listed, received

Kinds = Mapping[str, np.dtype[Any]]
Request = TypeVar("Request", bound=Wire)

FILE = (
    "expected 8 bytes with the length of the header, the header, and the bytes of all tensors, "
    "without gaps"
)
HEADER = "the file's header is larger than the {:,} bytes of JSON that are read"

FLOATS: Kinds = {"F32": np.dtype("<f4"), "F16": np.dtype("<f2")}
INTEGERS: Kinds = {"I32": np.dtype("<i4"), "I64": np.dtype("<i8")}
# the fields of a request that hold inputs, one or a list
INPUTS = {"inputs", "left", "right", "query", "documents"}
# the fields of an input that may name a tensor: its dtypes and number of axes
FIELDS: dict[str, tuple[Kinds, int]] = {
    "embeddings": (FLOATS, 2),
    "token_ids": (INTEGERS, 1),
    "token_type_ids": (INTEGERS, 1),
}


def parse(body: bytes, most_json: int, kind: type[Request]) -> Request:
    """Read a request.

    Each tensor belongs to one input, so a file cannot stand for more numbers than it holds.

    Args:
        most_json: bytes of header, and so of JSON, that are read.
        kind: of the request.

    Raises:
        Refused: the file is damaged, or its tensors do not match what its inputs name.
        ValidationError: for the JSON; what service/refusals.py gives a status.
    """
    if most_json < header_bytes(body) < len(body):
        raise Refused("body_too_large", detail=HEADER.format(most_json))
    try:
        tensors = dict(deserialize(body))  # type: ignore[no-untyped-call]  # the library's gap
    except SafetensorError:
        raise Refused("invalid_safetensors", detail=FILE) from None
    fields = _metadata(body)
    for name in INPUTS & fields.keys():
        value = fields[name]
        if isinstance(value, list):
            fields[name] = [_input(item, (name, i), tensors) for i, item in enumerate(value)]
        else:
            fields[name] = _input(value, (name,), tensors)
    request = kind.model_validate(fields)
    if tensors:
        detail = f"it holds {counted(len(tensors), 'tensor')} too many"
        raise Refused("tensor_unused", detail=detail)
    return request


def _metadata(body: bytes) -> dict[str, Any]:
    """Return the metadata's JSON, which the library's reader from bytes leaves out."""
    header = body[LENGTH_BYTES:][: header_bytes(body)]
    try:
        metadata = orjson.loads(header).get("__metadata__") or {}
    except ValueError:  # stricter than the library about what both skip
        raise Refused("invalid_safetensors", detail=FILE) from None
    if METADATA not in metadata:
        detail = "this entry of the file's metadata is missing; it takes the request as JSON"
        raise Refused.at("missing_field", "__metadata__", METADATA, detail=detail)
    try:
        fields = from_json(metadata[METADATA])
    except ValueError as error:
        raise unreadable(error) from None
    if not isinstance(fields, dict):
        detail = f"expected an object, received {received(fields)}"
        raise Refused("invalid_type", detail=detail)
    return fields


def _input(item: Any, place: Loc, tensors: dict[str, Mapping[str, Any]]) -> Any:
    """Return an input with the tensors it names, each taken out of `tensors`."""
    if not isinstance(item, dict):
        return item
    arrays: dict[str, Any] = {}
    for field, (dtypes, axes) in FIELDS.items():
        reference = item.get(field)
        if not isinstance(reference, dict) or "tensor" not in reference:
            continue
        loc = (*place, field)
        if reference.keys() != {"tensor"}:
            detail = f'expected the field "tensor" alone, received {received(reference)}'
            raise Refused.at("unknown_field", *loc, detail=detail)
        if not isinstance(reference["tensor"], str):
            detail = f"expected the name of a tensor, received {received(reference['tensor'])}"
            raise Refused.at("invalid_type", *loc, detail=detail)
        tensor = tensors.pop(reference["tensor"], None)
        if tensor is None:
            detail = "the file has no tensor of this name, or another input has named it"
            raise Refused.at("tensor_unknown", *loc, detail=detail)
        array = _array(tensor, dtypes, axes, loc)
        arrays[field] = array.tolist() if dtypes is INTEGERS else array.astype(np.float32)
    return {**item, **arrays}


def _array(
    tensor: Mapping[str, Any],
    dtypes: Kinds,
    axes: int,
    loc: tuple[str | int, ...],
) -> Array:
    """Return one tensor as an array over the bytes that the library read."""
    dtype, shape = dtypes.get(tensor["dtype"]), tensor["shape"]
    if dtype is None:
        detail = f"expected a tensor of dtype {listed(dtypes)}"
        raise Refused.at("invalid_type", *loc, detail=detail)
    if len(shape) != axes:
        detail = f"expected a tensor of {counted(axes, 'dimension')}, received one of {len(shape)}"
        raise Refused.at("shape_mismatch", *loc, detail=detail)
    return np.frombuffer(tensor["data"], dtype).reshape(shape)
