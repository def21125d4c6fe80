"""What clients of other APIs send without meaning anything by it changes nothing and is named."""

import asyncio
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import orjson
import pytest
from openai import OpenAI

from service.api import ROUTES
from service.tables.wording.wire import IGNORED, WARNING
from tests.service.api.exact_arrays import pooled

NAME = "all-MiniLM-L6-v2"
TEXTS = ["All is well", "A dog ate the food because it was hungry"]
ROWS = {
    path.replace("{model}", NAME): [row for row in ROUTES if row.path == path and row.foreign]
    for path in dict.fromkeys(row.path for row in ROUTES if row.foreign)
}
LONG = "well " * 300 + "the end"
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["All is well"]}
IDS, CL100K = [101, 2035, 2003, 2092, 102], [2460, 374, 1664]  # All is well


def example(path: str) -> dict[str, Any]:
    """A request that the route answers, or refuses for want of a head."""
    asked: dict[str, Any] = ROWS[path][0].examples[0].value
    return {"inputs": [TENSOR]} if "/infer" in path else asked


def nulls(path: str, asked: dict[str, Any]) -> dict[str, None]:
    """Every field that a request leaves out, as null."""
    missing = {"documents": "texts", "texts": "documents"}  # of one route, either
    return {
        name: None
        for row in ROWS[path]
        for name in row.request.named_fields()
        if name not in asked and missing.get(name) not in asked
    }


@pytest.mark.parametrize("path", ROWS)
async def test_null_is_left_out_and_an_unknown_field_is_ignored_and_named(
    client: httpx.AsyncClient, path: str
) -> None:
    """On every route of another API, with every status."""
    path, asked = path.replace("{version}", "1"), example(path)
    plain = await client.post(path, json=asked)
    more = {**nulls(path.replace("versions/1", "versions/{version}"), asked), "foo": None}
    told = await client.post(path, json={**asked, **more, "drop_params": True, "return_len": "1"})

    assert plain.status_code in (200, 404) and IGNORED not in plain.headers
    assert told.status_code == plain.status_code, told.text
    assert told.headers[IGNORED] == "drop_params, return_len"
    bodies = [orjson.loads(answer.content) for answer in (plain, told)]
    for body in bodies:
        if isinstance(body, dict):
            body.pop("id", None)  # of each answer its own
    assert bodies[0] == bodies[1]


async def test_no_client_writes_our_headers(client: httpx.AsyncClient) -> None:
    """Eight names at most, of few characters; of the others, the count."""
    strange = ["a\r\nx-own: 1", "", "é", "a, b", "x" * 65]
    some = [f"Field_{index}.of-theirs" for index in range(9)]
    for names, told in (
        (strange, "+5"),
        ([*some[:2], *strange], f"{some[0]}, {some[1]}, +5"),
        ([*strange, *some], f"{', '.join(some[:8])}, +6"),
    ):
        answer = await client.post("/embed", json={"inputs": TEXTS, **dict.fromkeys(names, 1)})
        assert answer.headers[IGNORED] == told
        assert "x-own" not in answer.headers


async def test_a_field_within_a_field_is_ignored_and_named_once(client: httpx.AsyncClient) -> None:
    """However many documents have it."""
    document = {"text": "All is well", "title": "a"}
    answer = await client.post("/v1/embeddings", json={"model": NAME, "input": [document] * 3})

    assert answer.status_code == 200 and answer.headers[IGNORED] == "title"


async def test_a_refusal_names_what_was_ignored_too(client: httpx.AsyncClient) -> None:
    """What is required is missing where it is null."""
    answer = await client.post("/v1/embeddings", json={"input": None, "drop_params": True})

    assert answer.json()["error"]["code"] == "missing_field"
    assert answer.headers[IGNORED] == "drop_params"


@pytest.mark.parametrize(
    ("path", "asked", "more"),
    [
        ("/embed", {"inputs": TEXTS}, {"normalize": False, "dimensions": 7}),
        ("/", {"inputs": TEXTS}, {"normalize": "false"}),
        (
            "/embed_all",
            {"inputs": LONG},
            {"truncate": True, "truncation_direction": "left"},
        ),
        ("/tokenize", {"inputs": "a"}, {"add_special_tokens": False}),
        ("/decode", {"ids": [101, 2035, 102]}, {"skip_special_tokens": False}),
        (
            "/similarity",
            {"inputs": {"source_sentence": LONG, "sentences": TEXTS}},
            {"truncate": True, "truncation_direction": "Left"},
        ),
    ],
)
async def test_parameters_are_fields_of_the_body(
    client: httpx.AsyncClient, path: str, asked: dict[str, Any], more: dict[str, Any]
) -> None:
    """As Hugging Face's clients send them; with an unknown one, which is named."""
    plain = await client.post(path, json=asked)
    told = await client.post(path, json={**asked, "parameters": {**more, "wait": 1}})
    same = await client.post(path, json={**asked, **more, "parameters": more})

    assert told.status_code == 200, told.text
    assert told.content == same.content != plain.content
    assert told.headers[IGNORED] == "wait" and IGNORED not in same.headers


