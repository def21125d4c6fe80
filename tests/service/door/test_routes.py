"""The HTTP surface of one replica, in process, on the bundled weights."""

import asyncio
import base64
import json
import re
from collections.abc import Callable
from typing import Any

import httpx
import numpy as np
import pytest
from starlette.types import ASGIApp

from service.api import own
from service.door import handlers
from service.pipeline.replica import Replica
from service.shapes.answer import SAFETENSORS
from service.tables.refusals import REFUSALS
from tests.conftest import Connected, posted
from tests.replica_internals import slow_down

WELL = {"inputs": ["All is well"], "attention": {"layers": [0], "heads": [5]}}
DOG = "A dog ate the food because it was hungry"


async def encode(client: httpx.AsyncClient, body: Any, **more: Any) -> dict[str, Any]:
    """A request that must succeed."""
    return await posted(client, "/v1/encode", body, **more)


async def test_base64_holds_the_numbers_of_json_exactly(client: httpx.AsyncClient) -> None:
    """Little-endian float32 with its shape next to it."""
    numbers = (await encode(client, WELL))["data"][0]
    packed = (await encode(client, {**WELL, "encoding": "base64"}))["data"][0]

    pooled, heads = packed["pooled"], packed["attention"]["maps"]["0"]["5"]
    assert pooled["shape"] == [384] and pooled["dtype"] == "float32"
    assert np.frombuffer(base64.b64decode(pooled["data"]), "<f4").tolist() == [
        float(np.float32(number)) for number in numbers["pooled"]
    ]
    assert heads["shape"] == [5, 5]


async def test_too_much_attention_is_refused(client: httpx.AsyncClient) -> None:
    """The price and the cap are named; as bytes it would fit."""
    asked = {"inputs": [{"token_ids": [7] * 200}], "attention": {}}

    refused = await client.post("/v1/encode", json=asked)

    problem = refused.json()
    assert (refused.status_code, problem["code"]) == (413, "attention_too_large")
    assert (problem["bytes"], problem["limit"]) == (72 * 200 * 200 * 4, 8 * 1024 * 1024)
    answer = await client.post("/v1/encode", json=asked, headers={"accept": SAFETENSORS})
    assert answer.status_code == 200


NAME = "all-MiniLM-L6-v2"
TENSOR = {"name": "text", "shape": [1], "datatype": "BYTES", "data": ["All is well"]}


@pytest.mark.parametrize(
    ("path", "asked", "status"),
    [
        ("/v1/encode", {"inputs": ["All is well"]}, 422),
        ("/v1/explain", {"text": "All is well", "layer": 0}, 422),
        ("/v1/embeddings", {"input": "All is well", "model": NAME}, 400),
        ("/embed", {"inputs": "All is well"}, 422),
        ("/embed_all", {"inputs": "All is well"}, 422),
        ("/similarity", {"inputs": {"source_sentence": "All", "sentences": ["is"]}}, 422),
        (f"/v2/models/{NAME}/infer", {"inputs": [TENSOR]}, 400),
    ],
)
async def test_what_could_never_be_done_in_time_is_refused_for_good(
    client: httpx.AsyncClient, replica: Replica, path: str, asked: Any, status: int
) -> None:
    """With what it would take, in each API's words, and without advice to retry."""
    unreachable = re.compile(
        r'^headlight_invalid_inputs_total{code="deadline_unreachable",.* (.+)$'
    )

    async def count() -> float:
        lines = (await client.get("/metrics")).text.splitlines()
        return sum(float(found[1]) for found in map(unreachable.match, lines) if found)

    before = await count()
    answer = await client.post(path, json=asked, headers={"x-headlight-deadline-ms": "0"})

    assert answer.status_code == status and "retry-after" not in answer.headers
    assert re.search(
        "it takes at least [0-9,]+ ms, its deadline is 0 ms, and about 0 of", answer.text, re.I
    )
    assert REFUSALS["deadline_unreachable"].title in answer.text
    assert await count() == before + 1
    assert replica.batcher.waiting_requests == replica.batcher.waiting_tokens == 0


async def test_what_is_late_because_the_machine_is_slow_may_come_again(
    client: httpx.AsyncClient, replica: Replica, monkeypatch: pytest.MonkeyPatch
) -> None:
    """429 and when, as long as it was fast enough at any time."""
    slow_down(monkeypatch, replica.batcher)

    answer = await client.post("/v1/encode", json={"inputs": ["All is well"]})

    assert (answer.status_code, answer.json()["code"]) == (429, "overloaded")
    assert int(answer.headers["retry-after"]) >= 1


@pytest.mark.parametrize(
    ("accept", "media_type"),
    [
        ("*/*", "application/json"),
        ("application/json, application/vnd.safetensors", "application/json"),
        ("application/vnd.safetensors, */*;q=0.1", SAFETENSORS),
        ("application/vnd.safetensors;q=0.2, application/*;q=0.9", "application/json"),
    ],
)
async def test_a_tie_between_media_types_is_json(accept: str, media_type: str) -> None:
    """The preferred one wins; of equals JSON."""
    assert own.negotiate_type(accept) == media_type


async def test_every_answer_names_its_replica(client: httpx.AsyncClient) -> None:
    """Refusals too."""
    for path in ("/live", "/nothing", "/metrics"):
        assert (await client.get(path)).headers["x-headlight-replica"] == "replica-1"


