"""The Open Inference Protocol's request, and its tensors: elements in JSON, or bytes after it.

The bytes are little-endian and row-major, without padding; an element of BYTES is a 4-byte
length, then the content. Sources: the protocol's inference_rest.md, "Inference Request JSON
Object", and Triton's extension_binary_data.md.
"""

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Annotated, Any, Literal

import numpy as np
import orjson
from pydantic import Field, StringConstraints
from pydantic.types import FailFast

from service.pipeline.write.answer import write_raw
from service.shapes.answer import Array
from service.tables.refusals import Refused
from service.tables.wording.wire import ForeignRequest, Integers
from service.tables.wording.words import count_noun, describe_value

# Names of output tensors
POOLED, TOKENS, LAYERS, ATTENTION, LENGTHS = "pooled", "tokens", "layers", "attention", "lengths"
MODEL_VERSION = "1"  # the one version of the served model
OUTPUT_NAMES = (POOLED, TOKENS, LAYERS, ATTENTION, LENGTHS)
LONGEST_LIST = 4096  # characters of Indices
MOST_UNSIGNED = 2**64 - 1  # Triton's parameters are unsigned integers of 64 bits

# A parameter cannot be a list in this protocol, hence "0,3,-1"
Indices = Annotated[
    str, StringConstraints(max_length=LONGEST_LIST, pattern=r"^-?[0-9]{1,9}(,-?[0-9]{1,9})*$")
]


class InputParameters(ForeignRequest):
    """How an input's data comes."""

    binary_data_size: Annotated[int, Field(ge=0)] | None = None
    """Bytes of the tensor after the JSON, which then has no `data`."""
    shared_memory_region: None = None
    """No memory is shared with clients."""


class InferInput(ForeignRequest):
    """A tensor of the request."""

    name: str
    """text, input_ids, token_type_ids, inputs_embeds or attention_mask."""
    shape: Integers
    """Length of each axis, the batch first."""
    datatype: str
    """Number format: BYTES, INT64, INT32, BOOL, FP32 or FP16, as GET /v2/models/{model} says."""
    parameters: InputParameters = InputParameters()
    """How the data comes, where it follows the JSON as bytes."""
    data: list[Any] | None = None
    """The elements in row-major order, nested by `shape` or flat."""


class OutputParameters(ForeignRequest):
    """How an output's data is to come: as bytes after the JSON, or as numbers in it."""

    binary_data: bool | None = None
    """Whether the data follows the JSON as bytes; left out: as `binary_data_output` says."""
    classification: Literal[0] = 0
    """Outputs are answered whole."""
    shared_memory_region: None = None
    """No memory is shared with clients."""


class InferOutput(ForeignRequest):
    """A tensor asked for."""

    name: str
    """pooled, tokens, layers, attention or lengths."""
    parameters: OutputParameters = OutputParameters()
    """How the data is to come."""


class InferParameters(ForeignRequest):
    """What the request chooses beyond its tensors."""

    binary_data_output: bool = False
    """Whether outputs that do not say so themselves come as bytes."""
    layers: Indices | None = None
    """Of the output layers, the hidden states: 0 is the embeddings, i the output of i layers, -1
    the last; all where left out."""
    attention_layers: Indices | None = None
    """Of the output attention, the layers, counted from 0; all where left out."""
    attention_heads: Indices | None = None
    """Of the output attention, the heads of each layer, counted from 0; all where left out."""
    timeout: Annotated[int, Field(ge=0, le=MOST_UNSIGNED)] = 0
    """Microseconds that the request may take, at most the service's own deadline; 0: that one."""
    priority: Annotated[int, Field(ge=0, le=MOST_UNSIGNED)] = 0
    """Any level; all are one here, as of a Triton model without levels."""
    sequence_id: Literal[0, ""] = 0
    """No state is kept between requests, so that only the default is taken."""
    sequence_start: Literal[False] = False
    """No state is kept between requests, so that only the default is taken."""
    sequence_end: Literal[False] = False
    """No state is kept between requests, so that only the default is taken."""


class InferRequest(ForeignRequest):
    """The JSON of POST /v2/models/{model}/infer."""

    id: str | None = None
    """A name of yours for the request, which the answer repeats."""
    parameters: InferParameters = InferParameters()
    """What else the request chooses."""
    inputs: Annotated[list[InferInput], FailFast()]
    """The tensors to encode, a batch of 1 to `max_sequences`."""
    outputs: Annotated[list[InferOutput], FailFast()] = []
    """What is computed and answered; pooled where none is named."""


