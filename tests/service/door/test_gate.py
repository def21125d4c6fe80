"""Whose requests pass the gate, and when, and what one key leaves of the room to others."""

import asyncio
import json
import math
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import httpx
import pytest

from service.door import body, door
from service.door.body import BodyWorker
from service.door.gate import DOUBLE_SECONDS, MOST_INSIDE, KeyGate, Place
from service.door.transport import CLIENT, Client
from service.pipeline.replica import Replica
from service.tables import keys
from service.tables.refusals import Refused
from tests.conftest import Connected
from tests.metric_samples import samples
from tests.replica_internals import occupied

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
HELD = keys.parse_keys(f"a:{A}\nb:{B} metrics")
LONG = 1000.0
ASKED = {"inputs": ["a"]}


class Way:
    """A gate at a clock that stands, and who has passed, in order."""

    def __init__(self, *names: str) -> None:
        self.now = 7.0
        self.gate = KeyGate(names, 10_000, lambda: self.now)
        self.passed: list[tuple[str, float]] = []

    async def come(self, name: str, count: int = 1, seconds: float = LONG) -> list["Visit"]:
        """Requests come, and those pass that may."""
        visits = [Visit(self, name, seconds) for _ in range(count)]
        await settled()
        return visits

    async def end(self, *visits: "Visit") -> None:
        """Requests that are inside end, and others pass."""
        for visit in visits:
            visit.end()
        await settled()

    def inside(self, name: str) -> int:
        """How many of a key have passed and not ended."""
        return self.gate.lines[name].taken


class Visit:
    """One request's way."""

    def __init__(self, way: Way, name: str, seconds: float) -> None:
        self.way, self.name, self.place = way, name, way.gate.take_place(name)
        self.task = asyncio.create_task(self._wait(seconds))

    async def _wait(self, seconds: float) -> None:
        waited = 0.0
        try:
            if self.place:
                waited = await self.way.gate.enter(self.place, seconds)
        except BaseException:
            self.end()
            raise
        self.way.passed.append((self.name, waited))

    def end(self) -> None:
        """Give back what it took, once."""
        place, self.place = self.place, None
        if place:
            self.way.gate.give_back(place)


async def settled() -> None:
    """All that is ready has run."""
    for _ in range(6):
        await asyncio.sleep(0)


def empty(gate: KeyGate) -> bool:
    """Whether nothing of any key is counted any more."""
    lines = gate.lines.values()
    left = sum(line.under_way + line.taken + line.waiting for line in lines)
    return gate.total == left == 0 and not any(line.left_at == math.inf for line in lines)


@pytest.mark.parametrize("names", ["ab", "a", ""])
async def test_while_no_other_key_is_active_all_pass(names: str) -> None:
    """Whether there are others or not."""
    way = Way(*names)
    await way.come("a", 40 * MOST_INSIDE)

    assert way.passed == [("a", 0.0)] * 40 * MOST_INSIDE


async def test_while_another_key_is_active_some_pass_and_the_others_wait_in_order() -> None:
    """One goes, the next comes; how long it waited is known."""
    way = Way("a", "b")
    quiet = await way.come("b")
    flood = await way.come("a", MOST_INSIDE)
    late = await way.come("a", 3)
    way.now += 2.0
    await way.end(flood[0], flood[1])

    assert [visit.task.done() for visit in late] == [True, True, False]
    assert way.passed == [("b", 0.0)] + [("a", 0.0)] * MOST_INSIDE + [("a", 2.0)] * 2
    await way.end(*flood[2:])
    await way.end(*late, *quiet)
    assert empty(way.gate)


async def test_a_key_that_comes_passes_a_flood_and_bounds_it() -> None:
    """Those that are inside end, and none follows until there are few."""
    way = Way("a", "b")
    flood = await way.come("a", 10 * MOST_INSIDE)
    (small,) = await way.come("b")
    more = await way.come("a", 2)
    assert small.task.done() and not more[0].task.done()

    await way.end(*flood[: 9 * MOST_INSIDE])
    assert way.inside("a") == MOST_INSIDE and not more[0].task.done()
    await way.end(flood[-1])
    assert way.inside("a") == MOST_INSIDE and more[0].task.done() and not more[1].task.done()


