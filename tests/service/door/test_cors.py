"""Which pages may ask from a browser."""

from collections.abc import Callable

import httpx
import pytest

from service.tables.keys import Key

PAGE = {"origin": "https://page.example"}
JSON = {"content-type": "application/json"}
PREFLIGHT = {**PAGE, "access-control-request-method": "POST"}
ASKED = {"inputs": ["All is well"]}

Served = Callable[..., httpx.AsyncClient]


async def test_by_default_no_answer_mentions_an_origin(client: httpx.AsyncClient) -> None:
    """Right, refused, or to a preflight."""
    answers = [
        await client.post("/v1/encode", json=ASKED, headers=PAGE),
        await client.post("/v1/encode", content=b"{", headers=PAGE | JSON),
        await client.options("/v1/encode", headers=PREFLIGHT),
        await client.get("/nothing", headers=PAGE),
    ]

    assert [answer.status_code for answer in answers] == [200, 400, 405, 404]
    for answer in answers:
        assert not [name for name in answer.headers if name.startswith("access-control")]


async def test_a_page_of_a_named_origin_may_ask_and_read_our_headers(served: Served) -> None:
    """With a key, and refusals too: without the header a browser shows its page no status."""
    wanted = "authorization, content-type, x-request-id, x-headlight-deadline-ms"
    async with served(cors_origins=(PAGE["origin"],), api_keys=(Key("a", "0" * 64),)) as client:
        preflight = await client.options(
            "/v1/encode", headers={**PREFLIGHT, "access-control-request-headers": wanted}
        )
        refused = await client.post("/v1/encode", json=ASKED, headers=PAGE)
        read = await client.get("/live", headers=PAGE)

    assert preflight.status_code == 200
    assert [answer.status_code for answer in (refused, read)] == [401, 200]
    for answer in (preflight, refused, read):
        assert answer.headers["access-control-allow-origin"] == PAGE["origin"]
        assert "access-control-allow-credentials" not in answer.headers
    exposed = read.headers["access-control-expose-headers"].lower()
    assert {"x-request-id", "x-headlight-warning", "retry-after"} <= set(exposed.split(", "))
    assert refused.headers["vary"] == "Origin"


@pytest.mark.parametrize("origin", ["https://other.example", "null", "https://page.example.evil"])
async def test_a_page_of_another_origin_may_not(served: Served, origin: str) -> None:
    """Neither a preflight nor an answer says otherwise."""
    async with served(cors_origins=(PAGE["origin"],)) as client:
        preflight = await client.options("/v1/encode", headers={**PREFLIGHT, "origin": origin})
        answer = await client.post("/v1/encode", json=ASKED, headers={"origin": origin})

    assert preflight.status_code == 400
    for each in (preflight, answer):
        assert "access-control-allow-origin" not in each.headers


@pytest.mark.parametrize("origins", [(PAGE["origin"],), ("*",)])
async def test_an_allowed_page_may_send_the_headers_that_it_asks_for(
    served: Served, origins: tuple[str, ...]
) -> None:
    """OpenAI's client describes itself in some; what is no name of a header is not echoed."""
    wanted = "authorization,content-type,x-stainless-arch,x-stainless-lang,x-stainless-retry-count"
    async with served(cors_origins=origins) as client:
        asked, strange = [
            await client.options(
                "/v1/embeddings", headers={**PREFLIGHT, "access-control-request-headers": names}
            )
            for names in (wanted, 'x-own: "1"')
        ]

    assert [asked.status_code, strange.status_code] == [200, 400]
    assert asked.headers["access-control-allow-headers"] == wanted
    assert "access-control-allow-headers" not in strange.headers


async def test_a_star_lets_every_page_ask(served: Served) -> None:
    """There are no cookies here that it could misuse."""
    async with served(cors_origins=("*",)) as client:
        answer = await client.post("/v1/encode", json=ASKED, headers=PAGE)

    assert answer.headers["access-control-allow-origin"] == "*"


async def test_a_page_that_may_ask_need_not_ask_first(served: Served) -> None:
    """What needs no preflight is taken of it, and of no other."""
    body = b'{"inputs":["All is well"]}'
    async with served(cors_origins=(PAGE["origin"],)) as client:
        own = await client.post("/v1/encode", content=body, headers=PAGE)
        other = await client.post("/v1/encode", content=body, headers={"origin": "null"})

    assert [own.status_code, other.status_code] == [200, 403]
    assert other.json()["code"] == "forbidden_origin"
