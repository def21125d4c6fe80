"""Vectors in fewer bytes, held to sentence-transformers' arithmetic."""

import base64
import re
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load
from sentence_transformers.util import quantize_embeddings

from headlight_client import AsyncClient
from service.api.precisions import Precision, to_precision
from service.heads import sentences
from service.pipeline.write.precisions import range_end
from service.shapes.outputs import SmallPrecision

PAGE = Path(__file__).parent.parent.parent.parent / "docs" / "api.md"

SIZES = [1, 7, 8, 13, 64, 384, 1024]
COUNT = 31


def unit(size: int) -> NDArray[np.float32]:
    """Vectors of length 1, one of them along an axis, one with numbers of 0."""
    vectors = np.random.default_rng(size).normal(size=(COUNT, size)).astype(np.float32)
    vectors[0] = np.eye(size)[0]
    vectors[1, 1::2] = 0
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
def test_a_smaller_vector_is_that_of_the_library(size: int, precision: Precision) -> None:
    """With the same ranges, of any size, each alone."""
    vectors = unit(size)
    ranges = np.array([[-range_end(size)] * size, [range_end(size)] * size], dtype=np.float32)

    theirs = quantize_embeddings(vectors, precision=precision, ranges=ranges)

    for vector, expected in zip(vectors, theirs, strict=True):
        ours = to_precision(vector, precision)
        assert isinstance(ours, np.ndarray) and ours.dtype == expected.dtype
        np.testing.assert_array_equal(ours, expected)


@pytest.mark.parametrize("size", [384, 13])
@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
async def test_our_own_route_answers_them_in_every_form(
    client: httpx.AsyncClient, address: str, precision: SmallPrecision, size: int
) -> None:
    """JSON, base64, a safetensors file, and our own client: those of the floats, and of spans."""
    inputs = ["All is well", {"text": "A dog ate the food", "spans": [[0, 5], [6, 18]]}]
    how = {"mode": "max", "normalize": True, "dimensions": size}
    plain = (await client.post("/v1/encode", json={"inputs": inputs, "pooled": how})).json()
    floats, spans = pooled(plain["data"], np.float32)
    ranges = np.array([[-range_end(size)] * size, [range_end(size)] * size], dtype=np.float32)
    expected, parts = (
        quantize_embeddings(some, precision=precision, ranges=ranges) for some in (floats, spans)
    )
    del how["normalize"]  # which a precision brings
    body = {"inputs": inputs, "pooled": {**how, "precision": precision}, "dtype": "float16"}

    numbers = (await client.post("/v1/encode", json=body)).json()["data"]
    for made, one in zip(pooled(numbers, expected.dtype), (expected, parts), strict=True):
        np.testing.assert_array_equal(made, one, strict=True)
    written = (await client.post("/v1/encode", json={**body, "encoding": "base64"})).json()
    for item, row in zip(written["data"], expected, strict=True):
        told = item["pooled"]
        assert (told["dtype"], told["shape"]) == (row.dtype.name, [*row.shape])
        assert base64.b64decode(told["data"]) == row.tobytes()
    as_file = {"accept": "application/vnd.safetensors"}
    file = load((await client.post("/v1/encode", json=body, headers=as_file)).content)
    for index, row in enumerate(expected):
        np.testing.assert_array_equal(file[f"{index}.pooled"], row, strict=True)
    np.testing.assert_array_equal(file["1.spans"], parts, strict=True)
    async with AsyncClient(address) as ours:
        encoded = await ours.encode(inputs, pooled=body["pooled"])
    assert encoded.pooled is not None
    np.testing.assert_array_equal(encoded.pooled, expected, strict=True)


def pooled(data: Any, dtype: Any) -> tuple[NDArray[Any], NDArray[Any]]:
    """The vectors of an answer's inputs, and of all their spans."""
    spans = [span["pooled"] for item in data for span in item.get("spans", ())]
    return np.array([item["pooled"] for item in data], dtype), np.array(spans, dtype)


@pytest.mark.parametrize("size", [64, 384, 1024])
def test_a_step_is_its_number_by_one_scale(size: int) -> None:
    """To half a step."""
    vectors, width = unit(size)[2:], 2 * range_end(size) / 255
    steps = np.array([to_precision(vector, "int8") for vector in vectors], dtype=np.float64)

    np.testing.assert_allclose((steps + 1) * width, vectors, rtol=0, atol=width * 0.5001)


def test_what_lies_beyond_the_bound_has_the_last_step() -> None:
    """It turns to nothing else, such as a number of the other sign."""
    vector = np.zeros(384, dtype=np.float32)
    vector[0], vector[1] = 0.8, -0.6

    assert to_precision(vector, "int8")[:2].tolist() == [127, -128]
    assert to_precision(vector, "uint8")[:2].tolist() == [255, 0]


def neighbours(likeness: NDArray[np.float64]) -> NDArray[np.int64]:
    """The ten most like each, without itself; of equal ones the first."""
    np.fill_diagonal(likeness, -np.inf)
    return np.argsort(-likeness, axis=1, kind="stable")[:, :10]


@pytest.mark.prove  # 420 sentences are encoded; their arithmetic is held above
async def test_the_page_says_what_is_lost(client: httpx.AsyncClient) -> None:
    """Neighbours of the bundled sentences by the bundled model, to half a percent."""
    texts = [*dict.fromkeys(one.text for one in sentences.read_bundled().sentences)]
    body = {"model": "all-MiniLM-L6-v2", "input": texts}
    told = (await client.post("/v1/embeddings", json=body)).json()["data"]
    floats = np.array([row["embedding"] for row in told], dtype=np.float32)

    def made(precision: Precision) -> NDArray[np.float64]:
        return np.array([to_precision(vector, precision) for vector in floats], dtype=np.float64)

    steps, positive = made("int8"), made("uint8")
    bits = np.unpackbits(made("ubinary").astype(np.uint8), axis=1) * 2.0 - 1
    calibrated = quantize_embeddings(floats, "int8").astype(np.float64)
    exact = floats.astype(np.float64)
    nearest = neighbours(exact @ exact.T)
    kept = [
        np.mean([len({*a} & {*b}) / 10 for a, b in zip(nearest, neighbours(found), strict=True)])
        for found in (
            steps @ steps.T,
            positive @ positive.T,
            (positive - 128) @ (positive - 128).T,
            *(bits @ bits.T, exact @ bits.T, calibrated @ calibrated.T),
        )
    ]

    section = PAGE.read_text().partition("## Smaller vectors")[2].partition("\n## ")[0]
    said = [float(share) / 100 for share in re.findall(r"([0-9.]+) %", section)]
    assert len(texts) == 420 and "420 sentences" in section
    np.testing.assert_allclose(said, [1, *kept], rtol=0, atol=0.005)
