"""The OpenAPI document, made from the table of routes.

Requests are described by the types that parse them, our own answers by answers.yaml. Answers of
other APIs are described in those APIs' own documents, to which their routes link.
"""

import re
from collections.abc import Iterable, Sequence
from functools import cache, reduce
from importlib.resources import files
from operator import or_
from typing import Any, get_args

import orjson
import yaml
from pydantic import TypeAdapter

from model.config import Task
from model.maps.choices import STATISTIC_FIELDS
from service import VERSION
from service.api import ROUTES
from service.shapes.answer import JSON
from service.shapes.call import UNDESCRIBED, Route
from service.tables.refusals import MEDIA_TYPE, REFUSALS
from service.tables.wording.wire import IGNORED, SPACE, TRUNCATED, WARNING

ENUM_VALUES = {  # the enums that answers.yaml takes from the code, by the kind's name there
    "code": sorted(REFUSALS),
    "statistic": list(STATISTIC_FIELDS),
    "task": list(get_args(Task)),
}
# The answers of the bundled model to the examples, shortened, by path and name: written by
# `python -m tests.service.api.test_example_answers`
ANSWERS: dict[str, dict[str, Any]] = orjson.loads(
    files("service.api").joinpath("example_answers.json").read_bytes()
)


def _describe_header(kind: str, sentence: str) -> dict[str, Any]:
    """Return a header of an answer as OpenAPI writes it."""
    return {"schema": {"type": kind}, "description": sentence}


ENCODED_HEADERS = {  # of answers of routes that encode
    SPACE: _describe_header(
        "string", "the name of the vectors' space; not sent where there is none"
    ),
    TRUNCATED: _describe_header("integer", "how many inputs were cut; not sent where none were"),
    WARNING: _describe_header(
        "string",
        "what is odd about inputs, if anything: texts that are blank; token ids without this "
        "model's special tokens at either end, as those of another vocabulary",
    ),
}
FOREIGN_HEADERS = {  # of answers to requests of other APIs
    IGNORED: _describe_header(
        "string",
        "fields that this route does not know: up to 8 names, then + and the count of others",
    )
}
SCHEMA_PREFIX = "#/components/schemas/"  # of references to a schema
PATH_PARAMETER = re.compile(r"{(\w+)}")  # in the path of a route
UNION_BAR = re.compile(r" \| (?![^({]*[)}])")  # between the members of a kind, outside brackets

Schemas = dict[Any, dict[str, Any]]  # by the Python type that each describes


@cache
def document() -> dict[str, Any]:
    """Return the OpenAPI 3.1 document."""
    rows = [row for row in ROUTES if row.summary]
    shared: dict[tuple[str, str], list[Route]] = {}
    for row in rows:
        shared.setdefault((row.path, row.method), []).append(row)
    requests = [_request_type(routes) for routes in shared.values()]
    answers = [getattr(request, "answer", None) for request in requests]
    schemas, components = _collect_schemas(
        [kind for kind in (*requests, *answers) if kind is not None]
    )
    paths: dict[str, dict[str, Any]] = {}
    for (path, method), routes in shared.items():
        paths.setdefault(path, {})[method] = _describe_operation(routes, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Headlight", "version": VERSION},
        "tags": [{"name": name} for name in dict.fromkeys(row.api.name for row in rows)],
        "paths": paths,
        "components": {"schemas": components},
    }


def write_document(root: str) -> bytes:
    """Return the document as JSON, for a service mounted below `root`; empty: it is not."""
    return orjson.dumps(document() | {"servers": [{"url": root or "/"}]})


def _request_type(rows: Sequence[Route]) -> Any:
    """Return the type of the body that routes with one path and method take, or None."""
    first, *others = (row.request for row in rows)
    return reduce(or_, others, first)


def _collect_schemas(kinds: Iterable[Any]) -> tuple[Schemas, dict[str, Any]]:
    """Return the schema or reference of each type, and the document's components by name."""
    schemas, definitions = TypeAdapter.json_schemas(
        [(kind, "validation", TypeAdapter(kind)) for kind in dict.fromkeys(kinds)],
        ref_template=SCHEMA_PREFIX + "{model}",
    )
    answers = {
        name: _answer_schema(name, entry) for name, entry in _load_answers()["schemas"].items()
    }
    return {kind: schema for (kind, _), schema in schemas.items()}, definitions["$defs"] | answers


@cache
def _load_answers() -> dict[str, Any]:
    """Load answers.yaml, once."""
    answers: dict[str, Any] = yaml.safe_load(
        files("service.api").joinpath("answers.yaml").read_bytes()
    )
    return answers


def _answer_schema(name: str, entry: Any) -> dict[str, Any]:
    """Return the JSON Schema of an entry in answers.yaml: an object, or a list for a value."""
    if isinstance(entry, list):
        return _field_schema(*entry)
    fields = {field: value for field, value in entry.items() if isinstance(value, list)}
    properties = {
        field.removesuffix("?"): _add_title(field.removesuffix("?"), _field_schema(*value))
        for field, value in fields.items()
    }
    required = [field for field in fields if not field.endswith("?")]
    return {
        "title": name,
        "description": entry["is"],
        "type": "object",
        "properties": properties,
        "required": required,
        "additionalProperties": entry.get("open", False),
    }


