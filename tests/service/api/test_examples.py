"""The examples of the API's document are what the service answers today.

`--write-golden` sends every request of service/api/notes.yaml and writes service/api/examples.json.
"""

import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from jsonschema import Draft202012Validator

import service.api
from service.api.document import document, examples
from service.api.operations import NOTES, OPERATIONS, Operation

pytestmark = pytest.mark.asyncio(loop_scope="session")

STORED = Path(service.api.__file__).with_name("examples.json")
TOLERANCE = 2e-3  # of a number, which is stored with four digits
MODEL = "all-MiniLM-L6-v2"
MOST_ENTRIES, NUMBERS, OTHERS = 8, 4, 2  # of a list that is shown whole, and of one that is cut
MOST_CHARACTERS = 120  # of a field's example
NOTHING: tuple[Any, ...] = (None, [], {})
# what changes from run to run, from machine to machine or from release to release
CHANGING = {"request_id", "queue_ms", "compute_ms", "numerics", "versions", "version", "limits"}
CHANGING |= {"tokenization_workers", "max_batch_tokens", "created", "stats"}
BASE64 = ("/data", "/embedding", "/base64/0")
UNIQUE = re.compile(r"[0-9a-f]{8}-[0-9a-f-]{27}")  # an answer's id


def requests() -> Iterator[tuple[Operation, str, dict[str, Any]]]:
    """Every request that the document shows, by its operation and name."""
    for operation in OPERATIONS:
        asked = NOTES["paths"].get(operation.path, {}).get("examples", {"an answer": {}})
        if operation.request is not None or operation.answer:
            yield from ((operation, name, example) for name, example in asked.items())


async def test_every_answer_shown_is_the_services(
    client: httpx.AsyncClient, pytestconfig: pytest.Config
) -> None:
    """To four digits, long lists cut."""
    answers: dict[str, Any] = {}
    for operation, name, example in requests():
        answer = await ask(client, operation, example)
        if answer.headers["content-type"].endswith("json"):
            body = short(answer.json())
            entry = {"status": answer.status_code, "body": body}
            answers.setdefault(f"{operation.method} {operation.path}", {})[name] = entry
    if pytestconfig.getoption("--write-golden"):
        STORED.write_text(written({"answers": answers, "fields": fields(answers)}))
        document.cache_clear()

    stored = examples()

    assert [*differences(flat(stored["answers"]), flat(answers))] == []
    assert stored["fields"] == fields(stored["answers"])


async def ask(
    client: httpx.AsyncClient, operation: Operation, example: dict[str, Any]
) -> httpx.Response:
    """What the service answers to an example."""
    path = operation.path.format(id=MODEL, model=MODEL, version=1)
    query = f"?{example['x-query']}" if "x-query" in example else ""
    return await client.request(operation.method, path + query, json=example.get("value"))


async def test_what_is_shown_is_described() -> None:
    """By the schemas next to it."""
    for path, methods in document()["paths"].items():
        for method, operation in methods.items():
            bodies = [*operation["responses"].values()]
            bodies += [operation["requestBody"]] if "requestBody" in operation else []
            for media in (media for body in bodies for media in body.get("content", {}).values()):
                for name, example in media.get("examples", {}).items():
                    assert checker(media["schema"]).is_valid(example["value"]), (method, path, name)


async def test_every_field_has_an_example() -> None:
    """Its own, or those of the fields of the object that it is."""
    schemas = document()["components"]["schemas"]
    bare = [
        f"{name}.{field}"
        for name, schema in schemas.items()
        for field, described in schema.get("properties", {}).items()
        if "examples" not in described and not objects(described)
    ]

    assert bare == []


async def test_every_kind_of_answer_is_shown() -> None:
    """Of each route that answers JSON, a real one."""
    missing = [
        f"{operation.method} {operation.path}"
        for operation in OPERATIONS
        if operation.answer
        and " | " not in operation.answer
        and f"{operation.method} {operation.path}" not in examples()["answers"]
    ]

    assert missing == []


def short(value: Any) -> Any:
    """A value with its long lists cut and its numbers rounded."""
    if isinstance(value, dict):
        return {name: short(each) for name, each in value.items()}
    if isinstance(value, list):
        few = OTHERS if any(isinstance(each, list | dict) for each in value) else NUMBERS
        return [short(each) for each in (value if len(value) <= MOST_ENTRIES else value[:few])]
    return float(f"{value:.4g}") if isinstance(value, float) else value


