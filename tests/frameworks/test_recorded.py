"""What other people's clients send, byte for byte, is answered as they were answered.

test_unmodified.py runs the clients themselves, and records; this takes no installation.
"""

import json
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from tests.frameworks.conftest import LONG
from tests.frameworks.page import examples, refusals
from tests.frameworks.recording import STORED, shape

pytestmark = pytest.mark.asyncio(loop_scope="session")


def served_by(part: str) -> list[str]:
    """The services that a part's examples are asked of."""
    return [part, LONG] if part == "Rerank" else [part]


RECORDED: dict[str, list[dict[str, Any]]] = json.loads(STORED.read_text())
PINNED = STORED.with_name("requirements.txt").read_text().splitlines()


CASES = [(example, part) for example in examples() for part in served_by(example.part)]


@pytest.mark.parametrize(
    ("example", "part"), CASES, ids=[f"{one.title} by {part}" for one, part in CASES]
)
async def test_a_recorded_request_is_answered_as_it_was(
    services: dict[str, ASGIApp], example: Any, part: str
) -> None:
    """Those that are answered, and those that are refused: status, names, kinds, lengths.

    Rerankers of either length.
    """
    transport = httpx.ASGITransport(services[part])
    async with httpx.AsyncClient(transport=transport) as http:
        for request in RECORDED[example.title]:
            url, how = f"http://headlight{request['path']}", request["headers"]
            sent = httpx.Request(request["method"], url, headers=how, content=request["body"])
            answer = await http.send(sent)

            assert answer.status_code == request["status"], answer.text
            assert shape(answer.json()) == request["answer"]


async def test_every_client_of_the_page_is_pinned_recorded_and_refused() -> None:
    """And nothing else is."""
    titles = [example.title for example in examples()]

    assert [*RECORDED] == [*refusals()] == titles
    assert {example.pin for example in examples()} <= {*PINNED}
    for requests in RECORDED.values():
        assert requests[0]["status"] == 200 and requests[-1]["status"] in (400, 422)
