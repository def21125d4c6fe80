"""A prompt by its name, or the checkpoint's default, before the texts of a native request."""

from typing import Any

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from tests.conftest import posted
from tests.task_heads import MOST

WELL = "All is well"


async def encode(client: httpx.AsyncClient, **asked: Any) -> dict[str, Any]:
    """One input's answer to a request that must succeed."""
    return (await posted(client, "/v1/encode", asked))["data"][0]


@pytest.mark.parametrize("name", ["query", "document", "passage", None])
async def test_a_prompt_is_the_one_of_sentence_transformers(
    prompted_peer: SentenceTransformer, prompted_http: httpx.AsyncClient, name: str | None
) -> None:
    """By its name; without one the default, as encode() there has it."""
    told = await encode(prompted_http, inputs=[WELL], prompt_name=name)

    expected = prompted_peer.encode(WELL, prompt_name=name)
    np.testing.assert_allclose(told["pooled"], expected, rtol=0, atol=1e-5)


async def test_offsets_and_words_count_in_the_given_text(prompted_http: httpx.AsyncClient) -> None:
    """The prompt's tokens are shown, and stand nowhere in it."""
    told = await encode(prompted_http, inputs=[WELL], prompt_name="query", tokens=True)

    assert told["tokens"][1:-1] == ["search", "for", ":", "all", "is", "well"]
    assert told["offsets"][1:-1] == [[0, 0]] * 3 + [[0, 3], [4, 6], [7, 11]]
    assert told["words"] == [None, None, None, None, 0, 1, 2, None]
    assert told["length"] == len(told["token_vectors"]) == 8
    assert told["special"] == [True, *[False] * 6, True]


async def test_attention_of_words_shows_a_prompt_as_one(prompted_http: httpx.AsyncClient) -> None:
    """Next to the text's own words; every row still sums to 1."""
    asked = {"level": "word", "layers": [0], "heads": [2]}

    told = await encode(prompted_http, inputs=[WELL], prompt_name="query", attention=asked)

    attention = told["attention"]
    rows = np.array(attention["maps"]["0"]["2"])
    assert attention["spans"] == [[0, 1], [1, 4], [4, 5], [5, 6], [6, 7], [7, 8]]
    assert rows.shape == (6, 6)
    np.testing.assert_allclose(rows.sum(1), 1, atol=1e-5)


async def test_the_default_is_for_texts_alone(prompted_http: httpx.AsyncClient) -> None:
    """Token ids are used as given, next to a text that has it."""
    ids = {"token_ids": [101, 2035, 102]}

    answer = await prompted_http.post("/v1/encode", json={"inputs": [ids, WELL], "tokens": True})

    assert [item["length"] for item in answer.json()["data"]] == [3, 8]


async def test_a_prompt_counts_towards_the_longest_sequence(
    prompted_http: httpx.AsyncClient,
) -> None:
    """Refused with the length of both together."""
    asked = {"inputs": ["well " * 33], "prompt_name": "query"}

    answer = await prompted_http.post("/v1/encode", json=asked)

    told = answer.json()
    assert (told["code"], told["length"], told["limit"]) == ("sequence_too_long", 38, MOST)


async def test_an_unknown_name_is_refused_with_those_there_are(
    prompted_http: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """Of a checkpoint without prompts, every name."""
    asked = {"inputs": [WELL], "prompt_name": "q"}

    known = await prompted_http.post("/v1/encode", json=asked)
    none = await http.post("/v1/encode", json=asked)

    assert known.status_code == none.status_code == 422
    assert known.json()["code"] == none.json()["code"] == "prompt_not_found"
    assert known.json()["errors"] == [{"loc": ["prompt_name"], "code": "prompt_not_found"}]
    assert (known.json()["prompts"], none.json()["prompts"]) == (
        ["document", "passage", "query"],
        [],
    )


async def test_a_name_before_what_is_no_text_is_refused(prompted_http: httpx.AsyncClient) -> None:
    """It says which input."""
    asked = {"inputs": [WELL, {"token_ids": [101, 102]}], "prompt_name": "query"}

    told = (await prompted_http.post("/v1/encode", json=asked)).json()

    assert told["code"] == "prompt_without_text"
    assert told["errors"][0]["loc"] == ["inputs", 1]


async def test_info_names_the_prompts_and_the_default(
    prompted_http: httpx.AsyncClient, http: httpx.AsyncClient
) -> None:
    """A checkpoint without any has no names."""
    told, none = (await prompted_http.get("/info")).json(), (await http.get("/info")).json()

    assert told["prompts"] == ["document", "passage", "query"]
    assert told["default_prompt_name"] == "query"
    assert (none["prompts"], none["default_prompt_name"]) == ([], None)
