"""A path that is not there is refused with the one that was meant, as its clients read it."""

import httpx
import pytest

# path, what the refusal says, and where its client looks for that
OPENAI, TEI = ("error", "message"), ("error",)
BASE, NO_TEXT = "The base_url of OpenAI's clients ends in /v1. ", "This service generates no text. "
MEANT: list[tuple[str, str, tuple[str, ...]]] = [
    ("/openai/v1/embeddings", f"Did you mean POST /v1/embeddings? {BASE}", OPENAI),
    ("/v1/v1/embeddings", f"Did you mean POST /v1/embeddings? {BASE}", OPENAI),
    ("/v1/embeddings/embeddings", f"Did you mean POST /v1/embeddings? {BASE}", OPENAI),
    ("/openai/deployments/a/embeddings", f"Did you mean POST /v1/embeddings? {BASE}", OPENAI),
    ("/compatible-mode/v1/rerank", "Did you mean POST /v1/rerank? Your client", ("message",)),
    ("/cohere/v2/embed", "Did you mean POST /v2/embed? Your client", ("message",)),
    ("/v1/embed", "Did you mean POST /v2/embed? ", ("message",)),
    ("/tei/embed_all", "Did you mean POST /embed_all? Your client", TEI),
    ("/api/embeddings", "Did you mean POST /v1/embeddings? ", OPENAI),
    ("/api/embed", "Did you mean POST /v1/embeddings? ", TEI),
    ("/v2/v2/models/a/infer", "not_found: ", TEI),
    ("/v2/repository/index", "Expected POST of /v1/encode, ", TEI),
    ("/api/v1/encode", "Did you mean POST /v1/encode? Your client", ("detail",)),
    ("/v1/encod", "Did you mean POST /v1/encode? ", OPENAI),
    ("/v1/embedding", "Did you mean POST /v1/embeddings? ", OPENAI),
    ("/v1/chat/completions", f"Did you mean POST /v1/embeddings? {NO_TEXT}", OPENAI),
    ("/api/v1/responses", f"Did you mean POST /v1/embeddings? {NO_TEXT}", OPENAI),
    ("/api/generate", f"Did you mean POST /v1/embeddings? {NO_TEXT}", TEI),
    ("/v2/chat", f"Did you mean POST /v2/embed? {NO_TEXT}", ("message",)),
    ("/v1/moderations", "Expected POST of /v1/encode, ", OPENAI),
    ("/.git/config", "Expected POST of /v1/encode, ", OPENAI),
    ("/" + "v1/" * 600 + "embeddings", f"Did you mean POST /v1/embeddings? {BASE}", OPENAI),
]


@pytest.mark.parametrize(("path", "said", "where"), MEANT, ids=[path[:40] for path, *_ in MEANT])
async def test_a_path_that_is_not_there_is_refused_with_what_was_meant(
    client: httpx.AsyncClient, path: str, said: str, where: tuple[str, ...]
) -> None:
    """In the form of its API, and as RFC 9457 has it."""
    answer = await client.post(path, json={"model": "a", "input": "b"})

    told = answer.json()
    assert (answer.status_code, told["status"], told["code"]) == (404, 404, "not_found")
    found = told
    for name in where:
        found = found[name]
    assert said in found and "GET /docs lists all paths" in found
    assert answer.headers["content-type"] == "application/problem+json"
    assert told["detail"].startswith("There is nothing at this path. ")


async def test_a_method_that_the_path_lacks_is_not_named(client: httpx.AsyncClient) -> None:
    """The hint has one that it takes, and repeats nothing of what was sent."""
    listed = (await client.get("/openai/v1/models")).json()["error"]["message"]
    found = (await client.get("/openai/v1/models/secret")).json()["error"]["message"]
    posted = (await client.get("/openai/v1/embeddings")).json()["error"]["message"]

    assert f"Did you mean GET /v1/models? {BASE}" in listed
    assert f"Did you mean GET /v1/models/{{id}}? {BASE}" in found
    assert f"Did you mean POST /v1/embeddings? {BASE}" in posted


async def test_every_other_refusal_is_in_that_form_too(client: httpx.AsyncClient) -> None:
    """With its own status and code."""
    answer = await client.post(
        "/openai/v1/embeddings", json={}, headers={"content-encoding": "gzip"}
    )

    told = answer.json()
    assert answer.status_code == told["status"] == 415
    assert told["code"] == told["error"]["code"] == "unsupported_encoding"
