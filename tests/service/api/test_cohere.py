"""POST /v2/embed over HTTP: Cohere's fields, held to /v1/embeddings and sentence-transformers."""

import base64
import json
from types import SimpleNamespace
from typing import Any, get_args

import httpx
import numpy as np
import pytest
from sentence_transformers import SentenceTransformer

from service.api import cohere
from service.api.precisions import Precision, to_precision
from service.pipeline.replica import Replica
from service.pipeline.write.task_answers import short_numbers
from service.shapes.call import ModelFacts
from service.shapes.price import Price
from tests.conftest import posted
from tests.space_fields import (
    GIVEN,
    LONG_TEXT,
    Fields,
    Spaces,
    changes_form,
    changes_space,
    keeps_bits,
)

PRECISIONS = get_args(Precision)
COHERE: Fields = {
    "texts": GIVEN,
    "model": changes_space(model="m3:lora"),
    "input_type": changes_space(input_type="search_query"),
    "embedding_types": changes_form(embedding_types=["int8"]),
    "output_dimension": changes_space(output_dimension=8),
    "truncate": changes_space(truncate="START"),
    "max_tokens": changes_space(max_tokens=5),
    "priority": keeps_bits(priority=1),
    "images": keeps_bits(images=None),
}
PLAIN_BODY = {
    "input_type": "clustering",
    "model": "m3",
    "texts": [LONG_TEXT],
    "embedding_types": ["float"],
}
SPACE: Spaces = {"/v2/embed": (PLAIN_BODY, COHERE)}
NAME = "all-MiniLM-L6-v2"
TEXTS = ["All is well", "A dog ate the food because it was hungry"]
LONG = "well " * 300


async def embed(http: httpx.AsyncClient, **body: Any) -> dict[str, Any]:
    """An answer that must come."""
    asked = {"model": NAME, "input_type": "search_document", "texts": TEXTS, **body}
    return await posted(http, "/v2/embed", asked)


async def test_every_kind_is_made_of_one_pass(client: httpx.AsyncClient) -> None:
    """Of the vectors that OpenAI's route answers, in the order asked for."""
    told = await embed(client, embedding_types=PRECISIONS[::-1], output_dimension=24)
    body = {"model": NAME, "input": TEXTS, "dimensions": 24}
    plain = (await client.post("/v1/embeddings", json=body)).json()

    floats = [np.array(row["embedding"], dtype=np.float32) for row in plain["data"]]
    assert [*told["embeddings"]] == [*PRECISIONS[::-1]]
    for precision, rows in told["embeddings"].items():
        made = [to_precision(vector, precision) for vector in floats]
        assert rows == [one if isinstance(one, str) else short_numbers(one) for one in made]
    np.testing.assert_array_equal(
        np.frombuffer(base64.b64decode(told["embeddings"]["base64"][0]), "<f4"), floats[0]
    )
    tokens = plain["usage"]["total_tokens"]
    assert told["meta"]["billed_units"] == {"input_tokens": tokens}
    assert told["texts"] == TEXTS and told["response_type"] == "embeddings_by_type"


async def test_floats_are_the_default(client: httpx.AsyncClient) -> None:
    """All numbers of a vector, of length 1; each answer has an id of its own."""
    one, other = await embed(client), await embed(client, priority=5)

    assert [*one["embeddings"]] == ["float"]
    np.testing.assert_allclose(np.linalg.norm(one["embeddings"]["float"], axis=1), 1, rtol=1e-6)
    assert len(one["embeddings"]["float"][0]) == 384
    assert one["embeddings"] == other["embeddings"] and one["id"] != other["id"]


@pytest.mark.parametrize(
    ("input_type", "prompt"),
    [
        ("search_query", "query"),
        ("search_document", "document"),
        ("classification", None),
        ("clustering", None),
    ],
)
async def test_the_type_of_an_input_chooses_the_prompt(
    prompted_peer: SentenceTransformer,
    prompted: Replica,
    prompted_http: httpx.AsyncClient,
    input_type: str,
    prompt: str | None,
) -> None:
    """As encode_query and encode_document do; the default where there is none for it."""
    told = await embed(prompted_http, model=prompted.name, input_type=input_type)

    expected = prompted_peer.encode(TEXTS, prompt_name=prompt, normalize_embeddings=True)
    np.testing.assert_allclose(told["embeddings"]["float"], expected, rtol=0, atol=1e-5)


