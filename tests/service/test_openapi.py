"""GET /openapi.json says what the routes do."""

import httpx
import pytest

pytestmark = pytest.mark.asyncio(loop_scope="session")


@pytest.mark.parametrize("path", ["/v1/attend", "/v1/explain"])
async def test_an_example_is_answered_as_described(client: httpx.AsyncClient, path: str) -> None:
    """Every field that is required comes, and none that is not named."""
    api = (await client.get("/openapi.json")).json()
    about = api["paths"][path]["post"]
    named = about["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    schema = api["components"]["schemas"][named.rpartition("/")[2]]

    example = about["requestBody"]["content"]["application/json"]["example"]
    answer = (await client.post(path, json=example)).json()

    assert set(schema["required"]) <= answer.keys() <= schema["properties"].keys()
