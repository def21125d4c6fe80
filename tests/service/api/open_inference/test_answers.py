"""GET /openapi.json describes the routes of the Open Inference Protocol."""

import httpx
import pytest
from jsonschema import Draft202012Validator

from service.api.document import document
from service.api.operations import NOTES
from service.encode.answer import INFERENCE_HEADER

pytestmark = pytest.mark.asyncio(loop_scope="session")

MODEL = "/v2/models/{model}"
EXAMPLES = NOTES["paths"][f"{MODEL}/infer"]["examples"]


def of(schema: str) -> Draft202012Validator:
    """What checks a value against one of the document's schemas."""
    root = {"$ref": f"#/components/schemas/{schema}", "components": document()["components"]}
    return Draft202012Validator(root)


def schema(path: str) -> str:
    """The schema that a GET is answered with."""
    about = document()["paths"][path]["get"]["responses"]["200"]
    named: str = about["content"]["application/json"]["schema"]["$ref"]
    return named.rpartition("/")[2]


@pytest.mark.parametrize(
    "path", ["/v2", "/v2/health/live", "/v2/health/ready", MODEL, f"{MODEL}/ready"]
)
async def test_what_is_read_is_as_described(client: httpx.AsyncClient, path: str) -> None:
    """No field more, no field less."""
    answer = await client.get(path.format(model="all-MiniLM-L6-v2"))

    assert answer.status_code == 200
    of(schema(path)).validate(answer.json())


@pytest.mark.parametrize("name", EXAMPLES)
async def test_the_examples_are_answered_as_described(client: httpx.AsyncClient, name: str) -> None:
    """The JSON, whatever follows it."""
    asked = EXAMPLES[name]["value"]

    of("InferRequest").validate(asked)

    answer = await client.post(f"{MODEL}/infer".format(model="all-MiniLM-L6-v2"), json=asked)

    told = answer.content[: int(answer.headers.get(INFERENCE_HEADER, len(answer.content)))]
    schema = "InferAnswer" if answer.status_code == 200 else "InferError"
    of(schema).validate(httpx.Response(200, content=told).json())


async def test_a_refusal_is_as_described(client: httpx.AsyncClient) -> None:
    """Its code stands next to its status in the document."""
    for model, asked in (("all-MiniLM-L6-v2", {"inputs": []}), ("another", {})):
        answer = await client.post(f"{MODEL}/infer".format(model=model), json=asked)

        of("InferError").validate(answer.json())
        told = document()["paths"][f"{MODEL}/infer"]["post"]["responses"]
        code = answer.json()["error"].partition(":")[0]
        assert code in told[str(answer.status_code)]["description"].split(", ")