async def test_two_floods_do_not_stop_each_other() -> None:
    """Each has as many inside."""
    way = Way("a", "b")
    both = await way.come("a", 3 * MOST_INSIDE), await way.come("b", 3 * MOST_INSIDE)
    await way.end(*both[0][: 2 * MOST_INSIDE + 1])
    await way.come("a", 9)

    assert way.inside("a") == way.inside("b") == MOST_INSIDE or way.inside("b") == 3 * MOST_INSIDE
    await way.end(*both[1][: 2 * MOST_INSIDE + 1])
    await way.come("b", 9)
    assert way.inside("a") == way.inside("b") == MOST_INSIDE


async def test_when_the_other_key_is_silent_twice_as_many_pass_each_moment() -> None:
    """So one that asks again soon finds few, and one that does not costs little."""
    way = Way("a", "b")
    quiet = await way.come("b")
    flood = await way.come("a", 9 * MOST_INSIDE)
    inside = []
    await way.end(*quiet)
    for visit in flood[:4]:
        inside.append(way.inside("a"))
        way.now += DOUBLE_SECONDS
        await way.end(visit)

    assert inside == [MOST_INSIDE, 2 * MOST_INSIDE, 4 * MOST_INSIDE, 8 * MOST_INSIDE]


async def test_who_waits_passes_soon_after_the_other_has_gone_though_none_inside_ends() -> None:
    """In time that passes, not only as others end."""
    way = Way("a", "b")
    quiet = await way.come("b")
    await way.come("a", MOST_INSIDE)
    (late,) = await way.come("a")
    await way.end(*quiet)
    assert not late.task.done()
    way.now += DOUBLE_SECONDS

    await asyncio.wait_for(late.task, 10)


async def test_other_keys_leave_those_that_stay_their_places() -> None:
    """Who waits goes on waiting; of a key that is gone nothing is left when its requests end."""
    way = Way("a", "b", "c")
    quiet = await way.come("c")
    flood = await way.come("a", MOST_INSIDE + 2)
    way.gate.set_keys(["a", "c"])
    assert way.gate.lines.keys() == {"a", "c"} and way.inside("a") == MOST_INSIDE
    await way.end(flood[0])
    assert flood[-2].task.done() and not flood[-1].task.done()

    way.gate.set_keys(["a"])
    way.now += DOUBLE_SECONDS
    await way.end(*quiet, *flood[1:-1])
    assert all(visit.task.done() for visit in flood)
    await way.end(flood[-1])
    assert empty(way.gate) and way.gate.take_place("a") is None


async def test_one_that_gives_up_leaves_no_trace() -> None:
    """Parked, or in the very moment of its turn."""
    way = Way("a", "b")
    quiet = await way.come("b")
    flood = await way.come("a", MOST_INSIDE)
    parked = await way.come("a", 3)
    parked[1].task.cancel()
    await settled()
    assert way.gate.lines["a"].waiting == 2
    flood[0].end()  # the first's turn has come
    parked[0].task.cancel()
    await settled()
    assert [visit.task.cancelled() for visit in parked] == [True, True, False]
    assert parked[2].task.done() and way.inside("a") == MOST_INSIDE

    await way.end(*flood[1:], parked[2], *quiet)
    assert empty(way.gate)


async def test_whose_turn_does_not_come_in_time_hears_of_it() -> None:
    """And has no turn that it would have to end."""
    way = Way("a", "b")
    quiet = await way.come("b")
    flood = await way.come("a", MOST_INSIDE)
    (late,) = await way.come("a", seconds=0.0)

    with pytest.raises(TimeoutError):
        await late.task
    assert way.inside("a") == MOST_INSIDE and not way.gate.lines["a"].waiting
    await way.end(*flood, *quiet)
    assert empty(way.gate)


