"""A text without a token of its own is encoded, and told: all such texts are encoded alike."""

from typing import Any

import httpx
import numpy as np
import pytest

from tests.service.api.exact_arrays import pooled

NAME = "all-MiniLM-L6-v2"
BLANKS = ["  ", "\u3000\n", "\u200b"]  # spaces, wide ones, and one without a width
SAID = "blank texts, which have no tokens of their own, are encoded alike"
# by path, a request to encode texts
ROUTES: dict[str, Any] = {
    "/v1/encode": lambda texts: {"inputs": texts},
    "/v1/embeddings": lambda texts: {"model": NAME, "input": texts},
    "/embed": lambda texts: {"inputs": texts},
    "/v2/embed": lambda texts: {
        "model": NAME,
        "texts": texts,
        "input_type": "search_document",
        "embedding_types": ["float"],
    },
}


@pytest.mark.parametrize("path", ROUTES)
@pytest.mark.parametrize("blank", BLANKS, ids=ascii)
async def test_a_blank_text_is_told_in_a_header(
    client: httpx.AsyncClient, path: str, blank: str
) -> None:
    """On routes of other APIs too; where there is none, nothing is said."""
    asked = ROUTES[path]
    blank_told, told = [
        await client.post(path, json=asked(texts)) for texts in (["a dog", blank], ["a dog"])
    ]

    assert (blank_told.status_code, told.status_code) == (200, 200)
    assert blank_told.headers["x-headlight-warning"] == SAID
    assert "x-headlight-warning" not in told.headers


async def test_blank_texts_are_counted_and_equal(client: httpx.AsyncClient) -> None:
    """Which is why it matters: the empty cells of a corpus would all be near each other."""
    vectors = await pooled(client, BLANKS)
    told = (await client.post("/v1/encode", json={"inputs": ["a dog", *BLANKS]})).json()
    none = (await client.post("/v1/encode", json={"inputs": ["a dog"]})).json()

    np.testing.assert_array_equal(vectors, np.broadcast_to(vectors[0], vectors.shape))
    assert told["usage"]["blank"] == len(BLANKS) and "blank" not in none["usage"]


async def test_one_header_says_all_that_is_odd(client: httpx.AsyncClient) -> None:
    """Blank texts, and ids of another vocabulary."""
    answer = await client.post("/v1/encode", json={"inputs": [" ", {"token_ids": [2460, 374]}]})

    said = f"{SAID}; ids without this model's special tokens"
    assert answer.headers["x-headlight-warning"] == said
