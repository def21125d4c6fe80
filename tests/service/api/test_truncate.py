"""What happens to texts that are too long where requests do not say: a setting, for every API."""

import asyncio
import re
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio
from openai import OpenAI
from starlette.types import ASGIApp

from service.api import ROUTES
from service.cli import greeting
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.conftest import application, connected
from tests.replica_internals import under
from tests.task_heads import MOST, SIZES, embedder

NAME, TRUNCATED = "all-MiniLM-L6-v2", "x-headlight-truncated"
COUNTED = {"/v1/encode", "/v1/embeddings"}  # whose usage says it too
LONG = "well " * 300 + "the end"  # 304 tokens, of at most 256, and of the small model's 37
TENSOR = {"name": "text", "shape": [2], "datatype": "BYTES", "data": ["a", LONG]}
# a short and a long text to every API, as its requests are without a word about length
REQUESTS: dict[str, dict[str, Any]] = {
    "/v1/encode": {"inputs": ["a", LONG]},
    "/v1/similarity": {"left": "a", "right": [LONG], "form": "score"},
    "/v1/embeddings": {"model": NAME, "input": ["a", LONG]},
    "/embed": {"inputs": ["a", LONG]},
    "/embed_all": {"inputs": ["a", LONG]},
    "/similarity": {"inputs": {"source_sentence": "a", "sentences": [LONG]}},
    f"/v2/models/{NAME}/infer": {"inputs": [TENSOR]},
    "/v2/embed": {
        "model": NAME,
        "texts": ["a", LONG],
        "input_type": "search_document",
        "embedding_types": ["float"],
    },
}
CUT_BY_CUSTOM = {"/embed", "/embed_all", "/similarity", "/v2/embed"}  # as their APIs do

Served = Callable[..., httpx.AsyncClient]


@pytest_asyncio.fixture(scope="module")
async def small(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Replica]:
    """A small model of the bundled one's name and modules, which reads fewer tokens."""
    folder = tmp_path_factory.mktemp("small")
    embedder(folder)
    settings = Settings(model=str(folder), served_model_name=NAME, device="cpu", threads=1)
    replica = await Replica.start(settings, "small-1")
    yield replica
    await replica.close()


@pytest.fixture
def served(small: Replica) -> Served:
    """A client of it under other settings."""
    return lambda **settings: connected(application(under(small, **settings)))


@pytest.mark.parametrize("side", ["right", "left"])
async def test_a_text_of_more_characters_than_are_tokenized_is_cut_like_any_other(
    client: httpx.AsyncClient, side: str
) -> None:
    """Its vector is that of a shorter one; also cut is a word that has one token however long."""
    head, tail = "it begins " * 300, " so it ends" * 300
    asked = {
        "long": [f"{head}{'well ' * 50_000}{tail}", "a" * 262_145],
        "short": [f"{head}{tail}", "a" * 262_144],
    }
    got = {
        name: await client.post("/v1/encode", json={"inputs": texts, "truncate": side})
        for name, texts in asked.items()
    }

    vectors = {
        name: [each["pooled"] for each in answer.json()["data"]] for name, answer in got.items()
    }
    assert vectors["long"] == vectors["short"]
    assert [got[name].headers[TRUNCATED] for name in got] == ["2", "1"]


@pytest.mark.parametrize("path", REQUESTS)
async def test_a_request_that_does_not_say_is_read_as_the_service_is_set(
    served: Served, path: str
) -> None:
    """Refused or cut, whichever API asks; unset, as the API's own servers do or refused."""
    statuses = {}
    for setting in (None, "refuse", "right", "left"):
        async with served(truncate=setting) as client:
            answer = await client.post(path, json=REQUESTS[path])
        statuses[setting] = answer.status_code
        assert answer.headers.get(TRUNCATED) == ("1" if answer.is_success else None)
        if answer.is_success and path in COUNTED:
            assert answer.json()["usage"]["truncated"] == 1

    assert statuses["refuse"] in {400, 422}
    assert statuses["right"] == statuses["left"] == 200
    assert (statuses[None] == 200) == (path in CUT_BY_CUSTOM)


async def test_no_route_hides_the_setting_behind_a_default_of_its_own() -> None:
    """Also one that is added: what is left out stays left out until the service is asked."""
    defaults = {
        row.path: row.request.model_fields["truncate"].default
        for row in ROUTES
        if "truncate" in getattr(row.request, "model_fields", ())
    }

    assert {"/v1/encode", "/v1/embeddings", "/v1/rerank", "/embed", "/v1/explain"} < {*defaults}
    assert {*defaults.values()} == {None}


async def test_ids_and_embeddings_that_are_cut_are_counted(served: Served) -> None:
    """Both are used as given, and cut as texts are."""
    inputs = [{"token_ids": [101] * 257}, {"embeddings": [[0.5] * SIZES["hidden_size"]] * 300}, "a"]
    async with served(truncate="left") as client:
        answer = await client.post("/v1/encode", json={"inputs": inputs})

    assert answer.json()["usage"]["truncated"] == 2
    assert [item["truncated"] for item in answer.json()["data"]] == [True, True, False]


