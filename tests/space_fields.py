"""What a field of a request may do to the space of an answer's vectors, by route.

The tests of an API, tests/service/api/test_<API>.py, say it as SPACE of each of its routes
that answers vectors; tests/service/pipeline/test_space_fields.py holds all of them to it. A route
of which nothing is said answers scores alone.
"""

from collections.abc import Iterator
from typing import Any, Literal, NamedTuple

from service.api.document import document
from service.shapes.answer import JSON

A_TEXT = "A dog ate the food, and then the dog slept: the food was the dog's. "
LONG_TEXT = A_TEXT * 5  # more than the model reads, so that it counts how it is cut
GIVEN = None  # what is encoded: it makes the vector, and not its space
SCORES = None  # of a route that answers scores alone


class Effect(NamedTuple):
    """What a field does to the vectors of an answer, and a request that shows it.

    Args:
        kind: it moves no bit of them; they are of another space; the answer names none; or they
            are the same numbers in another form.
        body: what is put into the route's plain request.
        model: that has what is asked for.
    """

    kind: Literal["nothing", "changed", "none", "form"]
    body: dict[str, Any]
    model: str = "m3"


Fields = dict[str, "Effect | None"]
# by route, a plain request and what each field does
Spaces = dict[str, "tuple[dict[str, Any], Fields] | None"]


def keeps_bits(*args: Any, **body: Any) -> Effect:
    """The same bits of the same space."""
    return Effect("nothing", body, *args)


def changes_space(**body: Any) -> Effect:
    """Vectors of another space."""
    return Effect("changed", body)


def names_no_space(**body: Any) -> Effect:
    """Vectors of no space."""
    return Effect("none", body)


def changes_form(**body: Any) -> Effect:
    """The same vectors in other numbers."""
    return Effect("form", body)


def body_of(path: str) -> dict[str, Any]:
    """What the API document says of a route's JSON."""
    content: dict[str, Any] = document()["paths"][path]["post"]["requestBody"]["content"][JSON]
    return content


def fields(schema: dict[str, Any], within: str = "") -> Iterator[str]:
    """Every field of a body, with the names of those around it."""
    if name := schema.get("$ref", "").rpartition("/")[2]:
        schema = document()["components"]["schemas"][name]
    for kind in ("anyOf", "oneOf"):
        for each in schema.get(kind, ()):
            yield from fields(each, within)
    if isinstance(items := schema.get("items"), dict):
        yield from fields(items, within)
    for name, each in schema.get("properties", {}).items():
        yield f"{within}{name}"
        yield from fields(each, f"{within}{name}.")
