"""POST /v1/encode with a safetensors file."""

import base64
import json
from typing import Any

import httpx
import numpy as np
import pytest
from numpy.typing import NDArray
from safetensors.numpy import load, save

from service.encode.answer import SAFETENSORS

pytestmark = pytest.mark.asyncio(loop_scope="session")

Array = NDArray[Any]

WIDTH = 384
VECTORS = np.random.default_rng(7).normal(size=(5, WIDTH)).astype(np.float32)
IDS = np.array([101, 2035, 2003, 2092, 102])
NAMED = {"inputs": [{"embeddings": {"tensor": "a"}}]}
HEADERS = {"content-type": SAFETENSORS}


def file(asked: Any, **tensors: Array) -> bytes:
    """A request as a file."""
    return save(tensors, metadata={"headlight": json.dumps(asked)})


async def post(client: httpx.AsyncClient, body: bytes, path: str = "/v1/encode") -> httpx.Response:
    """Send a file."""
    return await client.post(path, content=body, headers=HEADERS)


@pytest.mark.parametrize("kind", [np.float32, np.float16])
async def test_embeddings_come_as_a_tensor(client: httpx.AsyncClient, kind: type) -> None:
    """Bit for bit what the same numbers give in base64."""
    vectors = VECTORS.astype(kind)
    data = base64.b64encode(vectors.tobytes()).decode()
    same = {"shape": vectors.shape, "dtype": vectors.dtype.name, "data": data}
    more = {"encoding": "base64", "tokens": True}

    answer = await post(client, file({**NAMED, **more}, a=vectors))
    ours = await client.post("/v1/encode", json={"inputs": [{"embeddings": same}], **more})

    assert answer.status_code == 200, answer.text
    assert answer.json()["data"] == ours.json()["data"]


@pytest.mark.parametrize("kind", [np.int64, np.int32])
async def test_token_ids_and_types_come_as_tensors(client: httpx.AsyncClient, kind: type) -> None:
    """Next to inputs that need no tensor, in the order given."""
    types = np.array([0, 0, 0, 1, 1])
    named = {"token_ids": {"tensor": "ids"}, "token_type_ids": {"tensor": "types"}}
    same = {"token_ids": IDS.tolist(), "token_type_ids": types.tolist()}

    body = file({"inputs": ["a", named]}, ids=IDS.astype(kind), types=types.astype(kind))
    answer = await post(client, body)
    ours = await client.post("/v1/encode", json={"inputs": ["a", same]})

    assert answer.status_code == 200, answer.text
    assert answer.json()["data"] == ours.json()["data"]


async def test_a_file_is_answered_by_a_file(client: httpx.AsyncClient) -> None:
    """Where the client accepts one."""
    headers = {**HEADERS, "accept": SAFETENSORS}

    answer = await client.post("/v1/encode", content=file(NAMED, a=VECTORS), headers=headers)

    assert load(answer.content)["0.pooled"].shape == (WIDTH,)


async def test_a_file_may_be_larger_than_json(client: httpx.AsyncClient) -> None:
    """20 sequences of 256 tokens, 7.5 MiB."""
    tensors = {f"t{index}": np.ones((256, WIDTH), np.float32) for index in range(20)}
    asked = {"inputs": [{"embeddings": {"tensor": name}} for name in tensors]}

    answer = await post(client, file(asked, **tensors))

    assert answer.status_code == 200, answer.text
    assert answer.json()["usage"]["tokens"] == 20 * 256


async def test_a_file_may_be_priced(client: httpx.AsyncClient) -> None:
    """A dry run reads it and computes nothing."""
    told = (await post(client, file(NAMED, a=VECTORS), "/v1/encode?dry_run=true")).json()

    assert (told["tokens"], told["admitted"]) == (5, True)


def header(text: bytes, data: bytes = b"") -> bytes:
    """A file with this header."""
    return len(text).to_bytes(8, "little") + text + data


