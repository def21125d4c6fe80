"""Spans of a text through POST /v1/encode: one pass, a vector each."""

from functools import partial
from typing import Any

import httpx
import numpy as np
from safetensors.numpy import load

from service.pipeline.find.heads import locate_spans
from service.pipeline.replica import Replica
from service.shapes.side import PLACE_INPUTS
from service.shapes.spans import MOST_SPANS
from tests.conftest import application, connected, posted
from tests.service.api.exact_arrays import Array, array

TEXT = "Unbelievable headlights, and a dog ate the food because it was hungry."
SPANS = [[0, 24], [13, 30], [31, 70]]
FILE = "application/vnd.safetensors"


async def ask(client: httpx.AsyncClient, *inputs: Any, **fields: Any) -> list[dict[str, Any]]:
    """What POST /v1/encode answers to each input."""
    body = {"inputs": inputs, "encoding": "base64", **fields}
    return (await posted(client, "/v1/encode", body))["data"]


def pooled(told: dict[str, Any]) -> Array:
    """The vectors of an answer's spans, (spans, width)."""
    return np.stack([array(span["pooled"]) for span in told["spans"]])


def mean(vectors: Array) -> Array:
    """Of token vectors, scaled to length 1, by hand."""
    whole = vectors.astype(np.float64).mean(0)
    return whole / np.linalg.norm(whole)


async def test_a_span_is_pooled_over_its_own_tokens(client: httpx.AsyncClient) -> None:
    """As by hand from the token vectors of the whole text; the whole's vector stays the same."""
    (told,) = await ask(client, {"text": TEXT, "spans": SPANS}, tokens=True)
    (plain,) = await ask(client, TEXT)
    vectors = array(told["token_vectors"])

    assert [span["characters"] for span in told["spans"]] == SPANS
    for span, vector in zip(told["spans"], pooled(told), strict=True):
        first, last = span["tokens"]
        start, end = told["offsets"][first][0], told["offsets"][last - 1][1]
        assert span["extent"] == [start, end] == span["characters"]
        np.testing.assert_allclose(vector, mean(vectors[first:last]), rtol=0, atol=1e-6)
    assert told["pooled"] == plain["pooled"]


async def test_a_span_of_the_whole_text_has_all_but_special_tokens(
    client: httpx.AsyncClient,
) -> None:
    """The pooled vector of the text without them."""
    (told,) = await ask(client, {"text": TEXT, "spans": [[0, len(TEXT)]]}, tokens=True)

    assert told["spans"][0]["tokens"] == [1, len(told["tokens"]) - 1]
    expected = mean(array(told["token_vectors"])[1:-1])
    np.testing.assert_allclose(pooled(told)[0], expected, rtol=0, atol=1e-6)


async def test_an_edge_inside_a_token_takes_the_whole_token_and_says_so(
    client: httpx.AsyncClient,
) -> None:
    """So does an edge on a space, which has no token."""
    inside, exact = await ask(
        client, {"text": TEXT, "spans": [[2, 15]]}, {"text": TEXT, "spans": [[0, 23]]}
    )

    assert inside["spans"][0]["extent"] == [0, 23] != inside["spans"][0]["characters"]
    assert inside["spans"][0]["pooled"] == exact["spans"][0]["pooled"]


async def test_what_is_cut_off_belongs_to_no_span(client: httpx.AsyncClient) -> None:
    """A span that goes on behind the cut ends there, and says so; one behind it is refused."""
    long = "word " * 300
    (told,) = await ask(client, {"text": long, "spans": [[0, 1499]]}, truncate="right")
    body = {"inputs": [{"text": long, "spans": [[1450, 1499]]}], "truncate": "right"}
    refused = (await client.post("/v1/encode", json=body)).json()

    assert (told["truncated"], told["spans"][0]["extent"]) == (True, [0, 254 * 5 - 1])
    assert refused["code"] == "span_empty"
    assert refused["errors"][0]["loc"] == ["inputs", 0, "spans", 0]


async def test_spans_are_pooled_as_the_request_says(client: httpx.AsyncClient) -> None:
    """Mode, size and length; as the checkpoint does where no whole vector is asked for."""
    item = {"text": TEXT, "spans": SPANS}
    (own,) = await ask(client, item)
    (bare,) = await ask(client, item, pooled=False)
    how = {"mode": "max", "dimensions": 7, "normalize": False}
    (other,) = await ask(client, item, pooled=how, tokens=True)

    assert bare["spans"] == own["spans"] and "pooled" not in bare
    first, last = other["spans"][0]["tokens"]
    highest = array(other["token_vectors"])[first:last].max(0)[:7]
    np.testing.assert_array_equal(pooled(other)[0], highest)


