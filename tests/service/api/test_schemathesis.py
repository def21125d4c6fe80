"""Whatever the API's document allows, and much that it does not, is answered as it says.

Schemathesis makes requests from GET /openapi.json and holds each answer to it.
"""

import asyncio
from functools import cache

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.generation import GenerationMode
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from service.api.document import document

pytestmark = pytest.mark.prove  # what it holds, tests of the document and the golden answers hold

CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXAMPLES = settings.default.max_examples // 20  # 5, and 100 for `make prove`
PATHS = document()["paths"]
GOOD, BAD = GenerationMode.POSITIVE, GenerationMode.NEGATIVE


@pytest.mark.parametrize(
    ("path", "mode"),
    [
        (path, mode)
        for path, operations in PATHS.items()
        for mode in ((GOOD, BAD) if "requestBody" in operations.get("post", {}) else (GOOD,))
    ],
)
async def test_every_answer_is_as_described(address: str, path: str, mode: GenerationMode) -> None:
    """No 5xx, no status, media type or field that the document does not name."""
    await asyncio.to_thread(drive, address, path, mode)


@cache
def described(address: str) -> schemathesis.BaseSchema:
    """The document, which takes longer to read than most paths to ask."""
    return schemathesis.openapi.from_url(f"{address}/openapi.json")


def drive(address: str, path: str, mode: GenerationMode) -> None:
    """Ask one path in many ways."""
    for operation in described(address)[path].values():

        @settings(
            max_examples=EXAMPLES,
            derandomize=True,
            database=None,
            phases=[Phase.generate],
            suppress_health_check=list(HealthCheck),
        )
        @given(case=operation.as_strategy(generation_mode=mode))
        def ask(case: schemathesis.Case) -> None:
            case.call_and_validate(checks=CHECKS)

        ask()