WHOLE = file(NAMED, a=VECTORS)
BAD: dict[str, tuple[bytes, int, str, list[Any]]] = {
    "nothing": (b"", 400, "invalid_safetensors", []),
    "JSON": (b'{"inputs":["a"]}', 400, "invalid_safetensors", []),
    "cut short": (WHOLE[:-1], 400, "invalid_safetensors", []),
    "a byte more": (WHOLE + b"\0", 400, "invalid_safetensors", []),
    "header past the end": (b"\xff" * 8 + WHOLE[8:], 400, "invalid_safetensors", []),
    "overflowing shape": (
        header(b'{"a":{"dtype":"F32","shape":[4294967296,4294967296],"data_offsets":[0,0]}}'),
        400,
        "invalid_safetensors",
        [],
    ),
    "rows of nothing": (
        header(
            b'{"__metadata__":{"headlight":"{\\"inputs\\":[{\\"embeddings\\":{\\"tensor\\":\\"a\\"}}]}"},'
            b'"a":{"dtype":"F32","shape":[1000000000000000000,0],"data_offsets":[0,0]}}'
        ),
        422,
        "shape_mismatch",
        ["inputs", 0, "embeddings"],
    ),
    "no ids": (
        file({"inputs": [{"token_ids": {"tensor": "a"}}]}, a=IDS[:0]),
        422,
        "sequence_empty",
        ["inputs", 0, "token_ids"],
    ),
    "large header": (header(b"{" + b" " * 2**21 + b"}", b"\0"), 413, "body_too_large", []),
    "no metadata": (save({"a": VECTORS}), 422, "missing_field", ["__metadata__", "headlight"]),
    "no JSON": (save({}, metadata={"headlight": "{"}), 400, "invalid_json", []),
    "JSON of no object": (save({}, metadata={"headlight": "[]"}), 422, "invalid_type", []),
    "no inputs": (file({}), 422, "missing_field", ["inputs"]),
    "unknown field": (file({"inputs": ["a"], "pool": 1}), 422, "unknown_field", []),
    "unknown tensor": (file(NAMED, b=VECTORS), 422, "tensor_unknown", ["inputs", 0, "embeddings"]),
    "named twice": (
        file({"inputs": NAMED["inputs"] * 2}, a=VECTORS),
        422,
        "tensor_unknown",
        ["inputs", 1, "embeddings"],
    ),
    "tensor of no name": (
        file({"inputs": [{"embeddings": {"tensor": 1}}]}, a=VECTORS),
        422,
        "invalid_type",
        ["inputs", 0, "embeddings"],
    ),
    "more than a name": (
        file({"inputs": [{"embeddings": {"tensor": "a", "dtype": "float32"}}]}, a=VECTORS),
        422,
        "unknown_field",
        ["inputs", 0, "embeddings"],
    ),
    "unnamed tensor": (file(NAMED, a=VECTORS, b=IDS), 422, "tensor_unused", []),
    "float64": (file(NAMED, a=VECTORS.astype("f8")), 422, "invalid_type", [0, "embeddings"]),
    "ids as floats": (
        file({"inputs": [{"token_ids": {"tensor": "a"}}]}, a=VECTORS[0]),
        422,
        "invalid_type",
        ["inputs", 0, "token_ids"],
    ),
    "ids by row": (
        file({"inputs": [{"token_ids": {"tensor": "a"}}]}, a=IDS[None]),
        422,
        "shape_mismatch",
        ["inputs", 0, "token_ids"],
    ),
    "one axis": (file(NAMED, a=VECTORS[0]), 422, "shape_mismatch", ["inputs", 0, "embeddings"]),
    "narrow": (file(NAMED, a=VECTORS[:, :7]), 422, "shape_mismatch", ["inputs", 0, "embeddings"]),
    "no rows": (file(NAMED, a=VECTORS[:0]), 422, "sequence_empty", ["inputs", 0, "embeddings"]),
    "NaN": (file(NAMED, a=VECTORS * np.nan), 422, "non_finite", ["inputs", 0, "embeddings"]),
    "id past the table": (
        file({"inputs": [{"token_ids": {"tensor": "a"}}]}, a=IDS * 99_999),
        422,
        "token_out_of_range",
        ["inputs", 0, "token_ids"],
    ),
    "two kinds": (
        file({"inputs": [{"text": "a", "embeddings": {"tensor": "a"}}]}, a=VECTORS),
        422,
        "exactly_one_input",
        ["inputs", 0],
    ),
}


@pytest.mark.parametrize(("body", "status", "code", "loc"), BAD.values(), ids=BAD)
async def test_a_file_that_is_not_what_it_says_is_refused(
    client: httpx.AsyncClient, body: bytes, status: int, code: str, loc: list[Any]
) -> None:
    """The place is the input's."""
    answer = await post(client, body)

    problem = answer.json()
    assert (answer.status_code, problem["code"]) == (status, code)
    if loc:
        assert problem["errors"][0]["loc"][-len(loc) :] == loc


@pytest.mark.parametrize("coding", ["gzip", "zstd"])
async def test_a_compressed_file_is_refused(client: httpx.AsyncClient, coding: str) -> None:
    """415: nothing here inflates what a client sent."""
    headers = {**HEADERS, "content-encoding": coding}

    answer = await client.post("/v1/encode", content=WHOLE, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_encoding")


@pytest.mark.parametrize("path", ["/v1/attend", "/v1/explain"])
async def test_the_other_routes_read_no_file(client: httpx.AsyncClient, path: str) -> None:
    """Only inputs of an encoding can be tensors."""
    answer = await post(client, WHOLE, path)

    assert (answer.status_code, answer.json()["code"]) == (415, "unsupported_media_type")
