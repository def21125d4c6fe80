"""Which parts of a path are its parameters."""

import re

import pytest

from service.api import ROUTES
from service.door.handlers import compile_path

PATTERNS = {row.path: compile_path(row.path) for row in ROUTES if "{" in row.path}
NAMED = "/v2/models/{model}"
FOUND: dict[str, dict[str, dict[str, str]]] = {  # by path: the routes that it matches, and as what
    "/v2/models/a": {NAMED: {"model": "a"}},
    "/v2/models/org/a\n": {NAMED: {"model": "org/a\n"}},
    "/v2/models/infer": {NAMED: {"model": "infer"}},
    "/v2/models/a/infer": {f"{NAMED}/infer": {"model": "a"}},
    "/v2/models//ready": {f"{NAMED}/ready": {"model": ""}},
    "/v2/models/a/ready/infer": {f"{NAMED}/infer": {"model": "a/ready"}},
    "/v2/models/a/infers": {NAMED: {"model": "a/infers"}},
    "/v2/models/a/versions/1": {
        NAMED: {"model": "a/versions/1"},
        f"{NAMED}/versions/{{version}}": {"model": "a", "version": "1"},
    },
    "/v2/models/a/versions/1/infer": {
        f"{NAMED}/infer": {"model": "a/versions/1"},
        f"{NAMED}/versions/{{version}}/infer": {"model": "a", "version": "1"},
    },
    "/v1/models/org/a/infer": {"/v1/models/{id}": {"id": "org/a/infer"}},
}


@pytest.mark.parametrize("path", FOUND)
def test_a_models_name_has_slashes_and_ends_before_the_verb(path: str) -> None:
    """A route that ends with a name has no verb."""
    matches = {route: pattern.fullmatch(path) for route, pattern in PATTERNS.items()}

    assert {route: match.groupdict() for route, match in matches.items() if match} == FOUND[path]


@pytest.mark.parametrize("path", PATTERNS)
def test_a_path_is_compared_in_few_steps_a_character(path: str) -> None:
    """No group is repeated: a long path without a key held the event loop for a millisecond."""
    assert not re.search(r"\)[*+{]", PATTERNS[path].pattern)
