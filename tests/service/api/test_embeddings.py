"""What clients of other APIs send to POST /v1/embeddings: numbers, lengths, prompts and cuts."""

import base64
from typing import Any

import httpx
import numpy as np
import pytest

from service.api.inputs import MOST_PROMPT_CHARACTERS

TEXTS = ["All is well", "A dog ate the food because it was hungry"]
SPACE_HEADER = "x-headlight-space"
DTYPES = {"int8": "i1", "uint8": "u1", "binary": "i1", "ubinary": "u1", "float": "<f4"}


async def embed(http: httpx.AsyncClient, **body: Any) -> list[Any]:
    """The vectors of an answer that must come, each as it is written."""
    answer = await http.post("/v1/embeddings", json={"input": TEXTS, **body})
    assert answer.status_code == 200, answer.text
    return [row["embedding"] for row in answer.json()["data"]]


async def refused(http: httpx.AsyncClient, **body: Any) -> tuple[str, str]:
    """The field that a refusal names, and the code."""
    answer = await http.post("/v1/embeddings", json={"input": TEXTS, **body})
    assert answer.status_code == 400, answer.text
    return answer.json()["error"]["param"], answer.json()["error"]["code"]


@pytest.mark.parametrize("dtype", DTYPES)
async def test_output_dtype_is_the_kind_of_numbers(client: httpx.AsyncClient, dtype: str) -> None:
    """As JSON, or their own bytes as base64; the numbers are those of `encoding_format`."""
    expected = await embed(client, encoding_format=dtype, dimensions=13)
    numbers = await embed(client, output_dtype=dtype, output_dimension=13, encoding_format="float")
    packed = await embed(client, output_dtype=dtype, dimensions=13, encoding_format="base64")

    assert numbers == expected == await embed(client, embedding_types=[dtype], dimensions=13)
    read = [np.frombuffer(base64.b64decode(one), DTYPES[dtype]) for one in packed]
    np.testing.assert_array_equal(read, np.array(expected, DTYPES[dtype]))


async def test_two_kinds_of_numbers_are_refused(client: httpx.AsyncClient) -> None:
    """By two fields, in a list, and as steps of vectors of any length."""
    two = {"output_dtype": "int8", "encoding_format": "uint8"}
    steps = {"output_dtype": "int8", "embd_normalize": -1}

    assert await refused(client, **two) == ("output_dtype", "out_of_range")
    assert await refused(client, output_dtype="float", encoding_format="int8") == (
        *("output_dtype", "out_of_range"),
    )
    assert (await refused(client, embedding_types=["float", "int8"]))[0] == "encoding_format"
    assert await refused(client, **steps) == ("normalized", "out_of_range")


async def test_embd_normalize_is_a_vectors_length(client: httpx.AsyncClient) -> None:
    """llama.cpp's 2 and -1; its other lengths are refused, and so are two fields that disagree."""
    assert await embed(client, embd_normalize=2) == await embed(client)
    assert await embed(client, embd_normalize=-1) == await embed(client, normalized=False)
    assert await embed(client, embd_normalize=-1, normalized=False) != await embed(client)
    for body in ({"embd_normalize": 0}, {"embd_normalize": 2, "normalized": False}):
        assert await refused(client, **body) == ("embd_normalize", "out_of_range")


@pytest.mark.parametrize("name", ["prompt", "prefix", "instruction"])
async def test_a_prompt_of_the_requests_own_goes_before_each_text(
    client: httpx.AsyncClient, name: str
) -> None:
    """The vectors are those of the texts given whole, and of a space of their own."""
    whole = await embed(client, input=[f"query: {text}" for text in TEXTS])
    assert await embed(client, **{name: "query: "}) == whole != await embed(client)

    bodies = [{}, {name: "query: "}, {name: "passage: "}, {name: ""}]
    answers = [await client.post("/v1/embeddings", json={"input": "a", **one}) for one in bodies]
    spaces = [answer.headers[SPACE_HEADER] for answer in answers]
    assert len({*spaces}) == 3 and spaces[0] == spaces[3]


async def test_it_stands_in_place_of_the_checkpoints_prompts(
    prompted_http: httpx.AsyncClient,
) -> None:
    """Of its default too; next to one that the request chooses it is refused."""
    assert await embed(prompted_http, prompt="pre") == await embed(
        prompted_http, prompt_name="passage"
    )
    assert await embed(prompted_http, prompt="") == await embed(
        prompted_http, prompt_name="document"
    )
    for other in ({"prompt_name": "query"}, {"input_type": "query"}, {"task": "query"}):
        assert await refused(prompted_http, prompt="a", **other) == ("prompt", "out_of_range")


async def test_a_prompt_goes_with_texts_and_has_a_longest_length(client: httpx.AsyncClient) -> None:
    """The more texts, the fewer characters: all of them are read with it."""
    assert await refused(client, prompt="a", input=[[101, 102]]) == (
        *("input", "prompt_without_text"),
    )
    assert await refused(client, prompt="a" * (MOST_PROMPT_CHARACTERS + 1)) == (
        *("prompt", "text_too_long"),
    )
    assert await refused(client, prompt="a" * 1025, input=["a"] * 2048) == (
        *("prompt", "text_too_long"),
    )


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [
        ({"truncation": True}, "right"),  # Voyage's
        ({"truncate": "END"}, "right"),  # NIM's
        ({"truncate": "START"}, "left"),
    ],
)
async def test_a_cut_is_each_apis_own(
    client: httpx.AsyncClient, theirs: dict[str, Any], ours: str
) -> None:
    """Where it is one."""
    long = ["it begins " + "well " * 300 + "so it ends"]
    cuts = [await embed(client, input=long, truncate=side) for side in ("right", "left")]

    assert await embed(client, input=long, **theirs) == cuts[ours == "left"] != cuts[ours != "left"]


@pytest.mark.parametrize("theirs", [{"truncation": False}, {"truncate": "NONE"}])
async def test_a_text_is_refused_where_an_api_says_so(served: Any, theirs: dict[str, Any]) -> None:
    """Also of a service that cuts otherwise."""
    async with served(truncate="right") as client:
        told = await refused(client, input="well " * 300, **theirs)

    assert told == ("input", "context_length_exceeded")