def _add_title(field: str, schema: dict[str, Any]) -> dict[str, Any]:
    """Return a field's schema with a title like pydantic's: token_ids is "Token Ids"."""
    return schema if "$ref" in schema else {"title": field.replace("_", " ").title(), **schema}


def _field_schema(kind: str, sentence: str, *examples: Any) -> dict[str, Any]:
    """Return the JSON Schema of a field in answers.yaml: its kind, description and examples."""
    schema = _kind_schema(kind) | {"description": sentence}
    return schema | {"examples": list(examples)} if examples else schema


def _kind_schema(kind: str) -> dict[str, Any]:
    """Return the JSON Schema of a kind, in the notation that the top of answers.yaml explains."""
    notation = _load_answers()["kinds"].get(kind, kind)
    if isinstance(notation, dict):
        return {**notation}
    if kind in ENUM_VALUES:
        return {"type": "string", "enum": ENUM_VALUES[kind]}
    if notation[0] + notation[-1] == "{}":
        return {"type": "object", "additionalProperties": _kind_schema(notation[1:-1])}
    if len(members := UNION_BAR.split(notation)) > 1:
        schemas = [_kind_schema(member) for member in members]
        constants = [schema["const"] for schema in schemas if "const" in schema]
        return {"type": "string", "enum": constants} if constants else {"anyOf": schemas}
    if notation.endswith("[]"):
        return {"type": "array", "items": _kind_schema(notation[:-2].strip("()"))}
    if notation.endswith("?"):
        return {"anyOf": [_kind_schema(notation[:-1].strip("()")), {"type": "null"}]}
    if notation[0] == "'":
        return {"type": "string", "const": notation.strip("'")}
    return {"$ref": SCHEMA_PREFIX + notation} if notation[0].isupper() else {"type": notation}


def _describe_operation(rows: Sequence[Route], schemas: Schemas) -> dict[str, Any]:
    """Return the OpenAPI operation of the routes with one path and method, mostly one."""
    route = rows[0]
    tree: dict[str, Any] = {"summary": route.summary, "tags": [route.api.name]}
    if route.more:
        tree["description"] = route.more
    if route.api.document:
        tree["externalDocs"] = {"url": route.api.document}
    path = {"in": "path", "required": True, "schema": {"type": "string"}}
    named = [{"name": name, **path} for name in PATH_PARAMETER.findall(route.path)]
    if parameters := [*named, *route.parameters]:
        tree["parameters"] = parameters
    if route.request is not None:
        body = {JSON: {"schema": schemas[_request_type(rows)], "examples": _show_examples(route)}}
        tree["requestBody"] = {"required": True, "content": body | _body_schemas(route.media)}
    tree["responses"] = {"200": _describe_success(route)} | _describe_refusals(rows)
    _add_answers(tree["responses"], route)
    return tree


def _add_answers(responses: dict[str, Any], route: Route) -> None:
    """Add to a route's responses what the bundled model answered to each of its examples."""
    for name, answer in ANSWERS.get(route.path, {}).items():
        contents = responses[str(answer["status"])]["content"]
        content = contents.get(JSON) or contents[MEDIA_TYPE]
        shown = {key: answer[key] for key in ("summary", "description", "value") if key in answer}
        content.setdefault("examples", {})[name] = shown


def _show_examples(route: Route) -> dict[str, Any]:
    """Return a route's examples as OpenAPI writes them, by name; x-query is the query string."""
    return {
        example.name: {"summary": example.summary, "value": example.value}
        | ({"x-query": example.query} if example.query else {})
        for example in route.examples
    }


def _describe_success(route: Route) -> dict[str, Any]:
    """Return the OpenAPI response of a route's status 200."""
    response: dict[str, Any] = {"description": "The answer." if route.kind else "No body."}
    content = _body_schemas(route.answer_media)
    if route.kind:
        content = {JSON: {"schema": _kind_schema(route.kind)}, **content}
    elif content:
        response["description"] = "The page."
    if content:
        response["content"] = content
    headers = {**route.headers, **(ENCODED_HEADERS if route.parse else {})}
    headers |= FOREIGN_HEADERS if route.foreign else {}
    if headers:
        response["headers"] = headers
    return response


def _body_schemas(bodies: Any) -> dict[str, Any]:
    """Return the OpenAPI content of bodies, given their schemas by media type."""
    return {kind: {} if schema is None else {"schema": schema} for kind, schema in bodies.items()}


def _describe_refusals(rows: Sequence[Route]) -> dict[str, Any]:
    """Return the OpenAPI responses of refusals by status, described by the codes they may carry."""
    by_status: dict[int, dict[str, None]] = {}
    statuses = [(code, row.status(code)) for row in rows for code in row.refusals]
    order = {code: place for place, (code, _) in reversed([*enumerate(statuses)])}
    for code, status in sorted(statuses, key=lambda each: order[each[0]]):
        by_status.setdefault(status, {})[code] = None
    media_type, kind = (JSON, UNDESCRIBED) if rows[0].api.document else (MEDIA_TYPE, "Problem")
    schema = _kind_schema(kind)
    return {
        str(status): {
            "description": ", ".join(codes),
            "content": {media_type: {"schema": schema}},
        }
        for status, codes in sorted(by_status.items())
    }
