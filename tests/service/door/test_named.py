"""The model that a request's header names, as a replica judges it."""

from collections.abc import Callable

import httpx
import pytest

from service.api import ROUTES
from service.cluster.choose_model import MODEL_HEADER, NAMES_HEADER
from service.tables.keys import parse_keys
from tests.conftest import Connected

OWN, KEY = "all-MiniLM-L6-v2", "canary-Key_123456789"
TOLD = {NAMES_HEADER: f"{OWN}, second"}
ASKED = sorted(
    {(route.method.upper(), route.path.replace("{", "").replace("}", "")) for route in ROUTES}
)
ASKED += [("HEAD", "/live"), ("OPTIONS", "/v1/encode"), ("PUT", "/v1/encode"), ("GET", "/nowhere")]


@pytest.mark.parametrize("told", [{}, TOLD], ids=["alone", "of two"])
async def test_an_unknown_name_is_refused_on_every_route_with_all_names(
    client: httpx.AsyncClient, told: dict[str, str]
) -> None:
    """Before a body is read, and in the form of the route's API."""
    answers = {
        asked: await client.request(*asked, headers={MODEL_HEADER: "nope", **told})
        for asked in ASKED
    }

    assert {asked: answer.status_code for asked, answer in answers.items()} == dict.fromkeys(
        answers, 404
    )
    spoken = [answer.text for (method, _), answer in answers.items() if method != "HEAD"]
    assert all(OWN in text and ("second" in text) == bool(told) for text in spoken)


async def test_a_name_that_occurs_twice_is_refused(client: httpx.AsyncClient) -> None:
    """HAProxy might read one, and the replica the other."""
    twice = [(MODEL_HEADER, OWN), (MODEL_HEADER, OWN)]
    answers = [await client.get("/live", headers=twice)]
    answers += [await client.post("/embed", json={"inputs": "a"}, headers=twice)]
    answers += [await client.get("/live", headers={"x_headlight_model": OWN})]

    assert [answer.status_code for answer in answers] == [400, 400, 400]


@pytest.mark.parametrize("told", [{}, TOLD], ids=["alone", "of two"])
async def test_its_own_name_is_taken_as_in_a_body(
    client: httpx.AsyncClient, told: dict[str, str]
) -> None:
    """In any case, with or without an organisation, and `latest`."""
    for name in (OWN, OWN.upper(), f"org/{OWN}", f"{OWN}:latest"):
        headers = {MODEL_HEADER: name, **told}
        assert (await client.get("/v1/models", headers=headers)).status_code == 200
        assert (await client.post("/embed", json={"inputs": "a"}, headers=headers)).is_success


async def test_a_replica_speaks_for_no_other_model_where_haproxy_led_it_wrong(
    client: httpx.AsyncClient,
) -> None:
    """The other one is there, but not here; a POST would be sent on."""
    answer = await client.get("/live", headers={MODEL_HEADER: "second", **TOLD})

    assert (answer.status_code, answer.json()["code"]) == (404, "model_not_found")


async def test_names_are_not_told_to_who_has_no_key(served: Callable[..., Connected]) -> None:
    """On a path that needs none."""
    async with served(api_keys=parse_keys(f"me:{KEY}")) as client:
        headers = {MODEL_HEADER: "nope", **TOLD}
        without = await client.get("/live", headers=headers)
        with_key = await client.get(
            "/v1/models", headers=headers | {"authorization": f"Bearer {KEY}"}
        )

    assert (without.status_code, with_key.status_code) == (404, 404)
    assert OWN not in without.text and OWN in with_key.text