DATATYPES: dict[str, np.dtype[Any]] = {  # the protocol's datatypes -> numpy's
    "BOOL": np.dtype(np.uint8),  # only 0 and 1 are valid, which the reader checks
    "INT32": np.dtype("<i4"),
    "INT64": np.dtype("<i8"),
    "FP16": np.dtype("<f2"),
    "FP32": np.dtype("<f4"),
}
# The Python types of an element in JSON; FP16 has none, as it comes as bytes alone
ELEMENT_TYPES: dict[str, set[type]] = {
    "BOOL": {bool},
    "INT32": {int},
    "INT64": {int},
    "FP32": {int, float},
    "BYTES": {str},
}
DATATYPE_NAMES = {dtype: name for name, dtype in DATATYPES.items()}  # the reverse
LENGTH_BYTES = 4  # bytes of the length before each element of BYTES


def read_strings(tensor: InferInput, data: memoryview | None) -> list[str]:
    """Return the elements of a BYTES tensor as texts.

    Args:
        data: its bytes, if they come after the JSON.

    Raises:
        Refused: they do not fit its shape, or are not UTF-8.
    """
    if data is None:
        return _flatten_elements(tensor)
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
        raise Refused.at(
            "payload_length_mismatch", tensor.name, detail=_word_counts(tensor, elements)
        )
    try:
        return [str(text, "utf-8") for text in elements]
    except UnicodeDecodeError:
        raise Refused.at("invalid_text", tensor.name, detail="expected UTF-8") from None


def read_numbers(tensor: InferInput, data: memoryview | None) -> Array:
    """Return a tensor of numbers, in its shape; a view of the bytes if it came as bytes.

    Args:
        data: its bytes, if they come after the JSON.

    Raises:
        Refused: they do not fit its shape and datatype.
    """
    dtype = DATATYPES[tensor.datatype]
    if data is not None:
        size = math.prod(tensor.shape) * dtype.itemsize
        if len(data) != size:
            detail = f"expected {size:,} bytes, as shape and datatype say, received {len(data):,}"
            raise Refused.at("payload_length_mismatch", tensor.name, detail=detail)
        return np.frombuffer(data, dtype).reshape(tensor.shape)
    elements = _flatten_elements(tensor)
    try:
        with np.errstate(over="ignore"):  # what overflows float32 becomes inf, and is refused
            return np.array(elements, dtype).reshape(tensor.shape)
    except OverflowError:
        detail = f"a number is too large for {tensor.datatype}"
        raise Refused.at("out_of_range", tensor.name, detail=detail) from None


def _flatten_elements(tensor: InferInput) -> list[Any]:
    """Return a tensor's JSON elements as one flat list; refuse those that do not fit its shape."""
    flat = tensor.data or []
    for size in tensor.shape[1:]:
        if not all(isinstance(inner, list) and len(inner) == size for inner in flat):
            break  # already flat, or of another shape
        flat = list(chain.from_iterable(flat))
    types, allowed = set(map(type, flat)), ELEMENT_TYPES.get(tensor.datatype, set()) | {list}
    if not types <= allowed:
        wrong = next(element for element in flat if type(element) not in allowed)
        detail = f"expected elements of {tensor.datatype}, received {describe_value(wrong)}"
        detail += " (FP16 comes as bytes alone)" * (tensor.datatype == "FP16")
        raise Refused.at("invalid_type", tensor.name, detail=detail)
    if list in types or len(flat) != math.prod(tensor.shape):
        raise Refused.at("shape_mismatch", tensor.name, detail=_word_counts(tensor, flat))
    return flat


def _word_counts(tensor: InferInput, elements: Sequence[object]) -> str:
    """Word the detail of a refusal: how many elements the shape implies, and how many came."""
    product = math.prod(tensor.shape)
    return (
        f"expected {count_noun(product, 'element')}, as the shape says, received {len(elements):,}"
    )


@dataclass(frozen=True, slots=True)
class Tensor:
    """A tensor of the answer, written piece by piece.

    Args:
        blocks: arrays that, one after the other, form the tensor in row-major order.
        binary: whether it comes as bytes after the JSON.
    """

    name: str
    shape: Sequence[int]
    dtype: np.dtype[Any]
    blocks: Iterable[Array]
    binary: bool

    def write_json(self) -> Iterator[bytes]:
        """Yield its JSON, in pieces; without the elements if it is binary."""
        header: dict[str, Any] = {"name": self.name, "shape": self.shape}
        header["datatype"] = DATATYPE_NAMES[self.dtype]
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

    def write_bytes(self) -> Iterator[bytes]:
        """Yield the elements as the bytes that follow the JSON, in pieces; none if not binary."""
        if self.binary:
            yield from chain.from_iterable(map(write_raw, self.blocks))