async def test_the_side_is_the_settings(served: Served) -> None:
    """The vector of each is that of a request which names the side."""
    for path in ("/embed", "/v1/encode"):
        for setting, other in (("right", "left"), ("left", "right")):
            async with served(truncate=setting) as client:
                unsaid = (await client.post(path, json={"inputs": [LONG]})).content
                said = await client.post("/v1/encode", json={"inputs": [LONG], "truncate": setting})
                opposite = await client.post(
                    "/v1/encode", json={"inputs": [LONG], "truncate": other}
                )

            vectors = [one.json()["data"][0]["pooled"] for one in (said, opposite)]
            plain = str(vectors[0][0]).encode()
            assert plain in unsaid
            assert vectors[0] != vectors[1]


async def test_what_a_request_says_goes_before_the_setting(served: Served) -> None:
    """TEI's two fields mean what they do in TEI, rerankers' one what it does in theirs."""
    native, left = {"inputs": [LONG]}, {"inputs": LONG, "truncation_direction": "Left"}
    async with served(truncate="right") as client:
        refusing = [
            await client.post("/embed", json={"inputs": LONG, "truncate": False}),
            await client.post("/v1/encode", json={**native, "truncate": "refuse"}),
            await client.post("/v1/explain", json={"text": LONG, "layer": 0, "truncate": "refuse"}),
        ]
        right = (await client.post("/embed", json={"inputs": LONG})).json()
        taught = await client.post("/v1/explain", json={"text": LONG, "layer": 0})
    async with served(truncate="refuse") as client:
        cut = await client.post("/embed", json={"inputs": LONG, "truncate": True})
        from_left = await client.post("/embed", json=left)

    assert [answer.status_code for answer in refusing] == [422, 422, 422]
    assert cut.json() == right and cut.headers[TRUNCATED] == "1"
    assert from_left.is_success and from_left.json() != right
    assert taught.is_success and len(taught.json()["tokens"]) == MOST


async def test_nothing_is_said_where_nothing_is_cut(served: Served) -> None:
    """A text that fits has no such header, whatever the setting."""
    async with served(truncate="right") as client:
        answer = await client.post(
            "/v1/embeddings", json={"model": NAME, "input": "well " * (MOST - 2)}
        )

    assert answer.is_success and TRUNCATED not in answer.headers


async def test_info_says_what_is_set(served: Served) -> None:
    """In our word and in TEI's."""
    told = {}
    for setting in (None, "refuse", "right", "left"):
        async with served(truncate=setting) as client:
            info = (await client.get("/info")).json()
        told[setting] = info["truncate"], info["auto_truncate"]

    assert told == {
        None: ("refuse", True),
        "refuse": ("refuse", False),
        "right": ("right", True),
        "left": ("left", True),
    }


@pytest.mark.parametrize(
    ("setting", "said"),
    [
        (None, "refused (cut on routes of TEI, Cohere and rerankers); change with --truncate"),
        ("left", "cut on the left"),
    ],
)
async def test_the_start_says_what_is_set(setting: Any, said: str) -> None:
    """After the address, before the first request meets it."""
    assert greeting([Settings(truncate=setting)], "http://here").endswith(said)


async def test_the_start_names_the_apis_that_cut_and_no_other() -> None:
    """Of those that embed; rerankers, in whichever API, are one word."""
    names = {row.api.name for row in ROUTES if row.path in CUT_BY_CUSTOM}
    cutting = {"".join(re.findall("[A-Z]", name)) if " " in name else name for name in names}
    line = greeting([Settings()], "http://here").splitlines()[-1]

    assert set(re.findall(r"\b[A-Z]\w+", line)) == cutting


@pytest.mark.client("openai", "truncate, as an extra field")
async def test_openais_client_can_ask_for_a_cut(
    replica: Replica,
    listen: Callable[..., AbstractAsyncContextManager[str]],
    outer: Callable[[Replica], ASGIApp],
) -> None:
    """By `extra_body`, or without a word where the service is set so; the header says how many."""

    def ask(url: str, **more: Any) -> Any:
        with OpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
            raw = client.embeddings.with_raw_response.create(
                model=NAME, input=["a", LONG, LONG], **more
            )
        parsed = raw.parse()
        assert str(parsed.usage.to_dict()["truncated"]) == raw.headers[TRUNCATED]
        return raw.headers[TRUNCATED], [item.embedding for item in parsed.data]

    async with listen(outer(replica)) as url:
        with pytest.raises(openai.BadRequestError, match="304 tokens"):
            await asyncio.to_thread(ask, url)
        count, asked = await asyncio.to_thread(ask, url, extra_body={"truncate": "right"})
    async with listen(outer(under(replica, truncate="right"))) as url:
        unasked = await asyncio.to_thread(ask, url)

    assert count == unasked[0] == "2"
    np.testing.assert_array_equal(asked, unasked[1])
