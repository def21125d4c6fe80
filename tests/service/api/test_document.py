"""GET /openapi.json describes what our own routes answer, field by field, and links to the rest."""

import asyncio
import copy
import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

from service.api import ROUTES
from service.api.document import document
from service.api.own import NATIVE
from tests.conftest import posted

SHOWN = [route for route in ROUTES if route.summary and route.when is None]
EXAMPLES = {(route.path, example.name): example for route in SHOWN for example in route.examples}
LARGE = ("/v1/explain", "with its weights")  # it takes seconds to check
EXAMPLE = EXAMPLES["/v1/encode", "a map"].value
OF_FORM: list[dict[str, Any]] = [  # one of every form
    {"layers": [5], "heads": [11]},
    {"form": "rows", "rows": [3], "heads": "L0H5", "level": "word"},
    {"form": "top", "k": 2, "specials": "drop", "dtype": "float16"},
    {"form": "blocks", "size": 2},
    {"form": "mean", "segments": [[1, 2], [2, 3]], "heads": "mean"},
    {"form": "stats"},
    {"form": "dominance", "weight": "probability"},
    {"form": "rollout", "specials": "renormalize"},
    {"form": "why", "rows": [1], "heads": ["L0H2", "L2H3"]},
]
MIXED = EXAMPLES["/v1/attend", "scores"].value
ATTENTION = [
    "Full",
    "Rows",
    "Top",
    "Blocks",
    "Mean",
    "Stats",
    "Dominance",
    "Rollout",
    "Why",
]  # by form
TEXTS = ["All well", {"text": "A", "pair": "b"}]  # short: each number of an answer is checked
ONE = {"token_ids": [7]}


def of(schema: str) -> Draft202012Validator:
    """What checks a value against one of the document's schemas."""
    root = {"$ref": f"#/components/schemas/{schema}", "components": document()["components"]}
    return Draft202012Validator(root)


async def answered(client: httpx.AsyncClient, asked: dict[str, Any]) -> dict[str, Any]:
    """The answer to a request that the document allows."""
    assert of("EncodeRequest").is_valid(asked)
    return await posted(client, "/v1/encode", asked)


async def test_every_schema_is_a_schema_and_every_name_in_it_is_defined() -> None:
    """JSON Schema 2020-12, as OpenAPI 3.1 has it."""
    schemas = document()["components"]["schemas"]

    for schema in schemas.values():
        Draft202012Validator.check_schema(schema)

    assert set(references(document())) <= {f"#/components/schemas/{name}" for name in schemas}


def named(reference: str) -> str:
    """The name that a $ref ends with."""
    return reference.rpartition("/")[2]


def references(tree: Any) -> list[str]:
    """Each $ref in a document."""
    if isinstance(tree, dict):
        own = [tree["$ref"]] if "$ref" in tree else []
        return own + [found for value in tree.values() for found in references(value)]
    return (
        [found for value in tree for found in references(value)] if isinstance(tree, list) else []
    )


@pytest.mark.parametrize("encoding", ["json", "base64"])
@pytest.mark.parametrize("shown", OF_FORM, ids=lambda shown: shown.get("form", "full"))
async def test_every_form_is_answered_as_described(
    client: httpx.AsyncClient, shown: dict[str, Any], encoding: str
) -> None:
    """With every other field that an answer can have; as one form and no other."""
    more = {"tokens": True, "layers": [-1], "encoding": encoding}

    told = await answered(client, {"inputs": TEXTS, "attention": shown, **more})

    of("Answer").validate(told)
    form = shown.get("form", "full").title()
    attention = told["data"][0]["attention"]
    assert [name for name in ATTENTION if of(f"Attention{name}").is_valid(attention)] == [form]


async def test_there_is_an_example_of_every_form() -> None:
    """And a schema."""
    forms = document()["components"]["schemas"]["Attention"]["properties"]["form"]["enum"]

    assert [shown.get("form", "full") for shown in OF_FORM] == forms
    assert [form.title() for form in forms] == ATTENTION


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
    ("path", "asked"),
    [
        ("/v1/encode", EXAMPLE),
        ("/v1/attend", MIXED),
        ("/v1/explain", {"text": "All is well", "layer": 0}),
        ("/v1/heads", None),
        ("/info", None),
        ("/live", None),
        ("/ready", None),
    ],
)
async def test_a_field_that_is_not_described_is_not_an_answer(
    client: httpx.AsyncClient, path: str, asked: dict[str, Any] | None
) -> None:
    """Nor is an answer that lacks one, or holds null for it."""
    answer = await (client.post(path, json=asked) if asked else client.get(path))
    described = document()["paths"][path]["post" if asked else "get"]["responses"]["200"]
    schema = described["content"]["application/json"]["schema"]
    checker = Draft202012Validator({**schema, "components": document()["components"]})
    told = answer.json()
    first = next(iter(told))

    checker.validate(told)
    for wrong in (
        {**told, "more": 1},
        {name: value for name, value in told.items() if name != first},
        {**told, first: None},
    ):
        assert not checker.is_valid(wrong)


async def test_every_answer_but_a_problem_is_closed() -> None:
    """What the service answers has no field that the document does not name."""
    schemas = document()["components"]["schemas"]
    operations = [of_path for path in document()["paths"].values() for of_path in path.values()]
    names = set(references([operation["responses"] for operation in operations]))
    while more := {found for name in names for found in references(schemas[named(name)])} - names:
        names |= more
    objects = {named(name) for name in names if "properties" in schemas[named(name)]}

    open_to_more = {name for name in objects if schemas[name].get("additionalProperties", True)}

    assert len(objects) > 40
    assert open_to_more == {"Problem"}