@pytest.mark.parametrize(
    ("input_type", "prompts", "chosen"),
    [
        ("search_query", ["document", "query"], "query"),
        ("search_document", ["corpus", "passage", "document"], "document"),
        ("search_document", ["corpus", "passage", "query"], "passage"),
        ("search_document", ["corpus", "query"], "corpus"),
        ("classification", ["classification", "clustering"], "classification"),
        ("clustering", ["classification", "clustering"], "clustering"),
        ("clustering", ["query", "document"], None),
        ("clustering", ["Classification", "Clustering", "STS"], "Clustering"),
        ("search_query", ["Query", "query"], "query"),
        ("search_document", ["Passage", "Query"], "Passage"),
    ],
)
async def test_the_first_prompt_for_a_type_is_chosen(
    input_type: str, prompts: list[str], chosen: str | None
) -> None:
    """In sentence-transformers' order; without one the checkpoint's default stays."""
    body = {"model": NAME, "input_type": input_type, "texts": TEXTS}
    sent: Any = SimpleNamespace(ignored={})  # nothing of a request but its body is read
    served = ModelFacts(NAME, ["encode"], 6, 1 << 20, 9, prompts)

    assert cohere.parse(json.dumps(body).encode(), sent, served).request.prompt_name == chosen


async def test_a_long_text_is_cut_where_the_request_says(client: httpx.AsyncClient) -> None:
    """At its end by default; max_tokens counts its own tokens."""
    start = "A dog ate it. "
    texts = [start + LONG, LONG + start]
    end = (await embed(client, texts=texts))["embeddings"]["float"]
    left = (await embed(client, texts=texts, truncate="START"))["embeddings"]["float"]
    few = (await embed(client, texts=[start + LONG], max_tokens=4))["embeddings"]["float"]
    lone = (await embed(client, texts=["A dog ate it"]))["embeddings"]["float"]

    (well,) = (await embed(client, texts=[LONG]))["embeddings"]["float"]
    assert end[1] == left[0] == well
    assert end[0] != well != left[1]
    assert few == lone


BAD: dict[str, tuple[dict[str, Any], int, str, str]] = {
    "no type": ({"input_type": None}, 422, "missing_field", "input_type: "),
    "a picture": ({"input_type": "image"}, 422, "out_of_range", "input_type: "),
    "pictures": ({"images": ["data:"]}, 422, "invalid_type", "images: "),
    "no text": ({"texts": []}, 422, "batch_empty", "texts: "),
    "an empty text": ({"texts": ["a", ""]}, 422, "sequence_empty", "texts[1]"),
    "an empty text of few tokens": (
        {"texts": ["a", ""], "max_tokens": 3},
        *(422, "sequence_empty", "texts[1]"),
    ),
    "a long text": ({"texts": [LONG], "truncate": "NONE"}, 422, "sequence_too_long", "texts[0]"),
    "no kind": ({"embedding_types": []}, 422, "out_of_range", "embedding_types: "),
    "a kind twice": (
        {"embedding_types": ["int8", "int8"]},
        *(422, "out_of_range", "embedding_types: "),
    ),
    "an unknown kind": ({"embedding_types": ["int4"]}, 422, "out_of_range", "embedding_types[0]"),
    "many dimensions": ({"output_dimension": 385}, 422, "out_of_range", "output_dimension: "),
    "first tokens of an end": (
        {"max_tokens": 3, "truncate": "START"},
        *(422, "out_of_range", "max_tokens: "),
    ),
    "another model": ({"model": "embed-v4.0"}, 404, "model_not_found", "model: "),
}


@pytest.mark.parametrize(("body", "status", "code", "said"), BAD.values(), ids=BAD)
async def test_a_refusal_has_the_shape_that_its_clients_read(
    client: httpx.AsyncClient, body: dict[str, Any], status: int, code: str, said: str
) -> None:
    """With the place in the request as it was sent."""
    asked = {"model": NAME, "input_type": "search_document", "texts": TEXTS, **body}
    answer = await client.post("/v2/embed", json=asked)

    told = answer.json()
    assert (answer.status_code, told["code"]) == (status, code)
    assert told["message"] == told["detail"] and said in told["message"]


KINDS: list[list[str]] = [*([one] for one in PRECISIONS), ["int8", "base64"], [*PRECISIONS]]


@pytest.mark.parametrize("kinds", KINDS, ids="+".join)
async def test_an_answer_is_priced_as_what_is_written_in_all_kinds(
    client: httpx.AsyncClient, kinds: list[str]
) -> None:
    """And with its texts, which come back."""
    texts = ["well " * 60, *TEXTS] * 5
    body = {"model": NAME, "input_type": "search_document", "texts": texts}
    sent = json.dumps({**body, "embedding_types": kinds}).encode()
    headers: dict[str, str] = {"content-type": "application/json"}
    unread: Any = SimpleNamespace(ignored={})  # nothing of a request but its body is read
    served = ModelFacts(NAME, ["encode"], 6, 1 << 20, 15, {})

    answer = await client.post("/v2/embed", content=sent, headers=headers)
    custom = cohere.parse(sent, unread, served).custom
    priced = Price({"pooled": 4 * 384 * len(texts)}, custom.layout).written

    assert 0.9 <= priced / len(answer.content) <= 1.1
