"""Arrays of answers to the last bit: our own wire's base64."""

import base64
from typing import Any

import httpx
import numpy as np
from numpy.typing import NDArray

Array = NDArray[Any]


def array(told: dict[str, Any]) -> Array:
    """An array that was sent as base64."""
    data = base64.b64decode(told["data"])
    return np.frombuffer(data, np.dtype(told["dtype"]).newbyteorder("<")).reshape(told["shape"])


async def pooled(http: httpx.AsyncClient, inputs: list[Any], **asked: Any) -> Array:
    """What POST /v1/encode makes of inputs, (inputs, numbers)."""
    given = {"inputs": inputs, "encoding": "base64", **asked}
    told = (await http.post("/v1/encode", json=given)).json()["data"]
    return np.stack([array(item["pooled"]) for item in told])