def flat(value: Any, place: str = "") -> dict[str, Any]:
    """Every leaf by its place, without what changes."""
    pairs = (
        value.items()
        if isinstance(value, dict)
        else enumerate(value)
        if isinstance(value, list)
        else ()
    )
    inner = [(f"{place}/{key}", each) for key, each in pairs if key not in CHANGING]
    leaves = {place: value} if not isinstance(value, dict | list) else {}
    return leaves | {at: leaf for key, each in inner for at, leaf in flat(each, key).items()}


def differences(stored: dict[str, Any], seen: dict[str, Any]) -> Iterator[str]:
    """Where two sets of leaves differ; bytes in base64 may, in their last bits."""
    for place in stored.keys() | seen.keys():
        one, other = (leaves.get(place, "nothing") for leaves in (stored, seen))
        if isinstance(one, float) and isinstance(other, float | int):
            if not math.isclose(one, other, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
                yield f"{place} is {other}, was {one}"
        elif one != other and not place.endswith(BASE64) and not _unique(one, other):
            yield f"{place} is {other}, was {one}"


def _unique(one: Any, other: Any) -> bool:
    """Whether both are ids, of which no two answers have the same."""
    return all(UNIQUE.fullmatch(str(each)) for each in (one, other))


def checker(schema: dict[str, Any]) -> Draft202012Validator:
    """What checks a value against a schema of the document."""
    return Draft202012Validator({**schema, "components": document()["components"]})


def fields(answers: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """A value of every field, the first that says something in what is sent and answered."""
    found: dict[str, dict[str, Any]] = {}
    api = document()
    for method, path in ((row.method, row.path) for row in OPERATIONS):
        about = api["paths"][path][method]
        body = about.get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in body.get("examples", {}).values():
            visit(body["schema"], example["value"], found)
        for answer in answers.get(f"{method} {path}", {}).values():
            (media, *_) = about["responses"][str(answer["status"])]["content"].values()
            visit(media["schema"], answer["body"], found)
    for name, shown in NOTES["schemas"].items():
        for value in shown:
            visit({"$ref": f"#/components/schemas/{name}"}, value, found)
    return {name: found[name] for name in sorted(found)}


def visit(schema: dict[str, Any], value: Any, found: dict[str, dict[str, Any]]) -> None:
    """Note the values of a value's fields."""
    if "$ref" in schema:
        name = schema["$ref"].rpartition("/")[2]
        schema = document()["components"]["schemas"][name]
        own, stored = schema.get("properties", {}), examples()["fields"].get(name, {})
        for field in own.keys() & value.keys() if isinstance(value, dict) else ():
            if not objects(own[field]) and ("examples" not in own[field] or field in stored):
                values = found.setdefault(name, {})
                if values.get(field) in NOTHING:
                    values[field] = least(value[field])
        if name in found:
            found[name] = {field: found[name][field] for field in own if field in found[name]}
    for branch in schema.get("anyOf", []) + schema.get("oneOf", []):
        if checker(branch).is_valid(value):
            visit(branch, value, found)
    if isinstance(value, dict):
        for field, each in value.items():
            inner = schema.get("properties", {}).get(field, schema.get("additionalProperties"))
            if isinstance(inner, dict):
                visit(inner, each, found)
    elif isinstance(value, list):
        for each in value[:MOST_ENTRIES]:
            visit(schema.get("items", {}), each, found)


def least(value: Any) -> Any:
    """As much of a value as a field's example may hold: the first entries of its lists."""
    for most in (4, 2, 1):
        if len(json.dumps(value)) > MOST_CHARACTERS:
            value = first(value, most)
    return value


def first(value: Any, most: int) -> Any:
    """A value with so many entries of each list and object."""
    if isinstance(value, dict):
        return {name: first(each, most) for name, each in [*value.items()][:most]}
    return [first(each, most) for each in value[:most]] if isinstance(value, list) else value


def written(tree: dict[str, Any]) -> str:
    """The file, an answer or a schema's fields on a line."""
    parts = []
    for part, groups in tree.items():
        lines = []
        for name, values in groups.items():
            inner = [f"   {json.dumps(key)}: {json.dumps(value)}" for key, value in values.items()]
            lines.append(f"  {json.dumps(name)}: {{\n" + ",\n".join(inner) + "\n  }")
        parts.append(f" {json.dumps(part)}: {{\n" + ",\n".join(lines) + "\n }")
    return "{\n" + ",\n".join(parts) + "\n}\n"


def objects(schema: Any) -> bool:
    """Whether a field is an object whose own fields are described, or holds such."""
    if isinstance(schema, list):
        return any(map(objects, schema))
    if not isinstance(schema, dict):
        return False
    if "$ref" in schema:
        target = document()["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
        return "properties" in target or objects(target)
    inner = ("anyOf", "oneOf", "items", "additionalProperties")
    return any(objects(schema.get(part)) for part in inner)
