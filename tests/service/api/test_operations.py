"""The OpenAPI document describes the routes of other APIs as they answer."""

import asyncio
import sys
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from service.api.document import document
from service.api.operations import OPENAI, OPERATIONS, PAGES, TEI

pytestmark = pytest.mark.asyncio(loop_scope="session")

ROUTES = {route.path: route for route in OPERATIONS if route.api in (OPENAI, TEI)}
ASKED = [path for path, route in ROUTES.items() if route.request]


def of(schema: str) -> Draft202012Validator:
    """What checks a value against one of the document's schemas."""
    root = {"$ref": f"#/components/schemas/{schema}", "components": document()["components"]}
    return Draft202012Validator(root)


def request(path: str) -> str:
    """The schema of what a path takes."""
    body = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    return str(body["schema"]["$ref"].rpartition("/")[2])


def answered(path: str, status: str) -> str:
    """The schema of what a path answers with a status."""
    responses = document()["paths"][path][ROUTES[path].method]["responses"]
    schema = responses[status]["content"]["application/json"]["schema"]
    return str(schema["$ref"].rpartition("/")[2])


@pytest.mark.parametrize("path", ASKED)
async def test_an_example_is_allowed_and_answered_as_described(
    client: httpx.AsyncClient, path: str
) -> None:
    """Every field, and no other."""
    asked = document()["paths"][path]["post"]["requestBody"]["content"]["application/json"]
    for example in asked["examples"].values():
        answer = await client.post(path, json=example["value"])

        of(request(path)).validate(example["value"])
        of(answered(path, str(answer.status_code))).validate(answer.json())


FORMS: dict[str, list[Any]] = {
    "/v1/embeddings": [
        {"model": "all-MiniLM-L6-v2", "input": given, "encoding_format": form, "dimensions": 5}
        for given in ("a", ["a", "b"], [101, 102], [[101], [102, 7]])
        for form in ("float", "base64")
    ],
    "/embed": [{"inputs": [[101], [7]], "truncation_direction": "Left", "normalize": False}],
    "/tokenize": [{"inputs": ["a", "b"], "add_special_tokens": False}],
    "/decode": [{"ids": [[2035], [2003]], "skip_special_tokens": False}],
}


@pytest.mark.parametrize("path", FORMS)
async def test_every_form_of_a_request_is_described(client: httpx.AsyncClient, path: str) -> None:
    """And its answer."""
    for form in FORMS[path]:
        answer = await client.post(path, json=form)
        of(request(path)).validate(form)
        assert answer.status_code == 200, answer.text
        of(answered(path, "200")).validate(answer.json())


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/all-MiniLM-L6-v2", "/models", "/info"])
async def test_what_takes_no_body_is_answered_as_described(
    client: httpx.AsyncClient, path: str
) -> None:
    """Models by name or all, and what the service says of itself."""
    schemas = {"/v1/models": "Models", "/models": "Models", "/info": "Info"}
    schema = schemas.get(path, "Model")

    told = (await client.get(path)).json()

    of(schema).validate(told)
    described = document()["components"]["schemas"][schema]
    assert told.keys() == set(described["required"])


@pytest.mark.parametrize("path", ROUTES)
async def test_a_refusal_is_described(client: httpx.AsyncClient, path: str) -> None:
    """Its status stands there, and its body has the API's shape."""
    route = ROUTES[path]
    asked = path.replace("{id}", "other")
    if route.method == "post":
        answer = await client.post(asked, content=b'{"inputs":"","input":"","ids":[]}')
    else:
        answer = await client.delete(asked)

    of(answered(path, str(answer.status_code))).validate(answer.json())


async def test_every_route_of_the_service_is_described(client: httpx.AsyncClient) -> None:
    """But the pages for people with their files, and the document itself."""
    served = set[tuple[str, str]]()
    for path in {row.path for row in (*OPERATIONS, *PAGES)}:
        named = path.replace("{version}", "1").replace("{model}", "m").replace("{id}", "m")
        refused = await client.delete(named)
        assert refused.status_code == 405, path
        served |= {(path, method) for method in refused.headers["allow"].split(", ")}

    described = {
        (path, method.upper())
        for path, operations in document()["paths"].items()
        for method in operations
    }
    unshown = {(row.path, "GET") for row in PAGES}
    assert {pair for pair in served if pair[1] != "HEAD"} - unshown == described


async def test_the_table_needs_no_torch() -> None:
    """The chart is rendered from it where no model runs."""
    code = "import sys, service.api.operations; sys.exit('torch' in sys.modules)"

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)

    assert await process.wait() == 0
