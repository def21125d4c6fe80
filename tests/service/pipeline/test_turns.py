"""No request, however large, holds the event loop: each of tests/largest.py is done in turns.

Counted are the lines of Python that run in one callback of the loop, and in all. A timer would
count what else the machine does.
"""

import asyncio
import sys
from asyncio import events
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import contextmanager
from types import FrameType
from typing import Any

import pytest
import pytest_asyncio
from starlette.types import ASGIApp

from service.api import ROUTES
from service.pipeline.replica import Replica
from service.shapes.answer import Answer
from service.tables.settings import Settings
from tests.largest import MODEL, Largest, every, write_model

MOST_LINES = 60_000  # of Python in a callback, some 5 ms of a core
TWICE = 2.4  # times the lines of half as much, at most
FEW = 30_000  # lines that any request may take
# one of each kind, for every change; all others are for `make prove`
OFTEN = (
    "POST /v1/encode, own patches",
    "POST /v1/encode, pooled, a file",
    "POST /similarity",
)
LARGEST = {each.name: each for each in every()}
Content = tuple[bytes, dict[str, str]]  # a body and its headers
Client = Callable[[Largest, Content], Awaitable[int]]


class Turns(list[int]):
    """The lines of Python that each callback of the loop took."""

    def __init__(self) -> None:
        self.lines = 0

    def trace(self, frame: FrameType, event: str, _: object) -> Any:
        """Count a line."""
        self.lines += 1
        return self.trace


@contextmanager
def counted(monkeypatch: pytest.MonkeyPatch) -> Iterator[Turns]:
    """Count the lines of every callback that begins meanwhile."""
    turns, run = Turns(), events.Handle._run

    def counting(handle: events.Handle) -> None:
        before, turns.lines = sys.gettrace(), 0
        sys.settrace(turns.trace)
        try:
            run(handle)
        finally:
            sys.settrace(before)
            turns.append(turns.lines)

    with monkeypatch.context() as patch:
        patch.setattr(events.Handle, "_run", counting)
        yield turns


@pytest_asyncio.fixture(scope="module", loop_scope="module")
async def client(
    tmp_path_factory: pytest.TempPathFactory, outer: Callable[[Replica], ASGIApp]
) -> AsyncIterator[Client]:
    """Send a request to the model that answers it, without a client's own work on the loop."""
    replicas = dict[str, Replica]()

    async def send(each: Largest, content: Content) -> int:
        if each.model not in replicas:
            folder = write_model(each.model, tmp_path_factory.mktemp(each.model) / "model")
            settings = Settings(
                model=str(folder), served_model_name=MODEL, threads=1, deadline_seconds=600
            )
            replicas[each.model] = await Replica.start(settings, each.model)
        return await answer(outer(replicas[each.model]), each, *content)

    yield send
    for replica in replicas.values():
        await replica.close()


async def answer(app: ASGIApp, each: Largest, body: bytes, headers: dict[str, str]) -> int:
    """Send a request and take its answer; its status."""
    path, _, query = each.target.partition("?")
    raw = {"host": "localhost", "content-length": str(len(body)), **headers}
    scope = {
        "type": "http",
        "method": each.method.upper(),
        "path": path,
        "raw_path": path.encode(),
        "root_path": "",
        "query_string": query.encode(),
        "headers": [(name.encode(), value.encode()) for name, value in raw.items()],
        "client": ("127.0.0.1", 1),
    }
    statuses, bodies = list[int](), [body]

    async def receive() -> dict[str, Any]:
        if bodies:
            return {"type": "http.request", "body": bodies.pop(), "more_body": False}
        await asyncio.Event().wait()
        raise AssertionError("no client leaves here")

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    await app(scope, receive, send)
    return statuses[0]


def test_every_route_has_its_largest_requests() -> None:
    """A route without one is not known to leave the loop to others."""
    assert {(each.method, each.path) for each in LARGEST.values()} == {
        (route.method, route.path) for route in ROUTES
    }


@pytest.mark.asyncio(loop_scope="module")
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in OFTEN else pytest.mark.prove) for name in LARGEST],
)
async def test_the_largest_request_is_done_in_turns(
    client: Client, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    """In none of them much is done, and of twice as much in all about twice the work."""
    # one that is written at once, without lines, would be compared with one written in pieces
    monkeypatch.setattr(Answer, "is_small", False)
    each, halves = LARGEST[name], list[int]()
    await client(each, each.content(min(each.most, 1)))  # what is made once

    for count in (each.most // 2, each.most):
        content = each.content(count)
        with counted(monkeypatch) as turns:
            status = await asyncio.create_task(client(each, content))  # type: ignore[arg-type]
        halves.append(sum(turns))
        print(f"{name} of {count}: {status}, {max(turns)} lines in a turn, {sum(turns)} in all")

    assert status < 500
    assert max(turns) <= MOST_LINES
    assert halves[1] <= TWICE * halves[0] + FEW
