"""Tensors as bytes after the JSON."""

import json
from typing import Any

import httpx
import numpy as np
import pytest
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from service.api.open_inference import tensors
from service.api.open_inference.tensors import InferInput
from service.shapes.answer import INFERENCE_HEADER

TEXTS = ["", "a", "Größe", "\0", "x" * 300]
FLOATS = np.array([[0.1, -0.0, 3e38], [1e-45, 5.0, 7.0]], np.float32)


def given(name: str, shape: list[int], datatype: str, size: int) -> dict[str, Any]:
    """A tensor of which so many bytes follow the JSON."""
    parameters = {"binary_data_size": size}
    return {"name": name, "shape": shape, "datatype": datatype, "parameters": parameters}


def ids(shape: list[int], size: int) -> dict[str, Any]:
    """Token ids of which so many bytes follow the JSON."""
    return given("input_ids", shape, "INT64", size)


def text(size: int) -> dict[str, Any]:
    """One text of which so many bytes follow the JSON."""
    return given("text", [1], "BYTES", size)


async def test_texts_are_read_as_the_client_writes_them() -> None:
    """Each with its length before it."""
    written = serialize_byte_tensor(np.array(TEXTS, dtype=object)).item()
    wire = InferInput(name="text", shape=[len(TEXTS)], datatype="BYTES")

    assert tensors.read_strings(wire, memoryview(written)) == TEXTS
    assert [text.decode() for text in deserialize_bytes_tensor(written)] == TEXTS


@pytest.mark.parametrize("nested", [True, False])
async def test_numbers_are_the_same_as_bytes_and_as_json(nested: bool) -> None:
    """Nested as the shape says, or flat."""
    wire = {"name": "inputs_embeds", "shape": [2, 3], "datatype": "FP32"}
    said = FLOATS.tolist() if nested else FLOATS.reshape(-1).tolist()

    of_bytes = tensors.read_numbers(InferInput.model_validate(wire), memoryview(FLOATS.tobytes()))
    of_json = tensors.read_numbers(InferInput.model_validate({**wire, "data": said}), None)

    assert of_bytes.tobytes() == of_json.tobytes() == FLOATS.tobytes()
    assert of_bytes.shape == of_json.shape == (2, 3)


WRONG: dict[str, tuple[list[dict[str, Any]], bytes, str]] = {
    "rows of nothing": ([ids([10**18, 0], 0)], b"", "batch_too_large: "),
    "empty rows": ([ids([2, 0], 0)], b"", "sequence_empty: input_ids: "),
    "overflow": ([ids([2, 2**63], 0)], b"", "payload_length_mismatch: input_ids: "),
    "another shape": ([ids([1, 3], 16)], bytes(16), "payload_length_mismatch: input_ids: "),
    "too few bytes": ([ids([1, 3], 24)], bytes(23), "payload_length_mismatch: input_ids: "),
    "a byte more": ([ids([1, 3], 24)], bytes(25), "payload_length_mismatch: inputs: "),
    "size below zero": (
        [ids([1, 3], -1)],
        b"",
        "out_of_range: inputs[0].parameters.binary_data_size: ",
    ),
    "data and bytes": ([{**ids([1, 1], 8), "data": [1]}], bytes(8), "out_of_range: input_ids: "),
    "text past its end": ([text(5)], b"\xff\xff\xff\xffa", "payload_length_mismatch: text: "),
    "three bytes of length": ([text(3)], bytes(3), "payload_length_mismatch: text: "),
    "a text too many": ([text(10)], b"\1\0\0\0a" * 2, "payload_length_mismatch: text: "),
    "no UTF-8": ([text(5)], b"\1\0\0\0\xff", "invalid_text: text: "),
    "a surrogate": ([text(7)], b"\3\0\0\0\xed\xa0\x80", "invalid_text: text: "),
    "2 as bool": (
        [ids([1, 1], 8), given("attention_mask", [1, 1], "BOOL", 1)],
        b"\1" + bytes(7) + b"\2",
        "out_of_range: attention_mask: ",
    ),
    "NaN": (
        [given("inputs_embeds", [1, 1, 384], "FP16", 768)],
        b"\xff" * 768,
        "non_finite: inputs_embeds[0]: ",
    ),
}


@pytest.mark.parametrize(("inputs", "data", "said"), WRONG.values(), ids=WRONG)
async def test_bytes_that_are_not_what_the_json_says_are_refused(
    client: httpx.AsyncClient, inputs: list[dict[str, Any]], data: bytes, said: str
) -> None:
    """The sentence names the tensor."""
    told = json.dumps({"inputs": inputs}).encode()
    headers = {INFERENCE_HEADER: str(len(told))}

    answer = await client.post(
        "/v2/models/all-MiniLM-L6-v2/infer", content=told + data, headers=headers
    )

    assert answer.status_code == 400
    assert answer.json()["error"].startswith(said)
