"""GET /openapi.json: the API as a document, made from the types of its requests and answers."""

import re
from functools import cache
from importlib.metadata import version
from typing import Any, Never

from pydantic import TypeAdapter

from service.api.operations import NOTES, OPERATIONS, Operation
from service.encode.answer import JSON
from service.refusals import REFUSALS

IN_PATH = re.compile(r"{(\w+)}")

Schemas = dict[Any, dict[str, Any]]  # by type


@cache
def document() -> dict[str, Any]:
    """The OpenAPI 3.1 document."""
    schemas, components = _schemas()
    for name, examples in NOTES["schemas"].items():
        components[name]["examples"] = examples
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        methods = paths.setdefault(operation.path, {})
        methods[operation.method] = _operation(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headlight", "version": version("headlight")},
        "paths": paths,
        "components": {"schemas": components},
    }


def _schemas() -> tuple[Schemas, dict[str, Any]]:
    """How the operations refer to each type, and the schemas referred to by name."""
    types = dict.fromkeys(
        kind
        for operation in OPERATIONS
        for kind in (operation.request, operation.answer, operation.api.error)
        if kind not in (None, Never)
    )
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in types],
        ref_template="#/components/schemas/{model}",
    )
    return {kind: schema for (kind, _), schema in schemas.items()}, definitions["$defs"]


def _operation(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    notes = NOTES["paths"].get(operation.path, {})
    tree: dict[str, Any] = {"summary": operation.summary}
    if "description" in notes:
        tree["description"] = notes["description"]
    if parameters := [*_in_path(operation.path), *notes.get("parameters", ())]:
        tree["parameters"] = parameters
    if operation.request is not None:
        body = {JSON: {"schema": schemas[operation.request], **notes["body"]}}
        tree["requestBody"] = {"required": True, "content": body | _content(operation.media)}
    success = {} if operation.answer is Never else {"200": _success(operation, schemas)}
    tree["responses"] = success | _refusals(operation, schemas)
    return tree


def _in_path(path: str) -> list[dict[str, Any]]:
    """The parameters that a path holds."""
    string = {"type": "string"}
    return [
        {"name": name, "in": "path", "required": True, "schema": string}
        for name in IN_PATH.findall(path)
    ]


def _success(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    response: dict[str, Any] = {"description": operation.summary}
    content = _content(operation.answer_media)
    if operation.answer is not None:
        content = {JSON: {"schema": schemas[operation.answer]}, **content}
    if content:
        response["content"] = content
    if operation.headers:
        response["headers"] = operation.headers
    return response


def _content(bodies: Any) -> dict[str, Any]:
    """Bodies by media type."""
    return {form: {} if schema is None else {"schema": schema} for form, schema in bodies.items()}


def _refusals(operation: Operation, schemas: Schemas) -> dict[str, Any]:
    """The refusals by status, each with the codes it may carry."""
    api = operation.api
    codes = operation.codes or (api.codes if operation.request is None else api.body_codes)
    content = {api.media_type: {"schema": schemas[api.error]}}
    by_status: dict[int, list[str]] = {}
    for code in codes:
        by_status.setdefault(api.statuses.get(code, REFUSALS[code].status), []).append(code)
    return {
        str(status): {"description": ", ".join(names), "content": content}
        for status, names in sorted(by_status.items())
    }