async def test_a_batch_changes_no_span(client: httpx.AsyncClient) -> None:
    """To the bit; inputs without spans have none."""
    item = {"text": TEXT, "spans": SPANS}
    (alone,) = await ask(client, item)
    *_, among, without = await ask(client, "Yes", {"text": "No", "spans": [[0, 2]]}, item, TEXT)

    assert among == alone
    assert "spans" not in without


async def test_safetensors_and_the_price_count_spans(client: httpx.AsyncClient) -> None:
    """One array of all vectors of an input, and its bytes."""
    body = {"inputs": [{"text": TEXT, "spans": SPANS}], "pooled": False}
    (told,) = await ask(client, *body["inputs"], pooled=False)  # type: ignore[misc]
    file = load((await client.post("/v1/encode", json=body, headers={"accept": FILE})).content)
    dry = (await client.post("/v1/encode?dry_run=true", json=body)).json()

    np.testing.assert_array_equal(file["0.spans"], pooled(told))
    assert dry["answer_bytes"] == file["0.spans"].nbytes == 3 * 384 * 4


async def test_a_model_pooled_by_its_first_token_has_no_spans(
    client: httpx.AsyncClient,
) -> None:
    """But pools them as a request says."""
    body: dict[str, Any] = {"inputs": [{"text": TEXT, "spans": SPANS}], "pooled": {"mode": "cls"}}

    refused = (await client.post("/v1/encode", json=body)).json()

    assert (refused["code"], refused["errors"][0]["loc"]) == (
        "out_of_range",
        ["inputs", 0, "spans"],
    )
    assert '"mode": "mean"' in refused["detail"]


async def test_characters_count_in_the_text_behind_its_prompt(prompted: Replica) -> None:
    """A prompt's tokens belong to no span."""
    async with connected(application(prompted)) as client:
        item = {"text": "Yes, it is", "spans": [[0, 3], [5, 10]]}
        (named,) = await ask(client, item, prompt_name="query")
        (bare,) = await ask(client, item, prompt_name="document")

    words = [
        [told["tokens"][first:last] for first, last in (span["tokens"] for span in told["spans"])]
        for told in (named, bare)
    ]
    assert words[0] == words[1] == [["yes"], ["it", "is"]]
    assert named["spans"][0]["tokens"] != bare["spans"][0]["tokens"]


async def test_the_spans_of_all_inputs_are_bounded_together(client: httpx.AsyncClient) -> None:
    """Before any is looked for: the last would be refused for its end."""
    half = [[0, 1]] * (MOST_SPANS // 2)
    inputs = [{"text": "a", "spans": half}, {"text": "b", "spans": [*half, [0, 99]]}]

    refused = await client.post("/v1/encode", json={"inputs": inputs})

    assert (refused.status_code, refused.json()["code"]) == (422, "out_of_range")
    assert "2,049 spans, and the limit is 2,048" in refused.json()["detail"]


async def test_tokens_of_spans_count_as_often_as_a_span_has_them(
    client: httpx.AsyncClient,
) -> None:
    """A dry run refuses what would pool more tokens than a request may hold."""
    item = {"text": "a " * 250, "spans": [[0, 500]] * 1200}
    fits = await client.post("/v1/encode?dry_run=true", json={"inputs": [item]})
    more = {"inputs": [item, {"text": TEXT, "spans": [[0, 70]] * 3}]}

    refused = await client.post("/v1/encode?dry_run=true", json=more)

    assert fits.json()["admitted"] is True
    assert (refused.status_code, refused.json()["code"]) == (413, "too_many_tokens")
    assert "spans hold 300,042 tokens, and the limit is 300,000" in refused.json()["detail"]


async def test_a_span_has_the_tokens_that_a_look_at_each_finds(
    client: httpx.AsyncClient,
) -> None:
    """Every span of a text whose tokens touch, overlap, or stand for nothing."""
    text = "Café naïve 👩‍🚀 日本 un\u0301believable"
    (told,) = await ask(client, text, tokens=True)
    offsets, special = told["offsets"], told["special"]

    for first in range(len(text)):
        for last in range(first + 1, len(text) + 1):
            inside = [
                token
                for token, (start, end) in enumerate(offsets)
                if end > start and not special[token] and start < last and end > first
            ]
            if inside:
                (span,) = locate_spans(
                    [[first, last]], text, offsets, special, partial(PLACE_INPUTS, 0)
                )
                assert span.tokens == (inside[0], inside[-1] + 1)
