"""GET /openapi.json: the API as a document, made from the types of its requests and answers.

Its examples are requests of notes.yaml and what the service answered to them, examples.json:

    answers     by operation, then by the request's name: status and body
    fields      a value of each field, by its schema's name and its own

Their long lists are cut and their numbers rounded; a test sends the requests again.
"""

import re
from collections.abc import Mapping
from functools import cache
from importlib.metadata import version
from importlib.resources import files
from typing import Any

import orjson
from pydantic import TypeAdapter

from service.api.operations import NOTES, OPERATIONS, Operation
from service.encode.answer import JSON
from service.refusals import REFUSALS

IN_PATH = re.compile(r"{(\w+)}")

OK = 200

Schemas = dict[Any, dict[str, Any]]  # by type
Answered = Mapping[str, Any]  # status and body


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    schemas, components = _schemas()
    shown = examples()
    for name, values in NOTES["schemas"].items():
        components[name]["examples"] = values
    for name, values in shown["fields"].items():
        for field, value in values.items():
            components[name]["properties"][field].setdefault("examples", [value])
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        methods = paths.setdefault(operation.path, {})
        answers = shown["answers"].get(f"{operation.method} {operation.path}", {})
        methods[operation.method] = _operation(operation, schemas, answers)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headlight", "version": version("headlight")},
        "tags": [{"name": name} for name in dict.fromkeys(row.api.name for row in OPERATIONS)],
        "paths": paths,
        "components": {"schemas": components},
    }


def examples() -> dict[str, dict[str, Any]]:
    """What the service answered, and a value of each field."""
    stored: dict[str, dict[str, Any]] = orjson.loads(
        files("service.api").joinpath("examples.json").read_bytes()
    )
    return stored


def _schemas() -> tuple[Schemas, dict[str, Any]]:
    """How the operations refer to each type, and the schemas referred to by name."""
    types = dict.fromkeys(
        kind
        for operation in OPERATIONS
        for kind in (operation.request, operation.answer, operation.api.error)
        if kind is not None
    )
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in types],
        ref_template="#/components/schemas/{model}",
    )
    return {kind: schema for (kind, _), schema in schemas.items()}, definitions["$defs"]


def _operation(
    operation: Operation, schemas: Schemas, answers: Mapping[str, Answered]
) -> dict[str, Any]:
    notes = NOTES["paths"].get(operation.path, {})
    tree: dict[str, Any] = {"summary": operation.summary, "tags": [operation.api.name]}
    if "description" in notes:
        tree["description"] = notes["description"]
    if parameters := [*_in_path(operation.path), *notes.get("parameters", ())]:
        tree["parameters"] = parameters
    if operation.request is not None:
        body = {JSON: {"schema": schemas[operation.request], "examples": notes["examples"]}}
        tree["requestBody"] = {"required": True, "content": body | _content(operation.media)}
    success = {"200": _success(operation, schemas, answers)}
    tree["responses"] = success | _refusals(operation, schemas, answers)
    return tree


def _in_path(path: str) -> list[dict[str, Any]]:
    """The parameters that a path holds."""
    string = {"type": "string"}
    return [
        {"name": name, "in": "path", "required": True, "schema": string}
        for name in IN_PATH.findall(path)
    ]


def _success(
    operation: Operation, schemas: Schemas, answers: Mapping[str, Answered]
) -> dict[str, Any]:
    response: dict[str, Any] = {"description": "The answer." if answers else "No body."}
    content = _content(operation.answer_media)
    if operation.answer is not None:
        json = {"schema": schemas[operation.answer], **_examples(answers, OK)}
        content = {JSON: json, **content}
    elif content:
        response["description"] = "The page."
    if content:
        response["content"] = content
    if operation.headers:
        response["headers"] = operation.headers
    return response


def _content(bodies: Any) -> dict[str, Any]:
    """Bodies by media type."""
    return {form: {} if schema is None else {"schema": schema} for form, schema in bodies.items()}


def _examples(answers: Mapping[str, Answered], status: int) -> dict[str, Any]:
    """The answers of one status, by the names of their requests."""
    bodies = {
        name: {"value": answer["body"]}
        for name, answer in answers.items()
        if answer["status"] == status
    }
    return {"examples": bodies} if bodies else {}


def _refusals(
    operation: Operation, schemas: Schemas, answers: Mapping[str, Answered]
) -> dict[str, Any]:
    """The refusals by status, each with the codes it may carry."""
    api = operation.api
    codes = operation.codes or (api.codes if operation.request is None else api.body_codes)
    error = schemas[api.error]
    by_status: dict[int, list[str]] = {}
    for code in codes:
        own = REFUSALS[code].status
        others = api.statuses if api.shared_statuses is None else api.shared_statuses
        for status in {api.statuses.get(code, own), others.get(code, own)}:
            by_status.setdefault(status, []).append(code)
    return {
        str(status): {
            "description": ", ".join(names),
            "content": {api.media_type: {"schema": error, **_examples(answers, status)}},
        }
        for status, names in sorted(by_status.items())
    }
