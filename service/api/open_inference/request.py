"""The Open Inference Protocol's own request, strict.

Source: the protocol's inference_rest.md, "Inference Request JSON Object", and Triton's
extension_binary_data.md.
"""

from typing import Annotated, Any, Literal

from pydantic import Field, StringConstraints
from pydantic.types import FailFast

from service.encode.request import Integers
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
    """How an input's data comes.

    Args:
        binary_data_size: bytes of it after the JSON, instead of `data` in it.
    """

    binary_data_size: Annotated[int, Field(ge=0)] | None = None


class InferInput(Wire):
    """A tensor of the request.

    Args:
        data: its elements in row-major order, nested by `shape` or flat.
    """

    name: str
    shape: Integers
    datatype: str
    parameters: InputParameters = InputParameters()
    data: list[Any] | None = None


class OutputParameters(Wire):
    """How an output's data is to come: as bytes after the JSON, or as numbers in it."""

    binary_data: bool | None = None


class InferOutput(Wire):
    """A tensor asked for."""

    name: str
    parameters: OutputParameters = OutputParameters()


class InferParameters(Wire):
    """What the request chooses beyond its tensors.

    Args:
        binary_data_output: whether outputs that do not say so themselves come as bytes.
        layers: of the output layers, the hidden states: 0 = embeddings, i = after i layers, -1 =
            the last; all where left out.
        attention_layers, attention_heads: of the output attention, counted from 0; all where
            left out.
        timeout: microseconds that the request may take, at most the service's own deadline; 0:
            that one.
        priority: any level, all of which are one here, as of a Triton model without levels.
        sequence_id, sequence_start, sequence_end: no requests belong together here, so that only
            the defaults are taken.
    """

    binary_data_output: bool = False
    layers: Indices | None = None
    attention_layers: Indices | None = None
    attention_heads: Indices | None = None
    timeout: Annotated[int, Field(ge=0, le=MOST_UNSIGNED)] = 0
    priority: Annotated[int, Field(ge=0, le=MOST_UNSIGNED)] = 0
    sequence_id: Literal[0, ""] = 0
    sequence_start: Literal[False] = False
    sequence_end: Literal[False] = False


class InferRequest(Wire):
    """The JSON of POST /v2/models/{model}/infer.

    Args:
        outputs: what is computed and answered; pooled where none is named.
    """

    id: str | None = None
    parameters: InferParameters = InferParameters()
    inputs: Annotated[list[InferInput], FailFast()]
    outputs: Annotated[list[InferOutput], FailFast()] = []
