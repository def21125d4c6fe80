"""OpenAI's own client, unmodified, and the wire beneath it."""

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import httpx
import numpy as np
import openai
import pytest
import pytest_asyncio
from openai import AsyncOpenAI, OpenAI
from sentence_transformers import SentenceTransformer
from starlette.types import ASGIApp

from service.api.precisions import Precision, to_precision
from service.pipeline.replica import Replica
from service.tables.settings import Settings
from tests.replica_internals import bound
from tests.service.api.exact_arrays import pooled
from tests.space_fields import (
    GIVEN,
    LONG_TEXT,
    Fields,
    Spaces,
    changes_form,
    changes_space,
    keeps_bits,
)
from tests.task_heads import checkpoint

EMBEDDINGS: Fields = {
    **dict.fromkeys(("input", "input.text"), GIVEN),
    "model": changes_space(model="m3:lora"),
    "encoding_format": changes_form(encoding_format="base64"),
    "output_dtype": changes_form(output_dtype="int8"),
    "dimensions": changes_space(dimensions=8),
    "truncate": changes_space(truncate="left"),
    "user": keeps_bits(user="me"),
    "normalized": changes_space(normalized=False),
    "embd_normalize": changes_space(embd_normalize=-1),
    "prompt": changes_space(prompt="Who "),
    "task": changes_space(task="retrieval.query"),
    "prompt_name": changes_space(prompt_name="query"),
    "input_type": changes_space(input_type="query"),
    "truncate_prompt_tokens": changes_space(truncate_prompt_tokens=9),
    "late_chunking": keeps_bits(late_chunking=False),
    "return_multivector": keeps_bits(return_multivector=False),
    "add_special_tokens": keeps_bits(add_special_tokens=True),
    "embed_dtype": keeps_bits(embed_dtype="float32"),
    "endianness": keeps_bits(endianness="little"),
    "modality": keeps_bits(modality="text"),
}
SPACE: Spaces = dict.fromkeys(
    ("/v1/embeddings", "/embeddings"),
    ({"model": "m3", "input": LONG_TEXT, "truncate": "right"}, EMBEDDINGS),
)
NAME = "all-MiniLM-L6-v2"
TEXTS = ["All is well", "A dog ate the food because it was hungry"]
IDS = [[101, 2035, 2003, 2092, 102], [101, 3899, 102]]
LONG = "well " * 600


@pytest_asyncio.fixture
async def theirs(address: str) -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's asynchronous client."""
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        yield client


def exact(answer: Any) -> np.ndarray[Any, Any]:
    """The vectors that a client holds, as float32."""
    return np.array([item.embedding for item in answer.data], dtype=np.float32)


