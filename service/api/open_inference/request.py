"""The Open Inference Protocol's own request, strict.

Source: the protocol's inference_rest.md, "Inference Request JSON Object", and Triton's
extension_binary_data.md.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints
from pydantic.types import FailFast

from service.api.native.heads import Integers
from service.wire import Wire

POOLED, TOKENS, LAYERS, ATTENTION, LENGTHS = "pooled", "tokens", "layers", "attention", "lengths"
VERSION = "1"  # of the one model served
OUTPUTS = (POOLED, TOKENS, LAYERS, ATTENTION, LENGTHS)
LONGEST_LIST = 4096  # characters
MOST_UNSIGNED = 2**64 - 1  # of Triton's parameters

# A parameter holds no list, in this protocol: "0,3,-1"
Indices = Annotated[
    str, StringConstraints(max_length=LONGEST_LIST, pattern=r"^-?[0-9]{1,9}(,-?[0-9]{1,9})*$")
]


class InputParameters(Wire):
    """How an input's data comes."""

    binary_data_size: Annotated[int, Field(ge=0)] | None = None
    """Bytes of the tensor after the JSON, which then has no `data`."""


class InferInput(Wire):
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


class OutputParameters(Wire):
    """How an output's data is to come: as bytes after the JSON, or as numbers in it."""

    binary_data: bool | None = None
    """Whether the data follows the JSON as bytes; left out: as `binary_data_output` says."""


class InferOutput(Wire):
    """A tensor asked for."""

    name: str
    """pooled, tokens, layers, attention or lengths."""
    parameters: OutputParameters = OutputParameters()
    """How the data is to come."""


class InferParameters(Wire):
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


class InferRequest(Wire):
    """The JSON of POST /v2/models/{model}/infer."""

    id: str | None = None
    """A name of yours for the request, which the answer repeats."""
    parameters: InferParameters = InferParameters()
    """What else the request chooses."""
    inputs: Annotated[list[InferInput], FailFast()]
    """The tensors to encode, a batch of 1 to `max_sequences`."""
    outputs: Annotated[list[InferOutput], FailFast()] = []
    """What is computed and answered; pooled where none is named."""