Coming = Callable[[], Awaitable[dict[str, Any]]]


async def sent(app: Any, key: str, coming: Coming, method: str = "POST") -> list[Any]:
    """What is answered to a request with a key, message by message."""
    messages = list[Any]()

    async def send(message: Any) -> None:
        messages.append(message)

    headers = [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "http", "method": method, "path": "/v1/encode", "headers": headers}
    await app(scope, coming, send)
    return messages


async def test_a_parked_request_has_no_body_read_and_its_client_may_leave(
    served: Callable[..., Connected],
) -> None:
    """It gives up its place at once, and is counted as one whose client left."""
    reading, gate, reads = asyncio.Semaphore(0), asyncio.Event(), list[str]()

    async def read() -> dict[str, Any]:
        reads.append("read")
        reading.release()
        await gate.wait()
        return {"type": "http.request", "body": b"{}"}

    app, client = served(api_keys=HELD).app, Client()

    async def from_client() -> list[Any]:
        CLIENT.set(client)
        return await sent(app, A, read)

    quiet = asyncio.create_task(sent(app, B, read))
    flood = [asyncio.create_task(sent(app, A, read)) for _ in range(MOST_INSIDE)]
    for _ in range(1 + MOST_INSIDE):
        await reading.acquire()
    parked = [asyncio.create_task(from_client()) for _ in range(3)]
    await settled()
    line = app.gate.lines["a"]
    assert line.waiting == 3 and line.under_way == MOST_INSIDE + 3

    client.leave()
    statuses = [(await task)[0]["status"] for task in (*parked, asyncio.create_task(from_client()))]
    assert statuses == [499] * 4 and len(reads) == 1 + MOST_INSIDE
    assert line.waiting == 0 and line.under_way == MOST_INSIDE
    gate.set()
    await asyncio.gather(quiet, *flood)
    assert empty(app.gate)


async def test_a_key_that_only_looks_at_metrics_takes_no_turns_from_another(
    served: Callable[..., Connected],
) -> None:
    """A scrape every few seconds is no work: the other key has as many inside as ever."""
    async with served(api_keys=HELD) as client:
        gate = client.app.gate
        page = await client.get("/metrics", headers={"authorization": f"Bearer {B}"})
        waited = [await gate.enter(gate.take_place("a"), 0.01) for _ in range(2 * MOST_INSIDE)]

    assert page.status_code == 200
    assert waited == [0.0] * 2 * MOST_INSIDE


