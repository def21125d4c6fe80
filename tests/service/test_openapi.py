"""GET /openapi.json describes what the service answers, field by field."""

import copy
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from service.openapi import EXAMPLE, GATED, SHOWN, document
from service.shapes import ATTENTION

pytestmark = pytest.mark.asyncio(loop_scope="session")

TEXTS = ["All is well", {"text": "Unbelievable headlights", "pair": "They outshine tokenizers"}]
ONE = {"token_ids": [7]}


def of(schema: str) -> Draft202012Validator:
    """What checks a value against one of the document's schemas."""
    root = {"$ref": f"#/components/schemas/{schema}", "components": document()["components"]}
    return Draft202012Validator(root)


async def answered(client: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that the document allows."""
    assert of("EncodeRequest").is_valid(asked)
    answer = await client.post("/v1/encode", json=asked)
    assert answer.status_code == 200, answer.text
    told: dict[str, Any] = answer.json()
    return told


async def test_every_schema_is_a_schema_and_every_name_in_it_is_defined() -> None:
    """JSON Schema 2020-12, as OpenAPI 3.1 has it."""
    schemas = document()["components"]["schemas"]

    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)

    assert set(references(document())) <= {f"#/components/schemas/{name}" for name in schemas}


def references(tree: Any) -> list[str]:
    """Each $ref in a document."""
    if isinstance(tree, dict):
        own = [tree["$ref"]] if "$ref" in tree else []
        return own + [found for value in tree.values() for found in references(value)]
    return (
        [found for value in tree for found in references(value)] if isinstance(tree, list) else []
    )


@pytest.mark.parametrize("encoding", ["json", "base64"])
@pytest.mark.parametrize("shown", SHOWN, ids=lambda shown: shown.get("form", "full"))
async def test_every_form_is_answered_as_described(
    client: httpx.AsyncClient, shown: dict[str, Any], encoding: str
) -> None:
    """With every other field that an answer can have; as one form and no other."""
    more = {"tokens": True, "layers": [0, -1], "encoding": encoding}

    told = await answered(client, {"inputs": TEXTS, "attention": shown, **more})

    of("Answer").validate(told)
    form = f"Attention{shown.get('form', 'full').title()}"
    attention = told["data"][0]["attention"]
    assert [name for name in ATTENTION if of(name).is_valid(attention)] == [form]


async def test_there_is_an_example_of_every_form() -> None:
    """And a schema."""
    forms = document()["components"]["schemas"]["Attention"]["properties"]["form"]["enum"]

    assert [shown.get("form", "full") for shown in SHOWN] == forms
    assert list(ATTENTION) == [f"Attention{form.title()}" for form in forms]


async def test_what_is_not_described_is_not_an_answer(client: httpx.AsyncClient) -> None:
    """A form with a field too many or too few, a row that is no list, a number that is a word."""
    told = await answered(client, EXAMPLE)

    for field, value in {
        "form": "shape",
        "maps": {"0": {"5": [0.5]}},
        "map": [[1.0]],
        "path": None,
    }.items():
        wrong = copy.deepcopy(told)
        wrong["data"][0]["attention"][field] = value
        assert not of("Answer").is_valid(wrong), field


@pytest.mark.parametrize(
    "asked", [EXAMPLE, GATED, {"inputs": [ONE]}], ids=["shown", "gated", "ids"]
)
async def test_the_examples_are_answered(client: httpx.AsyncClient, asked: dict[str, Any]) -> None:
    """What the document proposes works, and is what it says."""
    of("Answer").validate(await answered(client, asked))


async def test_a_statistic_of_nothing_is_described(client: httpx.AsyncClient) -> None:
    """null is a number that is none."""
    told = await answered(client, {"inputs": [ONE], "attention": {"form": "stats"}})

    of("Answer").validate(told)
    assert None in told["data"][0]["attention"]["stats"]["values"]["0"]["0"]


async def test_a_dry_run_is_described(client: httpx.AsyncClient) -> None:
    """The parameter, and both ways that it ends."""
    parameter = document()["paths"]["/v1/encode"]["post"]["parameters"][0]
    large = {"inputs": [{"token_ids": [7] * 200}], "attention": {}}

    assert (parameter["name"], parameter["in"]) == ("dry_run", "query")
    for asked in (EXAMPLE, large):
        told = (await client.post("/v1/encode?dry_run=true", json=asked)).json()
        of("Priced").validate(told)
        assert not of("Answer").is_valid(told)


async def test_a_refusal_is_described(client: httpx.AsyncClient) -> None:
    """With its offers."""
    large = {"inputs": [{"token_ids": [7] * 200}], "attention": {}}

    told = (await client.post("/v1/encode", json=large)).json()

    of("Problem").validate(told)
    known = document()["components"]["schemas"]["Problem"]["properties"]
    assert told["fits"] and told.keys() <= known.keys()


@pytest.mark.parametrize("path", ["/v1/attend", "/v1/explain"])
async def test_an_example_is_answered_as_described(client: httpx.AsyncClient, path: str) -> None:
    """Every field that is required comes, and none that is not named."""
    about = document()["paths"][path]["post"]
    schema = about["responses"]["200"]["content"]["application/json"]["schema"]["$ref"]
    name = schema.rpartition("/")[2]

    example = about["requestBody"]["content"]["application/json"]["example"]
    answer = (await client.post(path, json=example)).json()

    of(name).validate(answer)
    assert answer.keys() <= document()["components"]["schemas"][name]["properties"].keys()


async def test_metrics_are_described_in_both_their_forms(client: httpx.AsyncClient) -> None:
    """The media types of the document are those that are answered."""
    described = document()["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    types = [
        (await client.get("/metrics", headers={"accept": media_type})).headers["content-type"]
        for media_type in described
    ]

    assert [media_type.partition(";")[0] for media_type in types] == list(described)
    assert len(set(types)) == 2
