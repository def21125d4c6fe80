"""The Open Inference Protocol's own request, strict.

Source: the protocol's inference_rest.md, "Inference Request JSON Object", and Triton's
extension_binary_data.md.
"""

from typing import Annotated, Any

from pydantic import Field, StringConstraints

from service.schema import Integers, Wire

POOLED, TOKENS, LAYERS, ATTENTION, LENGTHS = "pooled", "tokens", "layers", "attention", "lengths"
OUTPUTS = (POOLED, TOKENS, LAYERS, ATTENTION, LENGTHS)
LONGEST_LIST = 4096  # characters

# A parameter holds no list, in this protocol: "0,3,-1"
Listed = Annotated[
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
    """

    binary_data_output: bool = False
    layers: Listed | None = None
    attention_layers: Listed | None = None
    attention_heads: Listed | None = None


class InferRequest(Wire):
    """The JSON of POST /v2/models/{model}/infer.

    Args:
        outputs: what is computed and answered; pooled where none is named.
    """

    id: str | None = None
    parameters: InferParameters = InferParameters()
    inputs: list[InferInput]
    outputs: list[InferOutput] = []


# what a refusal may repeat from a request
FIELDS = frozenset(
    name
    for wire in (
        InferRequest,
        InferParameters,
        InferInput,
        InputParameters,
        InferOutput,
        OutputParameters,
    )
    for name in wire.model_fields
)