async def test_a_slow_reader_of_an_answer_holds_no_turn(
    served: Callable[..., Connected],
) -> None:
    """The turn is over when the answer begins."""
    begun, app = asyncio.Semaphore(0), served(api_keys=HELD).app

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    async def slowly(message: Any) -> None:
        begun.release()
        await asyncio.Event().wait()

    headers = [(b"authorization", f"Bearer {A}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/encode", "headers": headers}
    theirs = [
        asyncio.create_task(app(dict(scope), receive, slowly)) for _ in range(2 * MOST_INSIDE)
    ]
    for _ in theirs:
        await begun.acquire()
    assert app.gate.lines["a"].taken == 0 and app.gate.total == 2 * MOST_INSIDE
    for task in theirs:
        task.cancel()
    await asyncio.gather(*theirs, return_exceptions=True)
    assert app.gate.total == 0


def turned_away(page: str) -> Counter[str]:
    """The requests that were turned away so far, by their reasons."""
    counts = Counter[str]()
    for name, labels, value in samples(page):
        if name == "headlight_shed_total":
            counts[labels["reason"]] += int(value)
    return counts


async def test_whose_turn_comes_too_late_is_answered_so(
    served: Callable[..., Connected],
) -> None:
    """By its own deadline, in the words of each API, and counted as its key's own."""
    bearer = {"authorization": f"Bearer {B}"}
    async with served(api_keys=HELD) as client:
        before = (await client.get("/metrics", headers=bearer)).text
        gate = client.app.gate
        for name in "a" * MOST_INSIDE + "b":
            await gate.enter(gate.take_place(name), LONG)
        late = [
            await client.post(
                path,
                json=ASKED,
                headers={"authorization": f"Bearer {A}", "x-headlight-deadline-ms": "1"},
            )
            for path in ("/v1/encode", "/embed", "/v1/embeddings")
        ]
        other = await client.post("/v1/encode", json=ASKED, headers=bearer)
        after = (await client.get("/metrics", headers=bearer)).text

    assert [answer.status_code for answer in late] == [504] * 3
    assert turned_away(after) - turned_away(before) == {"share": 3}
    assert late[0].json()["code"] == "deadline_exceeded"
    assert other.status_code == 200


async def test_what_a_request_waited_is_of_its_duration_and_of_its_deadline(
    served: Callable[..., Connected],
    log: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """As if it had had its turn at once."""
    waits = [3.0, 31.0]

    async def enter(gate: KeyGate, place: Place, seconds: float) -> float:
        return waits.pop(0)

    monkeypatch.setattr(KeyGate, "enter", enter)
    async with served(api_keys=HELD) as client:
        bearer = {"authorization": f"Bearer {A}"}
        answers = [await client.post("/v1/encode", json=ASKED, headers=bearer) for _ in range(2)]
    durations = [json.loads(line)["duration_ms"] for line in log().splitlines()]

    assert [answer.status_code for answer in answers] == [200, 504]
    assert durations[0] >= 3000 and durations[1] >= 31_000


async def test_what_a_large_body_waits_to_be_scanned_is_of_its_duration_and_of_its_deadline(
    served: Callable[..., Connected],
    log: Callable[[], str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """HAProxy, too, counts from when the body has come."""
    clock = [0.0]

    async def run(worker: BodyWorker, size: int, work: Callable[[], Any]) -> Any:
        clock[0] += 31
        return work()

    monkeypatch.setattr(BodyWorker, "run", run)
    monkeypatch.setattr(
        body, "time", SimpleNamespace(monotonic=lambda: time.monotonic() + clock[0])
    )
    large, headers = (
        json.dumps(ASKED) + " " * body.LARGE_BYTES,
        {"content-type": "application/json"},
    )
    async with served() as client:
        answer = await client.post("/v1/encode", content=large, headers=headers)
    (line,) = log().splitlines()

    assert answer.status_code == 504
    assert json.loads(line)["duration_ms"] >= 31_000


async def test_however_many_keys_flood_there_is_room_for_one_more() -> None:
    """Each as much as it gets; what they had is there again when they are done."""
    names = [f"k{number}" for number in range(11)]
    gate, held = KeyGate(names, 90), dict[str, list[Place | None]]()
    for name in names:
        held[name] = taken(gate, name, 100)
    for place in (place for places in held.values() for place in places):
        assert place
        gate.give_back(place)
    again = taken(gate, "k0", 61)

    assert [len(places) for places in held.values()][:6] == [60, 20, 7, 2, 1, 0]
    assert len(again) == 60


def taken(gate: KeyGate, name: str, most: int) -> list[Place | None]:
    """The places that a key gets, of so many."""
    places = list[Place | None]()
    with suppress(Refused):
        for _ in range(most):
            places.append(gate.take_place(name))
    return places


async def test_what_a_key_has_under_way_counts_on_when_others_come_and_go() -> None:
    """And gives its room back when it is done, whichever keys share by then."""
    gate = KeyGate(["a", "b"], 9)
    held = taken(gate, "a", 5)
    gate.set_keys(["a", "b", "c"])
    held += taken(gate, "a", 9)
    gate.set_keys(["a"])
    alone = gate.take_place("a")
    assert len(held) == 6 and alone is None and gate.total == 6

    for place in held:
        assert place
        gate.give_back(place)
    assert empty(gate)


async def test_one_key_has_all_the_room() -> None:
    """And so has what needs no key."""
    assert taken(KeyGate(["a"], 3), "a", 9) == taken(KeyGate(["a", "b"], 3), "", 9) == [None] * 9


async def test_a_keys_flood_is_refused_before_others_are(
    served: Callable[..., Connected], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 300 requests that there is room for, its own; those that leave give their places back."""
    monkeypatch.setattr(door, "PAUSE_SECONDS", 0.0)
    statuses = Counter[tuple[str, int]]()
    opened = asyncio.Event()
    app = served(api_keys=HELD, max_waiting_requests=44).app

    async def receive() -> dict[str, Any]:
        await opened.wait()
        return {"type": "http.request", "body": b"{}"}

    async def ask(key: str) -> None:
        statuses[key, (await sent(app, key, receive, "POST"))[0]["status"]] += 1

    theirs = [asyncio.create_task(ask(A)) for _ in range(1000)]
    await asyncio.sleep(0)
    ours = [asyncio.create_task(ask(B)) for _ in range(10)]
    await asyncio.sleep(0)
    for task in theirs[:30]:
        task.cancel()
    await asyncio.sleep(0)
    theirs.append(asyncio.create_task(ask(A)))
    await asyncio.sleep(0)
    opened.set()
    await asyncio.gather(*theirs, *ours, return_exceptions=True)

    assert statuses == {(A, 422): 171, (A, 429): 800, (B, 422): 10}


async def test_a_flood_that_waits_for_its_refusals_leaves_others_their_room(
    served: Callable[..., Connected],
) -> None:
    """However many wait to be turned away, one more of another key is let in."""
    app = served(api_keys=HELD, max_waiting_requests=44).app

    async def never() -> dict[str, Any]:
        await asyncio.Event().wait()
        return {}

    async def body() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    theirs = [asyncio.create_task(sent(app, A, never)) for _ in range(1000)]
    await asyncio.sleep(0)
    ours = await sent(app, B, body)
    for task in theirs:
        task.cancel()
    await asyncio.gather(*theirs, return_exceptions=True)

    assert ours[0]["status"] == 422


async def test_a_refusal_of_one_too_many_says_when_to_come_again(
    served: Callable[..., Connected],
) -> None:
    """In the words of each API, as any other overload."""
    bearer = {"authorization": f"Bearer {A}"}
    async with served(api_keys=HELD) as client:
        client.app.gate = KeyGate(["a", "b"], 0)
        answers = await asyncio.gather(  # at once, as each waits a second for its body to be taken
            *(
                client.post(path, json={"inputs": ["a"]}, headers=bearer)
                for path in ("/v1/encode", "/embed", "/v1/embeddings", "/nothing")
            )
        )

    assert [answer.status_code for answer in answers] == [429] * 4
    assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert answers[0].json()["code"] == "overloaded"


async def test_what_serves_one_at_a_time_knows_whose_a_request_is(
    served: Callable[..., Connected], replica: Replica
) -> None:
    """Of long texts to be tokenized another key's only one is done before the third of a flood."""
    worker, order, text = replica.reader.worker, list[str](), "well " * 10_000

    async def ask(client: httpx.AsyncClient, key: str) -> None:
        answer = await client.post(
            "/tokenize",
            json={"inputs": text},
            headers={"authorization": f"Bearer {key}"},
        )
        assert answer.status_code == 200
        order.append(key)

    async with served(api_keys=HELD) as client:
        async with occupied(worker):
            asked = [asyncio.create_task(ask(client, key)) for key in (A, A, A, A, A, B)]
            while worker.waiting < len(text) * len(asked):
                await asyncio.sleep(0)
            await asyncio.sleep(0)  # the last one counted stands in its line
        await asyncio.gather(*asked)

    assert order.index(B) < 2
