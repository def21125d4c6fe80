"""What the routes of the Open Inference Protocol answer, as types for the document of the API."""

from typing import Annotated, Literal, NotRequired

from pydantic import Field

from service.api.open_inference.request import OUTPUTS
from service.api.types import Closed, one_of


class TensorParameters(Closed):
    """How a tensor's data comes: as so many bytes after the JSON."""

    binary_data_size: int


class InferTensor(Closed):
    """An output."""

    name: Annotated[str, one_of(OUTPUTS)]
    shape: list[int]
    datatype: Literal["FP32", "INT64"]
    data: NotRequired[Annotated[list[float], Field(description="row-major, flat")]]
    parameters: NotRequired[TensorParameters]


class InferAnswer(Closed):
    """The JSON of POST /v2/models/{model}/infer."""

    model_name: str
    model_version: str
    id: NotRequired[str]
    outputs: list[InferTensor]


class TensorMetadata(Closed):
    """An input or output that the model has; -1 is an axis of any length."""

    name: str
    datatype: str
    shape: list[int]


class InferModel(Closed):
    """What GET /v2/models/{model} answers."""

    name: str
    versions: list[str]
    platform: str
    inputs: list[TensorMetadata]
    outputs: list[TensorMetadata]


class InferServer(Closed):
    """What GET /v2 answers."""

    name: str
    version: str
    extensions: list[str]


class InferLive(Closed):
    """The process answers."""

    live: Literal[True]


class InferReady(Closed):
    """The forward path lately proved itself."""

    name: NotRequired[str]
    ready: Literal[True]


class InferError(Closed):
    """A refusal."""

    error: str