@pytest.mark.parametrize(
    "twice",
    [
        {"parameters": {"normalized": False}, "normalized": True},
        {"embedding_type": "float", "encoding_format": "base64"},
        {"embedding_type": "float", "encoding_type": "binary"},
        {"normalize": True, "normalized": 1},
        {"dimensions": 0, "output_dimension": False},
        {"dimensions": 7, "output_dimension": ""},
    ],
)
async def test_what_is_given_twice_must_be_the_same(
    client: httpx.AsyncClient, twice: dict[str, Any]
) -> None:
    """Under two names, or in `parameters` too: one of both would be ignored."""
    answer = await client.post("/v1/embeddings", json={"input": TEXTS, **twice})

    told = answer.json()["error"]
    assert (answer.status_code, told["code"]) == (400, "out_of_range")
    assert "is given twice" in told["message"]


@pytest.mark.parametrize("literal", ["NaN", "Infinity", "-Infinity", "1e999"])
@pytest.mark.parametrize("twice", ["", '"output_dimension": %s, '])
async def test_a_number_that_is_none_is_named_as_such(
    client: httpx.AsyncClient, literal: str, twice: str
) -> None:
    """NaN, which differs from itself, is not taken for two values of one field."""
    body = f'{{"input": "a", {twice.replace("%s", literal)}"dimensions": {literal}}}'
    answer = await client.post(
        "/v1/embeddings", content=body, headers={"content-type": "application/json"}
    )

    expected = "dimensions: expected an integer or null, received NaN or infinity."
    assert answer.json()["error"]["message"].endswith(expected)


@pytest.mark.parametrize(
    ("path", "field", "value"),
    [
        ("/v1/embeddings", "late_chunking", True),
        ("/v1/embeddings", "return_multivector", True),
        ("/v1/embeddings", "add_special_tokens", False),
        ("/v1/embeddings", "embed_dtype", "float16"),
        ("/v1/embeddings", "endianness", "big"),
        ("/v1/embeddings", "modality", "image"),
        ("/v2/embed", "images", ["data:"]),
        ("/v1/rerank", "rank_fields", ["title"]),
        ("/rerank", "texts", ["a"]),
    ],
)
async def test_what_changes_an_answer_and_is_not_done_is_refused_by_name(
    client: httpx.AsyncClient, path: str, field: str, value: Any
) -> None:
    """Left out or null, it is no matter."""
    asked = example("/v1/rerank" if path == "/rerank" else path)
    refused = await client.post(path, json={**asked, field: value})
    told = refused.json()

    assert refused.status_code in (400, 422)
    assert (told.get("error") or told)["message"].startswith(field)
    assert (await client.post(path, json={**asked, field: None})).status_code in (200, 404)


@pytest.mark.parametrize("most", [7, 1000, -1])
async def test_truncate_prompt_tokens_is_the_most_that_is_read(
    client: httpx.AsyncClient, most: int
) -> None:
    """Special tokens included, cut on the side that the request names; the space says so."""
    text = "one two three four five " * 100 + "the end"
    tokens = (await client.post("/tokenize", json={"inputs": text})).json()[0]
    ids, limit = [token["id"] for token in tokens], 256 if most == -1 else min(most, 256)
    body = {"input": [text, "a"], "truncate_prompt_tokens": most}
    kept = {"right": [*ids[: limit - 1], ids[-1]], "left": [ids[0], *ids[1 - limit :]]}

    spaces = []
    for side, more in (("right", {}), ("left", {"truncation_side": "left"})):
        answer = await client.post("/v1/embeddings", json={**body, **more})
        told = np.array([row["embedding"] for row in answer.json()["data"]], np.float32)
        expected = await pooled(client, [{"token_ids": kept[side]}, "a"])
        np.testing.assert_array_equal(told, expected)
        assert answer.headers["x-headlight-truncated"] == "1"
        spaces.append(answer.headers["x-headlight-space"])

    own = (await client.post("/v1/embeddings", json={"input": "a"})).headers["x-headlight-space"]
    assert (spaces[0] == own) == (limit == 256) and spaces[1] not in (own, spaces[0])
    refused = await client.post("/v1/embeddings", json={**body, "truncate_prompt_tokens": 0})
    assert refused.json()["error"]["param"] == "truncate_prompt_tokens"