@pytest.mark.client("openai", "base64, its default")
async def test_the_default_of_the_client_is_answered_exactly(
    theirs: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    """base64 of float32: bit for bit what /v1/encode answers, with tokens counted."""
    answer = await theirs.embeddings.create(model=NAME, input=TEXTS)

    np.testing.assert_array_equal(exact(answer), await pooled(http, TEXTS))
    assert [item.index for item in answer.data] == [0, 1]
    assert answer.model == NAME and answer.object == "list"
    assert answer.usage.prompt_tokens == answer.usage.total_tokens == 16


@pytest.mark.client("openai", "synchronous client")
async def test_the_synchronous_client_is_answered(address: str, http: httpx.AsyncClient) -> None:
    """One text, as most programs ask."""

    def ask() -> Any:
        with OpenAI(base_url=f"{address}/v1", api_key="none") as client:
            return client.embeddings.create(model=NAME, input=TEXTS[0])

    answer = await asyncio.to_thread(ask)

    np.testing.assert_array_equal(exact(answer), await pooled(http, TEXTS[:1]))


@pytest.mark.client("openai", "paths that are not there")
@pytest.mark.parametrize("base", ["", "/openai/v1", "/v1/v1"])
async def test_a_path_that_is_not_there_is_refused_with_what_was_meant(
    address: str, base: str
) -> None:
    """In what the client prints, of a wrong base URL; else with those that there are."""
    async with AsyncOpenAI(base_url=f"{address}{base}", api_key="none", max_retries=0) as bare:
        with pytest.raises(openai.NotFoundError, match="/v1/embeddings") as refused:
            if base:
                await bare.embeddings.create(model=NAME, input=TEXTS)
            else:
                await bare.completions.create(model=NAME, prompt="All is")

    assert refused.value.code == "not_found"
    assert (
        isinstance(refused.value.body, dict) and "/v1/embeddings" in refused.value.body["message"]
    )


@pytest.mark.client("openai", "float")
async def test_numbers_are_those_of_base64(theirs: AsyncOpenAI, http: httpx.AsyncClient) -> None:
    """JSON numbers lose nothing of a float32."""
    answer = await theirs.embeddings.create(model=NAME, input=TEXTS, encoding_format="float")

    np.testing.assert_array_equal(exact(answer), await pooled(http, TEXTS))


@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
@pytest.mark.parametrize("path", ["/v1/embeddings", "/embeddings"])
async def test_smaller_vectors_are_made_of_the_floats(
    http: httpx.AsyncClient, path: str, precision: Precision
) -> None:
    """Those of the same request, at any number of dimensions."""
    for size in (384, 13):
        body = {"model": NAME, "input": TEXTS, "dimensions": size}
        told = (await http.post(path, json={**body, "encoding_format": precision})).json()
        plain = (await http.post(path, json=body)).json()
        for one, other in zip(told["data"], plain["data"], strict=True):
            vector = np.array(other["embedding"], dtype=np.float32)
            assert one["embedding"] == np.array(to_precision(vector, precision)).tolist()


@pytest.mark.client("openai", "paths without /v1")
async def test_the_client_works_without_a_prefix(address: str) -> None:
    """The same vectors and models at /embeddings and /models."""
    async with AsyncOpenAI(base_url=address, api_key="none", max_retries=0) as client:
        short = await client.embeddings.create(model=NAME, input=TEXTS)
        names = [model.id async for model in await client.models.list()]
    async with AsyncOpenAI(base_url=f"{address}/v1", api_key="none", max_retries=0) as client:
        long = await client.embeddings.create(model=NAME, input=TEXTS)
        assert names == [model.id async for model in await client.models.list()]

    assert short.model_dump(exclude={"id"}) == long.model_dump(exclude={"id"})


@pytest.mark.client("openai", "smaller vectors")
@pytest.mark.parametrize("precision", ["int8", "uint8", "binary", "ubinary"])
async def test_the_client_takes_smaller_vectors(
    theirs: AsyncOpenAI, http: httpx.AsyncClient, precision: Precision
) -> None:
    """As whole numbers, which it leaves as they are, where its own format is named."""
    asked: Any = precision  # a format that the client does not know
    answer = await theirs.embeddings.create(model=NAME, input=TEXTS, encoding_format=asked)

    for item, vector in zip(answer.data, await pooled(http, TEXTS), strict=True):
        assert item.embedding == np.array(to_precision(vector, precision)).tolist()


@pytest.mark.client("openai", "token ids")
@pytest.mark.parametrize("given", [IDS, IDS[0]], ids=["lists", "one list"])
async def test_token_ids_are_used_as_given(
    theirs: AsyncOpenAI, http: httpx.AsyncClient, given: Any
) -> None:
    """No special token is added to them."""
    answer = await theirs.embeddings.create(model=NAME, input=given)

    lists = given if isinstance(given[0], list) else [given]
    expected = await pooled(http, [{"token_ids": ids} for ids in lists])
    np.testing.assert_array_equal(exact(answer), expected)
    assert answer.usage.total_tokens == sum(map(len, lists))


@pytest.mark.client("openai", "dimensions")
async def test_dimensions_are_cut_and_normalised(
    theirs: AsyncOpenAI, http: httpx.AsyncClient
) -> None:
    """As /v1/encode cuts them."""
    answer = await theirs.embeddings.create(model=NAME, input=TEXTS, dimensions=7)

    np.testing.assert_array_equal(
        exact(answer), await pooled(http, TEXTS, pooled={"dimensions": 7})
    )
    np.testing.assert_allclose(np.linalg.norm(exact(answer), axis=1), 1, rtol=1e-6)


async def test_vectors_have_length_1_whatever_the_checkpoint_does(
    tmp_path: Path, outer: Callable[[Replica], ASGIApp]
) -> None:
    """Also those cut first, as sentence-transformers cuts and scales them, and smaller ones."""
    checkpoint(tmp_path, "Model")
    library = SentenceTransformer(str(tmp_path), device="cpu")  # mean, not normalised
    library.save(str(tmp_path))
    replica = await Replica.start(
        Settings(model=str(tmp_path), device="cpu", threads=1, served_model_name="plain"), "plain-1"
    )
    transport = httpx.ASGITransport(outer(replica))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as http:
        for size in (None, 7):
            asked = {"model": "plain", "input": TEXTS, "dimensions": size}
            told = (await http.post("/v1/embeddings", json=asked)).json()["data"]
            native = await pooled(http, TEXTS, pooled={"dimensions": size})

            expected = library.encode(TEXTS, truncate_dim=size)
            np.testing.assert_allclose(native, expected, atol=1e-5)
            expected /= np.linalg.norm(expected, axis=1, keepdims=True)
            np.testing.assert_allclose([row["embedding"] for row in told], expected, atol=1e-5)
            asked |= {"encoding_format": "int8"}
            steps = (await http.post("/v1/embeddings", json=asked)).json()["data"]
            body = {"inputs": TEXTS, "pooled": {"precision": "int8", "dimensions": size}}
            own = (await http.post("/v1/encode", json=body)).json()["data"]
            assert [row["embedding"] for row in steps] == [item["pooled"] for item in own]
    await replica.close()


async def test_the_stored_truncate_dim_is_the_default_of_dimensions(
    tmp_path: Path, outer: Callable[[Replica], ASGIApp]
) -> None:
    """A request may ask for more of them, and what is left out has the space of what is stored."""
    checkpoint(tmp_path, "Model")
    library = SentenceTransformer(str(tmp_path), device="cpu", truncate_dim=7)
    library.save(str(tmp_path))
    replica = await Replica.start(
        Settings(model=str(tmp_path), device="cpu", threads=1, served_model_name="plain"), "plain-1"
    )
    transport = httpx.ASGITransport(outer(replica))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as http:
        spaces = []
        for size, like in ((None, 7), (7, 7), (9, 9)):
            native = await pooled(http, TEXTS, pooled={"dimensions": size})
            expected = library.encode(TEXTS, truncate_dim=size)
            assert native.shape == expected.shape == (len(TEXTS), like)
            np.testing.assert_allclose(native, expected, atol=1e-5)
            told = await http.post(
                "/v1/embeddings", json={"model": "plain", "input": TEXTS, "dimensions": size}
            )
            expected /= np.linalg.norm(expected, axis=1, keepdims=True)
            rows = [row["embedding"] for row in told.json()["data"]]
            np.testing.assert_allclose(rows, expected, atol=1e-5)
            spaces.append(told.headers["x-headlight-space"])
        assert spaces[0] == spaces[1] != spaces[2]
        whole = await pooled(http, TEXTS)
        assert replica.pooled_width == len(whole[0]) == 7
    await replica.close()


@pytest.mark.client("openai", "2,048 inputs")
async def test_as_many_inputs_as_openai_takes(theirs: AsyncOpenAI) -> None:
    """In their order; one more is refused."""
    given = [[1000 + index] for index in range(2048)]

    answer = await theirs.embeddings.create(model=NAME, input=given, dimensions=8)

    assert [item.index for item in answer.data] == list(range(2048))
    alone = await theirs.embeddings.create(model=NAME, input=[given[2047]], dimensions=8)
    np.testing.assert_array_equal(exact(alone)[0], exact(answer)[2047])
    with pytest.raises(openai.BadRequestError, match="limit is 2,048"):
        await theirs.embeddings.create(model=NAME, input=[*given, [101]])


@pytest.mark.client("openai", "models")
async def test_the_served_model_is_listed(theirs: AsyncOpenAI) -> None:
    """By the name that requests use; another is not found."""
    listed = [model async for model in theirs.models.list()]
    found = await theirs.models.retrieve(NAME)

    assert [model.id for model in listed] == [found.id] == [NAME]
    with pytest.raises(openai.NotFoundError) as error:
        await theirs.models.retrieve("org/other")
    assert error.value.code == "model_not_found"


@pytest.mark.parametrize(
    "name", [f"sentence-transformers/{NAME}", NAME.upper(), f"{NAME}:latest", f"Org/{NAME}:latest"]
)
async def test_a_name_that_means_the_served_model_is_it(theirs: AsyncOpenAI, name: str) -> None:
    """The hub's full name, another case, and Ollama's tag; answers have the served name."""
    answer = await theirs.embeddings.create(model=name, input="a")
    found = await theirs.models.retrieve(name)

    assert (answer.model, found.id) == (NAME, NAME)


async def test_a_request_that_names_no_model_is_answered(client: httpx.AsyncClient) -> None:
    """There is only one."""
    answer = await client.post("/v1/embeddings", json={"input": "a"})

    assert (answer.status_code, answer.json()["model"]) == (200, NAME)


@pytest.mark.client("openai", "NotFoundError")
async def test_an_unknown_model_is_not_found(theirs: AsyncOpenAI) -> None:
    """With OpenAI's code."""
    with pytest.raises(openai.NotFoundError) as error:
        await theirs.embeddings.create(model="text-embedding-3-small", input="a")

    assert (error.value.code, error.value.param) == ("model_not_found", "model")
    assert error.value.type == "invalid_request_error"


@pytest.mark.client("openai", "BadRequestError")
async def test_a_text_too_long_is_a_bad_request(theirs: AsyncOpenAI) -> None:
    """OpenAI's code; which input, its length and the limit are said."""
    with pytest.raises(openai.BadRequestError) as error:
        await theirs.embeddings.create(model=NAME, input=["a", LONG])

    assert (error.value.code, error.value.param) == ("context_length_exceeded", "input")
    assert "input[1]" in error.value.message
    assert "602 tokens, and the model takes at most 256" in error.value.message


@pytest.mark.client("openai", "RateLimitError")
async def test_overload_is_a_rate_limit(
    theirs: AsyncOpenAI, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What finds no room is 429 at once, with Retry-After."""
    bound(monkeypatch, replica.batcher, requests=0)
    with pytest.raises(openai.RateLimitError) as error:
        await theirs.embeddings.create(model=NAME, input="a")

    assert error.value.code == "rate_limit_exceeded"
    assert int(error.value.response.headers["retry-after"]) >= 1


REFUSED = {
    "no JSON": (b"{", 400, "invalid_json", None),
    "no input": (b'{"model":"m"}', 400, "missing_field", "input"),
    "no inputs": (b'{"model":"%s","input":[]}', 400, "batch_empty", "input"),
    "an empty text": (b'{"model":"%s","input":[""]}', 400, "sequence_empty", "input"),
    "half a pair": (rb'{"model":"m","input":["ok","x\udc4d"]}', 400, "invalid_text", "input"),
    "half a pair in a large body": (
        b'{"input":["%s","x\\udc4d"]}' % (b"a " * 20_000),
        400,
        "invalid_text",
        "input",
    ),
    "texts and ids": (b'{"model":"%s","input":["a",1]}', 400, "invalid_type", "input"),
    "an unknown format": (
        b'{"model":"%s","input":"a","encoding_format":"int4"}',
        400,
        "out_of_range",
        "encoding_format",
    ),
    "385 dimensions": (
        b'{"model":"%s","input":"a","dimensions":385}',
        400,
        "out_of_range",
        "dimensions",
    ),
    "an unknown id": (b'{"model":"%s","input":[99999]}', 400, "token_out_of_range", "input"),
}


@pytest.mark.parametrize(("body", "status", "code", "param"), REFUSED.values(), ids=REFUSED.keys())
async def test_a_refusal_has_openais_shape(
    http: httpx.AsyncClient, body: bytes, status: int, code: str, param: str | None
) -> None:
    """Nested, with the field that is wrong."""
    body = body.replace(b"%s", NAME.encode())

    answer = await http.post("/v1/embeddings", content=body)

    error = answer.json()["error"]
    assert (answer.status_code, error["code"], error["param"]) == (status, code, param)
    assert error.keys() == {"message", "type", "param", "code"}


async def test_refusals_of_the_router_and_the_guard_have_openais_shape(
    http: httpx.AsyncClient, replica: Replica
) -> None:
    """A wrong method, another media type, a body too large."""
    wrong = await http.get("/v1/embeddings")
    typed = await http.post("/v1/embeddings", content=b"{}", headers={"content-type": "text/plain"})
    large = await http.post("/v1/embeddings", content=b" " * (replica.settings.max_body_bytes + 1))
    deleted = await http.delete(f"/v1/models/{NAME}")

    answers = [wrong, typed, large, deleted]
    assert [answer.status_code for answer in answers] == [405, 415, 413, 405]
    assert all(answer.json()["error"]["code"] for answer in answers)
    assert wrong.headers["allow"] == "POST"
