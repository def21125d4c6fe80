"""What one key leaves of a replica's room to others."""

import asyncio
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from service import keys
from service.edge.guard import REFUSAL, Guard
from service.edge.tenants import turns
from service.edge.tenants.under_way import UnderWay
from service.keys import Key
from service.replica import Replica
from service.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="session")

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
HELD = keys.read(f"a:{A}\nb:{B}")


async def test_however_many_keys_flood_there_is_room_for_one_more() -> None:
    """Each as much as it gets; what they had is there again when they are done."""
    names = [f"k{number}" for number in range(11)]
    under_way = UnderWay(names, 90)
    held: Counter[str] = Counter()
    with ExitStack() as stack:
        for name in names:
            while stack.enter_context(under_way.hold(Key(name, ""))):
                held[name] += 1
    with ExitStack() as stack:
        again = [stack.enter_context(under_way.hold(Key("k0", ""))) for _ in range(61)]

    assert held["k0"] == 60 and held["k1"] == 20 and min(held.values()) > 0
    assert again == [True] * 60 + [False]


async def test_what_a_key_has_under_way_counts_on_when_others_come_and_go() -> None:
    """And gives its room back when it is done, whoever shares by then."""
    under_way, stack = UnderWay(["a", "b"], 9), ExitStack()
    with stack:
        held = [stack.enter_context(under_way.hold(Key("a", ""))) for _ in range(5)]
        under_way.follow(["a", "b", "c"])
        held.append(stack.enter_context(under_way.hold(Key("a", ""))))
        later = [stack.enter_context(under_way.hold(Key("a", ""))) for _ in range(2)]
        under_way.follow(["a"])
        assert stack.enter_context(under_way.hold(Key("a", "")))

    assert held == [True] * 6 and later == [False] * 2
    assert under_way._total == 0 and under_way._counts["a"] == 0


async def test_one_key_has_all_the_room() -> None:
    """And so has what needs no key."""
    with ExitStack() as stack:
        lone, several = UnderWay(["a"], 3), UnderWay(["a", "b"], 3)
        assert all(stack.enter_context(lone.hold(Key("a", ""))) for _ in range(9))
        assert all(stack.enter_context(several.hold(Key("", ""))) for _ in range(9))
        assert all(stack.enter_context(several.hold(None)) for _ in range(9))


async def test_a_keys_flood_is_refused_before_ray_would_refuse_others(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of 300 requests that Ray takes, its own; a client that leaves gives its place back."""
    monkeypatch.setattr(turns, "LONGEST_PAUSE_SECONDS", 0.0)
    codes: Counter[tuple[bytes, bytes]] = Counter()
    gate = asyncio.Event()

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        headers = dict(scope["headers"])
        codes[headers[b"authorization"], headers.get(REFUSAL, b"")] += 1
        if REFUSAL not in headers:
            await gate.wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request"}

    async def send(message: Any) -> None: ...

    guard = Guard(inner, Settings(api_keys=HELD, max_waiting_requests=44))

    def ask(key: str) -> asyncio.Task[None]:
        headers = [(b"authorization", f"Bearer {key}".encode())]
        scope = {"type": "http", "method": "POST", "path": "/v1/encode", "headers": headers}
        return asyncio.create_task(guard(scope, receive, send))

    theirs = [ask(A) for _ in range(1000)]
    await asyncio.sleep(0)
    ours = [ask(B) for _ in range(10)]
    await asyncio.sleep(0)
    theirs[0].cancel()
    await asyncio.sleep(0)
    theirs.append(ask(A))
    await asyncio.sleep(0)
    gate.set()
    await asyncio.gather(*theirs, *ours, return_exceptions=True)

    a, b = f"Bearer {A}".encode(), f"Bearer {B}".encode()
    assert codes == {(a, b""): 200, (a, b"overloaded:key_under_way"): 801, (b, b""): 10}


async def test_a_refusal_of_one_too_many_says_when_to_come_again(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """In the words of each API, as any other overload."""
    bearer = {"authorization": f"Bearer {A}"}
    async with served(api_keys=HELD) as client:
        guard = client._transport.app  # type: ignore[attr-defined]
        guard._under_way = UnderWay(["a", "b"], 0)
        answers = [
            await client.post(path, json={"inputs": ["a"]}, headers=bearer)
            for path in ("/v1/encode", "/embed", "/v1/embeddings", "/nothing")
        ]

    assert [answer.status_code for answer in answers] == [429] * 4
    assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert answers[0].json()["code"] == "overloaded"


@pytest.mark.parametrize("guarded", [True, False], ids=["here", "in Ray's proxy"])
async def test_what_serves_one_at_a_time_knows_whose_a_request_is(
    served: Callable[..., httpx.AsyncClient], replica: Replica, guarded: bool
) -> None:
    """Of long texts to be tokenized another key's only one is done before the third of a flood.

    Wherever the guard is.
    """
    gate, order = threading.Event(), list[str]()
    aside = replica.reader.aside
    held = asyncio.create_task(aside._thread.run(gate.wait))

    async def ask(client: httpx.AsyncClient, key: str) -> None:
        answer = await client.post(
            "/tokenize",
            json={"inputs": "well " * 50_000},
            headers={"authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 200
        order.append(key)

    async with served(api_keys=HELD) as outside:
        app = outside._transport.app  # type: ignore[attr-defined]
        inside = httpx.ASGITransport(app if guarded else app._app)
        client = httpx.AsyncClient(transport=inside, base_url=outside.base_url)
        asked = [asyncio.create_task(ask(client, key)) for key in (A, A, A, A, A, B)]
        lines = aside._thread._turn._waiting._lines
        while sum(map(len, lines.values())) < len(asked):
            await asyncio.sleep(0)
        gate.set()
        await asyncio.gather(held, *asked)

    assert order.index(B) < 2
