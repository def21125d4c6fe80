"""What the routes of the Open Inference Protocol answer, as types for the document of the API."""

from typing import Annotated, Literal, NotRequired

from service.api.open_inference.request import OUTPUTS
from service.api.types import Closed, about, one_of


class TensorParameters(Closed):
    """How a tensor's data comes: as so many bytes after the JSON."""

    binary_data_size: Annotated[int, about("Bytes of this tensor after the JSON.")]


class InferTensor(Closed):
    """An output."""

    name: Annotated[str, one_of(OUTPUTS), about("Which output it is.")]
    shape: Annotated[list[int], about("Length of each axis, the batch first.")]
    datatype: Annotated[Literal["FP32", "INT64"], about("Number format.")]
    data: NotRequired[
        Annotated[list[float], about("The numbers in row-major order, flat, where they are JSON.")]
    ]
    parameters: NotRequired[
        Annotated[TensorParameters, about("Where the data follows the JSON as bytes.")]
    ]


class InferAnswer(Closed):
    """The JSON of POST /v2/models/{model}/infer."""

    model_name: Annotated[str, about("Name of the model that is served.")]
    model_version: Annotated[str, about("Version of the model; there is one.")]
    id: NotRequired[Annotated[str, about("The request's own id, where it has one.")]]
    outputs: Annotated[list[InferTensor], about("The outputs named, and no others.")]


class TensorMetadata(Closed):
    """An input or output that the model has; -1 is an axis of any length."""

    name: Annotated[str, about("Name of the input or output.")]
    datatype: Annotated[str, about("Number format.")]
    shape: Annotated[list[int], about("Length of each axis; -1: any.")]


class InferModel(Closed):
    """What GET /v2/models/{model} answers."""

    name: Annotated[str, about("Name of the model that is served.")]
    versions: Annotated[list[str], about("Versions of the model; there is one.")]
    platform: Annotated[str, about("What computes it.")]
    inputs: Annotated[
        list[TensorMetadata], about("What a request may send; exactly one kind of input is needed.")
    ]
    outputs: Annotated[list[TensorMetadata], about("What a request may name.")]


class InferServer(Closed):
    """What GET /v2 answers."""

    name: Annotated[str, about("Name of the server.")]
    version: Annotated[str, about("Version of Headlight.")]
    extensions: Annotated[list[str], about("What it can do beyond the protocol.")]


class InferLive(Closed):
    """The process answers."""

    live: Annotated[Literal[True], about("Always true; a process that is not live is silent.")]


class InferReady(Closed):
    """The forward path lately proved itself."""

    name: NotRequired[Annotated[str, about("Name of the model, on the model's own path.")]]
    ready: Annotated[Literal[True], about("Always true; a server that is not ready answers 503.")]


class InferError(Closed):
    """A refusal."""

    error: Annotated[str, about("What is wrong, for people.")]
