"""What GET /v2/models/{model} answers: the model's inputs and outputs."""

from typing import Any

from service.api.open_inference.inputs import EMBEDS, INPUTS
from service.api.open_inference.request import ATTENTION, LAYERS, LENGTHS, POOLED, TOKENS, VERSION


def model(name: str, width: int, embedding: int, pooled: int) -> dict[str, Any]:
    """The model's metadata; -1 is an axis of any length.

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
        for input_name, (datatypes, axes) in INPUTS.items()
    ]
    outputs = [
        {"name": output, "datatype": "INT64" if output == LENGTHS else "FP32", "shape": shape}
        for output, shape in shapes.items()
    ]
    return {
        "name": name,
        "versions": [VERSION],
        "platform": "pytorch",
        "inputs": inputs,
        "outputs": outputs,
    }