@pytest.mark.parametrize(
    ("purpose", "prompt"),
    [
        ("query", "query"),
        ("passage", "passage"),
        ("Passage", "passage"),
        ("SEARCH_QUERY", "query"),
        ("search_query", "query"),
        ("search_document", "document"),
        ("classification", None),
    ],
)
async def test_input_type_chooses_the_prompt_that_there_is(
    prompted_http: httpx.AsyncClient, purpose: str, prompt: str | None
) -> None:
    """Without one it is named as ignored; `prompt_name` must be there."""

    async def ask(**more: Any) -> httpx.Response:
        return await prompted_http.post("/v1/embeddings", json={"input": TEXTS, **more})

    told, named = await ask(input_type=purpose), await ask(prompt_name=prompt)

    assert told.json()["data"] == named.json()["data"]
    assert told.headers.get(IGNORED) == (None if prompt else "input_type")
    assert (await ask(prompt_name="x")).json()["error"]["param"] == "prompt_name"


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/embeddings", lambda ids: {"input": [IDS, ids]}),
        ("/embed", lambda ids: {"inputs": ids}),
        ("/v1/encode", lambda ids: {"inputs": ["a", {"token_ids": ids}]}),
        ("/v1/highlight", lambda ids: {"query": {"token_ids": ids}, "documents": ["a"]}),
    ],
)
async def test_ids_of_another_vocabulary_are_told_in_a_header_and_once_in_the_log(
    served: Callable[..., httpx.AsyncClient],
    caplog: pytest.LogCaptureFixture,
    path: str,
    asked: Callable[[list[int]], dict[str, Any]],
) -> None:
    """As OpenAI's tokenizer makes them, which LangChain sends; those of the model are not."""
    async with served() as client:
        answers = [await client.post(path, json=asked(ids)) for ids in (IDS, CL100K, CL100K, IDS)]

    told = [answer.headers.get(WARNING) for answer in answers]
    assert told == [None, *2 * ["ids without this model's special tokens"], None]
    assert len([one for one in caplog.messages if "special tokens" in one]) == 1


@pytest.mark.client("openai", "extra fields")
async def test_openais_client_may_send_what_others_know(
    address: str, client: httpx.AsyncClient
) -> None:
    """The answer is that without it; the header names it."""

    def ask() -> Any:
        with OpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as theirs:
            return theirs.embeddings.with_raw_response.create(
                model=NAME, input=TEXTS, extra_body={"drop_params": True, "dimensions": None}
            )

    raw = await asyncio.to_thread(ask)

    told = np.array([item.embedding for item in raw.parse().data], np.float32)
    np.testing.assert_array_equal(told, await pooled(client, TEXTS))
    assert raw.headers[IGNORED] == "drop_params"


async def test_every_route_of_another_api_has_the_header_in_the_document(
    client: httpx.AsyncClient, served: Callable[..., httpx.AsyncClient]
) -> None:
    """And a page may read it."""
    paths = (await client.get("/openapi.json")).json()["paths"]
    described = {
        path
        for path, operations in paths.items()
        if IGNORED
        in operations.get("post", {}).get("responses", {}).get("200", {}).get("headers", ())
    }

    assert described == {row.path for row in ROUTES if row.foreign}
    async with served(cors_origins=("*",)) as page:
        answer = await page.get("/live", headers={"origin": "https://page.example"})
    assert IGNORED in answer.headers["access-control-expose-headers"]


@pytest.mark.parametrize(
    ("path", "asked"),
    [
        ("/v1/encode", {"inputs": TEXTS}),
        ("/v1/similarity", {"left": "a", "right": ["b"]}),
        ("/v1/highlight", {"query": "a", "documents": [{"text": "b"}]}),
        ("/v1/classify", {"inputs": ["a"], "labels": ["b"]}),
        ("/v1/explain", {"text": "a", "layer": 0}),
    ],
)
async def test_our_own_routes_stay_strict(
    client: httpx.AsyncClient, path: str, asked: dict[str, Any]
) -> None:
    """A misspelt field would otherwise have no effect."""
    refused = [await client.post(path, json={**asked, "trunkate": "right"})]
    if "documents" in asked:
        document = {"documents": [{"text": "b", "title": "c"}]}
        refused.append(await client.post(path, json={**asked, **document}))

    for answer in refused:
        assert answer.json()["code"] == "unknown_field" and IGNORED not in answer.headers
