"""What other people's clients send, byte for byte, is answered as they were answered.

test_unmodified.py runs the clients themselves, and records; this takes no installation.
"""

import json
from typing import Any

import httpx
import pytest
from starlette.types import ASGIApp

from tests.frameworks.conftest import LONG
from tests.frameworks.page import PAGE, applications, examples, filled, refusals
from tests.frameworks.recording import STORED, shape


def served_by(part: str) -> list[str]:
    """The services that a part's examples are asked of."""
    return [part, LONG] if part == "Rerank" else [part]


RECORDED: dict[str, list[dict[str, Any]]] = json.loads(STORED.read_text())
# by application; sent by the functions of the releases named that send them, run here once
BY_APPLICATIONS: dict[str, list[dict[str, Any]]] = json.loads(
    STORED.with_name("applications.json").read_text()
)
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
    for request in RECORDED[example.title]:
        assert await shape_of_answer(services[part], request) == request["answer"]


@pytest.mark.parametrize("application", BY_APPLICATIONS)
async def test_an_applications_request_is_answered_as_it_was(
    services: dict[str, ASGIApp], application: str
) -> None:
    """Each by the service that it was sent to; of GET /info what is read there."""
    for request in BY_APPLICATIONS[application]:
        told = await shape_of_answer(services[request["part"]], request)
        if request["path"] == "/info":
            told = {name: told[name] for name in request["answer"]}

        assert told == request["answer"]


async def shape_of_answer(app: ASGIApp, request: dict[str, Any]) -> Any:
    """Send a recorded request; the answer has its status."""
    url, how = f"http://headlight{request['path']}", request["headers"]
    sent = httpx.Request(request["method"], url, headers=how, content=request["body"])
    async with httpx.AsyncClient(transport=httpx.ASGITransport(app)) as http:
        answer = await http.send(sent)
    assert answer.status_code == request["status"], answer.text
    return shape(answer.json())


async def test_the_list_of_clients_is_made_of_the_examples() -> None:
    """How each is pointed here, and what it raises: run tests/frameworks/page.py."""
    assert filled(PAGE) == PAGE


async def test_every_client_of_the_page_is_pinned_recorded_and_refused() -> None:
    """And nothing else is; of the applications each is recorded."""
    titles = [example.title for example in examples()]

    assert [*RECORDED] == [*refusals()] == titles
    assert {example.pin for example in examples()} <= {*PINNED}
    for requests in RECORDED.values():
        assert requests[0]["status"] == 200 and requests[-1]["status"] in (400, 422)
    assert [*BY_APPLICATIONS] == applications()