async def test_every_answer_is_counted_once(client: httpx.AsyncClient) -> None:
    """The counter moves by exactly what the client sent, and a scrape counts itself next."""

    async def count(route: str, kind: str, code: int) -> float:
        text = (await client.get("/metrics")).text
        series = (
            f'headlight_requests_total{{code="{code}",input="{kind}",'
            f'model="all-MiniLM-L6-v2",replica="replica-1",route="{route}"}} '
        )
        return sum(
            float(line.removeprefix(series))
            for line in text.splitlines()
            if line.startswith(series)
        )

    good = await count("/v1/encode", "text", 200)
    bad = await count("/v1/encode", "none", 400)
    await asyncio.gather(*(client.post("/v1/encode", json={"inputs": ["a"]}) for _ in range(17)))
    await client.post("/v1/encode", content=b"{")

    assert await count("/v1/encode", "text", 200) == good + 17
    assert await count("/v1/encode", "none", 400) == bad + 1
    assert await count("/metrics", "none", 200) + 1 == await count("/metrics", "none", 200)


async def test_the_document_is_made_once_for_all_who_ask_meanwhile(
    served: Callable[..., Connected], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It takes half a second of Python, which thirty threads would hold the loop with."""
    made, write = list[str](), handlers.write_document

    def note_and_write(root: str) -> bytes:
        made.append(root)
        return write(root)

    monkeypatch.setattr(handlers, "write_document", note_and_write)
    client = served()

    answers = await asyncio.gather(*(client.get("/openapi.json") for _ in range(8)))

    assert made == [""]
    assert len({answer.content for answer in answers}) == 1


async def test_the_api_describes_itself_without_an_outside_address(
    client: httpx.AsyncClient,
) -> None:
    """/openapi.json names every route and code; /docs loads nothing from elsewhere."""
    document = (await client.get("/openapi.json")).json()
    page = (await client.get("/docs")).text

    assert "sequence_too_long" in str(document["paths"]["/v1/encode"]["post"]["responses"]["422"])
    assert "://" not in page.replace("http://www.w3.org", "")


@pytest.mark.parametrize("prefix", ["/minilm"])
async def test_below_a_prefix_every_route_is_where_the_cluster_put_it(app: ASGIApp) -> None:
    """Answers, counts, the API's own address and its page, with another model next to it."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://cluster") as client:
        answer = await client.post("/minilm/v1/encode", json={"inputs": ["All is well"]})
        document = (await client.get("/minilm/openapi.json")).json()
        page = (await client.get("/minilm/docs")).text
        counted = (await client.get("/minilm/metrics")).text
        outside = await client.get("/base/info")

    assert answer.json()["usage"]["tokens"] == 5
    assert document["servers"] == [{"url": "/minilm"}] and "/v1/encode" in document["paths"]
    assert 'href="openapi.json"' in page and 'src="page/docs.js"' in page  # next to the page
    assert 'route="/v1/encode"' in counted and "/minilm" not in counted
    assert outside.status_code == 404


@pytest.mark.parametrize("prefix", ["", "/minilm"], ids=["at the root", "below a prefix"])
async def test_the_bare_address_is_the_attention_page(app: ASGIApp, prefix: str) -> None:
    """By GET and HEAD, with all its files; POST stays the embeddings' route, and so do refusals."""
    transport = httpx.ASGITransport(app)
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        head = await client.head(f"{prefix}/")
        page = await client.get(f"{prefix}/")
        named = re.findall(r'(?:href|src)="([^"]+)"', page.text)
        parts = [await client.get(path) for path in named if not path.startswith("data:")]
        vectors = await client.post(f"{prefix}/", json={"inputs": "All is well"})
        refused = await client.delete(f"{prefix}/")
        missing = await client.get(f"{prefix}/page/../settings.py")
        broken = await client.get(f"{prefix}/page/main.js%0A")
        counted = (await client.get(f"{prefix}/metrics")).text

    assert head.status_code == 200 and page.text.startswith("<!doctype html>")
    assert all(path.startswith((f"{prefix}/", "data:")) for path in named) and len(parts) == 4
    assert {part.status_code for part in parts} == {200}
    assert len(vectors.json()[0]) == 384
    assert refused.status_code == 405 and refused.json().keys() == {"error", "error_type"}
    assert missing.status_code == 404 and broken.status_code < 500
    assert re.search('requests_total{code="200",.*route="/docs"', counted)


@pytest.mark.parametrize(
    "path", ["/v1/models/{id}", "/v2/models/{model}", "/v2/models/{model}/ready"]
)
async def test_a_parameter_may_look_like_the_routes_own(
    client: httpx.AsyncClient, path: str
) -> None:
    """It is a name that no model has."""
    answer = await client.get(path.replace("{", "%7B").replace("}", "%7D"))

    assert (answer.status_code, "model" in answer.text) == (404, True)


@pytest.mark.parametrize(
    ("path", "body", "status"),
    [
        ("/", None, 200),
        ("/page/main.js", None, 200),
        ("/page/style.css", None, 200),
        ("/docs", None, 200),
        ("/openapi.json", None, 200),
        ("/metrics?scope=replica", None, 200),
        ("/v1/encode", {"inputs": ["a"]}, 200),
        ("/v1/encode", {"inputs": 1}, 422),
        ("/health", None, 200),
        ("/nowhere", None, 404),
        ("/embed", "{", 400),
    ],
)
async def test_no_answer_is_taken_for_another_type_than_it_says(
    client: httpx.AsyncClient, path: str, body: Any, status: int
) -> None:
    """A browser guesses none, of a page's files, of vectors, or of a refusal."""
    content = body if isinstance(body, str) else json.dumps(body)
    sent = {"content": content, "headers": {"content-type": "application/json"}}
    answer = await (client.get(path) if body is None else client.post(path, **sent))

    assert answer.status_code == status, answer.text
    assert answer.headers.get_list("x-content-type-options") == ["nosniff"]