@pytest.mark.parametrize(
    "embeddings",
    [[[0.5, 1.0]], {"shape": [1, 2], "dtype": "float32", "data": "AAAAAAAAAAA="}],
    ids=["numbers", "base64"],
)
async def test_embeddings_may_be_sent_as_described(embeddings: Any) -> None:
    """A request's schema is not an answer's of the same name."""
    assert of("EncodeRequest").is_valid({"inputs": [{"embeddings": embeddings}]})
    assert not of("EncodeRequest").is_valid({"inputs": [{"embeddings": {"object": "list"}}]})


@pytest.mark.parametrize(
    ("route", "name"),
    [
        pytest.param(*key, id=", ".join(key), marks=pytest.mark.prove if key == LARGE else ())
        for key in EXAMPLES
    ],
)
async def test_an_example_is_allowed_and_answered_as_described(
    client: httpx.AsyncClient, route: str, name: str
) -> None:
    """With a status that stands there, and no fault of the service's."""
    example, about = EXAMPLES[route, name], document()["paths"][route]
    path = route.format(model="all-MiniLM-L6-v2", version=1)

    answer = await client.post(f"{path}?{example.query}", json=example.value)

    schema = about["post"]["requestBody"]["content"]["application/json"]["schema"]
    checker(schema).validate(example.value)
    described = about["post"]["responses"][str(answer.status_code)]["content"]
    checker(described[answer.headers["content-type"]]["schema"]).validate(answer.json())
    assert answer.status_code < 500
    assert ("efused" in example.summary) == (answer.status_code != 200)


async def test_a_route_of_another_api_has_its_document_and_one_example() -> None:
    """Ours need no other, and have examples of each form."""
    for row in SHOWN:
        about = document()["paths"][row.path][row.method]
        assert about.get("externalDocs", {}).get("url", "").startswith("https://") == (
            row.api is not NATIVE
        )
        assert row.request is None or row.examples
        assert row.api is NATIVE or len(row.examples) <= 1


def checker(schema: dict[str, Any]) -> Draft202012Validator:
    """What checks a value against a schema of the document."""
    return Draft202012Validator({**schema, "components": document()["components"]})


def fields() -> Iterator[tuple[str, dict[str, Any]]]:
    """Every field of every request and answer by its schema's name and its own."""
    for name, schema in document()["components"]["schemas"].items():
        for field, described in schema.get("properties", {}).items():
            yield f"{name}.{field}", described


async def test_every_field_is_described_by_a_sentence() -> None:
    """From a capital letter to a full stop."""
    undescribed = [
        name for name, field in fields() if not field.get("description", "").rstrip().endswith(".")
    ]

    assert len(list(fields())) > 300
    assert undescribed == []


async def test_every_route_of_the_service_is_described(client: httpx.AsyncClient) -> None:
    """But the pages for people with their files, and the document itself."""
    served = set[tuple[str, str]]()
    for path in {row.path for row in ROUTES}:
        named = path.replace("{version}", "1").replace("{model}", "m").replace("{id}", "m")
        refused = await client.delete(named)
        assert refused.status_code == 405, path
        served |= {(path, method) for method in refused.headers["allow"].split(", ")}

    described = {
        (path, method.upper())
        for path, operations in document()["paths"].items()
        for method in operations
    }
    unshown = {(row.path, "GET") for row in ROUTES if not row.summary}
    assert {pair for pair in served if pair[1] != "HEAD"} - unshown == described


async def test_the_table_needs_no_torch() -> None:
    """The chart is rendered from it where no model runs."""
    code = "import sys, service.api; sys.exit('torch' in sys.modules)"

    process = await asyncio.create_subprocess_exec(sys.executable, "-c", code)

    assert await process.wait() == 0


async def test_headers_of_encoded_inputs_are_described(client: httpx.AsyncClient) -> None:
    """On each route that encodes, and on no other."""
    named = {"x-headlight-space", "x-headlight-truncated", "x-headlight-warning"}

    answer = await client.post("/embed", json={"inputs": ["well " * 300, " "]})

    assert named <= answer.headers.keys()
    for row in SHOWN:
        success = document()["paths"][row.path][row.method]["responses"]["200"]
        assert named & {*success.get("headers", ())} == (named if row.parse else set()), row.path


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


@pytest.mark.parametrize(
    ("asked", "facts"),
    [
        ({"inputs": [{"token_ids": [7] * 200}], "attention": {}}, {"bytes", "limit"}),
        ({"inputs": [ONE], "attention": {"layers": [6]}}, {"layers", "heads", "errors"}),
        ({"inputs": [{"token_ids": [7] * 256}] * 1172}, {"tokens", "limit"}),
        ({"inputs": [{"token_ids": [7] * 300}]}, {"length", "limit", "errors"}),
        ({"inputs": ["a"], "prompt_name": "query"}, {"prompts", "errors"}),
    ],
    ids=["bytes", "heads", "tokens", "length", "prompt"],
)
async def test_a_refusal_is_described(
    client: httpx.AsyncClient, asked: dict[str, Any], facts: set[str]
) -> None:
    """With its facts."""
    told = (await client.post("/v1/encode", json=asked)).json()

    of("Problem").validate(told)
    known = document()["components"]["schemas"]["Problem"]["properties"]
    assert told.keys() <= known.keys()
    always = {"type", "title", "status", "code", "detail", "error", "request_id"}
    assert told.keys() - always == facts


async def test_metrics_are_described_in_both_their_forms(client: httpx.AsyncClient) -> None:
    """The media types of the document are those that are answered."""
    described = document()["paths"]["/metrics"]["get"]["responses"]["200"]["content"]
    types = [
        (await client.get("/metrics", headers={"accept": media_type})).headers["content-type"]
        for media_type in described
    ]

    assert [media_type.partition(";")[0] for media_type in types] == list(described)
    assert len(set(types)) == 2
