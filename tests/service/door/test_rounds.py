"""What no admission bounds is done a request at a time, and gives way where the loop is late."""

import asyncio
import json
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest

from service.door import door, rounds, under_way
from service.door.rounds import REQUEST_BYTES, ROUND_BYTES, Rounds
from service.door.under_way import UnderWay
from service.tables import keys
from tests.conftest import Connected
from tests.metric_samples import samples

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
HELD = keys.parse_keys(f"a:{A}\nb:{B} metrics")
DRY = json.dumps({"inputs": ["a"] * 8, "attention": {}}).encode() + b" " * 10_240
CONNECTIONS, PATIENCE_SECONDS = 32, 10
PLANNED = "/v1/encode"


BEARER = [(b"authorization", f"Bearer {A}".encode())]


async def ignore(message: Any) -> None:
    """Take a part of an answer."""


class Turns:
    """Counts the rounds of the loop, until it is cancelled."""

    def __init__(self) -> None:
        self.now = 0
        self.task = asyncio.create_task(self._count())

    async def _count(self) -> None:
        while True:
            self.now += 1
            await asyncio.sleep(0)


async def asked(app: Any, method: str, path: str, key: str, body: bytes = b"") -> int:
    """The status of an answer to a request that has arrived whole."""
    statuses = list[int]()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": body}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])

    path, _, query = path.partition("?")
    headers = [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "http", "method": method, "path": path, "query_string": query.encode()}
    await app({**scope, "headers": headers}, receive, send)
    return statuses[0]


async def ended_by_round(asking: Callable[[], Awaitable[int]]) -> list[tuple[int, int]]:
    """The statuses of CONNECTIONS requests that come at once, and the rounds in which they end."""
    turns, ended = Turns(), list[tuple[int, int]]()

    async def ask() -> None:
        ended.append((await asking(), turns.now))

    await asyncio.gather(*(ask() for _ in range(CONNECTIONS)))
    turns.task.cancel()
    return ended


FLOODS = {
    "dry runs": ("POST", "/v1/encode?dry_run=true", A, DRY, 1),
    "refusals after planning": (
        "POST",
        "/v1/encode",
        A,
        DRY.replace(b"{}}", b'{"layers": [99]}}'),
        1,
    ),
    "GETs": ("GET", "/v1/models", A, b"", ROUND_BYTES // REQUEST_BYTES),
    "the document": ("GET", "/openapi.json", A, b"", ROUND_BYTES // REQUEST_BYTES),
    "a page": ("GET", "/", "", b"", ROUND_BYTES // REQUEST_BYTES),
    "wrong keys": ("POST", "/v1/encode", "wrong", DRY, ROUND_BYTES // REQUEST_BYTES),
    "no path": ("GET", "/nothing", A, b"", ROUND_BYTES // REQUEST_BYTES),
}


@pytest.mark.parametrize("flood", FLOODS)
async def test_of_a_flood_that_nothing_admits_few_are_done_in_one_round_of_the_loop(
    served: Callable[..., Connected], flood: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So who asks whether the service lives waits for these alone."""
    monkeypatch.setattr(door, "LATE_SECONDS", 60.0)
    monkeypatch.setattr(rounds, "LATE_SECONDS", 60.0)
    method, path, key, body, most = FLOODS[flood]
    app = served(api_keys=HELD).app
    await asked(app, method, path, key, body)

    ended = await ended_by_round(lambda: asked(app, method, path, key, body))

    assert len(ended) == CONNECTIONS
    assert max(Counter(turn for _, turn in ended).values()) <= most


LATE = [(method, path, key, body) for method, path, key, body, _ in FLOODS.values()]
IN_TIME = [
    ("GET", "/live", "", b""),
    ("GET", "/ready", "", b""),
    ("GET", "/v2/health/live", "wrong", b""),
    ("GET", "/metrics", B, b""),
    ("POST", "/v1/encode", B, b'{"inputs": ["a"]}'),
]


async def test_while_the_loop_is_late_all_that_nothing_admits_is_refused_unread(
    served: Callable[..., Connected], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Probes are answered, and so is what admission bounds."""
    monkeypatch.setattr(rounds, "LATE_SECONDS", -1.0)
    app = served(api_keys=HELD).app

    late = [await asked(app, *request) for request in LATE if request[:3] != ("POST", PLANNED, A)]
    in_time = [await asked(app, *request) for request in IN_TIME]

    assert set(late) == {429} and in_time == [200] * len(IN_TIME)


async def test_the_loop_is_late_by_what_its_last_check_was(
    served: Callable[..., Connected], monkeypatch: pytest.MonkeyPatch
) -> None:
    """While requests are under way; and once a check is in time, it is late no more."""
    clock, gate = [0.0], asyncio.Event()
    monkeypatch.setattr(under_way, "OVERDUE_SECONDS", 0.0)
    ticking = SimpleNamespace(monotonic=lambda: time.monotonic() + clock[0])
    monkeypatch.setattr(under_way, "time", ticking)
    async with served(api_keys=HELD) as client:
        app = client.app
        before = await refused_late(client)

        async def receive() -> dict[str, Any]:
            await gate.wait()
            return {"type": "http.request", "body": b"{}"}

        scope = {"type": "http", "method": "POST", "path": "/v1/encode", "headers": BEARER}
        held = asyncio.create_task(app(scope, receive, ignore))
        await asyncio.sleep(0)
        clock[0] = 1.0
        statuses = list[int]()
        async with asyncio.timeout(PATIENCE_SECONDS):
            for until in (429, 200):
                while until not in statuses[-1:]:
                    statuses.append(await asked(app, "GET", "/v1/models", A))
                    await asyncio.sleep(0)
        gate.set()
        await held
        after = await refused_late(client)

    assert after - before == statuses.count(429)


async def refused_late(client: Connected) -> float:
    """How many requests were refused because the loop was late."""
    page = (await client.get("/metrics", headers={"authorization": f"Bearer {B}"})).text
    return sum(value for _, labels, value in samples(page) if labels.get("reason") == "late")


async def test_a_round_begins_requests_of_each_key_in_turn() -> None:
    """However many one of them has waiting, and whichever has given up."""
    ours, begun = Rounds(UnderWay()), list[str]()

    async def begin(key: str, body: int) -> None:
        if not ours.take_at_once(body):
            await ours.wait(key, body)
        begun.append(key)

    flood = [asyncio.create_task(begin(f"a{number}", ROUND_BYTES)) for number in range(1)]
    flood += [asyncio.create_task(begin("a", ROUND_BYTES)) for _ in range(3)]
    quiet = asyncio.create_task(begin("b", 1))
    await asyncio.sleep(0)
    flood[1].cancel()
    await asyncio.gather(*flood, quiet, return_exceptions=True)

    assert begun == ["a0", "b", "a", "a"]
    assert ours.take_at_once(ROUND_BYTES)
