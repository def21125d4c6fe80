"""Whose requests pass the gate, and when, and what one key leaves of the room to others."""

import asyncio
import json
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Any

import httpx
import pytest

from service import keys
from service.edge import gate
from service.edge.gate import (
    JUST_SECONDS,
    LATELY_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST,
    REFUSALS_A_SECOND,
    Full,
    Gate,
    Place,
)
from service.replica import Replica
from tests.conftest import Connected
from tests.scraped import samples
from tests.seams import occupied

pytestmark = pytest.mark.asyncio(loop_scope="session")

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
HELD = keys.read(f"a:{A}\nb:{B}")
LONG = 1000.0
ASKED = {"inputs": ["a"]}


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn lasts until its request ends, however long a busy machine takes for a test."""
    monkeypatch.setattr(gate, "LONG_SECONDS", LONG)


class Way:
    """A gate at a clock that stands, and who has passed, in order."""

    def __init__(self, *names: str) -> None:
        self.now = 7.0
        self.gate = Gate(names, 10_000, lambda: self.now)
        self.passed: list[tuple[str, float]] = []

    def visit(self, name: str, seconds: float = LONG) -> "Visit":
        """A request comes in the loop's next round."""
        return Visit(self, name, seconds)

    async def come(self, name: str, count: int = 1, seconds: float = LONG) -> list["Visit"]:
        """Requests come, and those pass that may."""
        visits = [self.visit(name, seconds) for _ in range(count)]
        await settled(count)
        return visits

    async def end(self, *visits: "Visit") -> None:
        """Requests that are inside end, and others pass."""
        for visit in visits:
            visit.end()
        await settled()

    def inside(self, name: str) -> int:
        """How many of a key have passed and not ended."""
        return self.gate.lines[name].inside


class Visit:
    """One request's way."""

    def __init__(self, way: Way, name: str, seconds: float) -> None:
        self.way, self.name, self.place = way, name, way.gate.take(name)
        self.task = asyncio.create_task(self._wait(seconds))

    async def _wait(self, seconds: float) -> None:
        waited = 0.0
        try:
            if self.place:
                waited = await self.way.gate.wait(self.place, seconds)
        except BaseException:
            self.end()
            raise
        self.way.passed.append((self.name, waited))

    def end(self) -> None:
        """Give back what it took, once."""
        place, self.place = self.place, None
        if place:
            self.way.gate.give_back(place)


async def settled(count: int = 0) -> None:
    """All that is ready has run, and so many have passed one after the other."""
    for _ in range(5 + count):
        await asyncio.sleep(0)


async def test_a_key_alone_has_most_inside_and_the_others_wait_in_order() -> None:
    """One goes, the next comes; how long it waited is known."""
    way = Way("a", "b")
    flood = await way.come("a", MOST)
    late = await way.come("a", 3)
    way.now += 2.0
    await way.end(flood[0], flood[1])

    assert [visit.task.done() for visit in late] == [True, True, False]
    assert way.passed == [("a", 0.0)] * MOST + [("a", 2.0)] * 2
    assert way.inside("a") == MOST


async def test_of_a_single_key_all_pass() -> None:
    """It waits for no other, nor does a request without a key."""
    lone, several = Way("a"), Way("a", "b")
    await lone.come("a", 3 * MOST)
    await several.come("", 3 * MOST)

    assert len(lone.passed) == len(several.passed) == 3 * MOST


async def test_a_key_that_asks_for_little_passes_a_flood_and_thins_it() -> None:
    """Those that are inside end; then as many as it had at once."""
    way = Way("a", "b")
    flood = await way.come("a", 2 * MOST)
    small = await way.come("b", 2)
    assert all(visit.task.done() for visit in small)

    await way.end(*flood[: MOST - 2])
    assert way.inside("a") == 2
    await way.end(flood[MOST - 1])
    assert way.inside("a") == 2 and flood[MOST].task.done()


async def test_other_keys_leave_those_that_stay_their_places() -> None:
    """Who waits goes on waiting, in its order; a key that is gone is waited for no longer."""
    way = Way("a", "b")
    flood = await way.come("a", MOST + 2)
    small = await way.come("b", 1)
    way.gate.set_keys(["a", "b", "c"])
    await way.end(*flood[: MOST - 1])
    assert way.inside("a") == 1 and not flood[MOST].task.done()

    way.gate.set_keys(["a", "c"])
    await settled()
    assert all(visit.task.done() for visit in flood) and small[0].task.done()
    await way.end(*small)
    assert way.inside("a") == 3


async def test_a_key_that_is_gone_lets_pass_what_it_had_waiting() -> None:
    """And one that comes shares from then on with the one that was alone."""
    way = Way("a", "b")
    flood = await way.come("a", MOST + 2)
    way.gate.set_keys(["b"])
    await way.end(flood[0])
    await way.end(flood[1])
    assert all(visit.task.done() for visit in flood)

    way.gate.set_keys(["b", "c"])
    assert len([visit for visit in await way.come("b", MOST + 1) if visit.task.done()]) == MOST


async def test_two_busy_keys_do_not_hold_each_other_back() -> None:
    """What counts is how many each has under way, whether they have passed or not."""
    way = Way("a", "b")
    await way.come("b", 5)
    both = await way.come("a", 2 * MOST), await way.come("b", 2 * MOST)
    await way.end(both[0][0])
    await settled(MOST)

    assert way.inside("a") == way.inside("b") == MOST


async def test_a_key_that_asks_no_more_soon_counts_no_more() -> None:
    """It does for a moment, whatever else it had before: most ask again at once."""
    way = Way("a", "b")
    await way.end(*await way.come("b"))
    flood = await way.come("a", 2 * MOST)
    way.now += JUST_SECONDS
    await way.end(flood[0])
    assert way.inside("a") == 1

    way.now += JUST_SECONDS
    await way.end(flood[1])
    await settled(MOST)
    assert way.inside("a") == MOST


async def test_beside_a_key_that_asked_lately_one_passes_in_a_round() -> None:
    """So a request that comes meanwhile finds a short round, without all of a batch's clients."""
    way = Way("a", "b")
    await way.end(*await way.come("b"))
    way.now += LATELY_SECONDS - 1
    for _ in range(7):
        way.visit("a")
    inside = [way.inside("a")]
    for _ in range(3):
        await asyncio.sleep(0)
        inside.append(way.inside("a"))
    assert inside == [0, 1, 2, 3]

    await settled()
    way.now += 1
    for _ in range(7):
        way.visit("a")
    await asyncio.sleep(0)
    assert way.inside("a") == 14


async def test_a_request_under_way_is_lately_however_long() -> None:
    """One that runs for minutes is still one."""
    way = Way("a", "b")
    await way.come("b")
    way.now += 100 * LATELY_SECONDS
    await way.come("a", 2 * MOST)

    assert way.inside("a") == 1


async def test_a_keys_refusals_leave_so_many_a_second() -> None:
    """None waits longer than the longest pause; of another key, or later, none waits at all."""
    now = 7.0
    gate = Gate(["a", "b"], 0, lambda: now)

    def pause(name: str) -> float:
        with pytest.raises(Full) as full:
            gate.take(name)
        return full.value.seconds

    pauses = [pause("a") for _ in range(600)]
    other = pause("b")
    now += 2 * LONGEST_PAUSE_SECONDS

    assert pauses[:2] == pytest.approx([0, 1 / REFUSALS_A_SECOND])
    assert pauses[100] == pytest.approx(100 / REFUSALS_A_SECOND)
    assert max(pauses) == pytest.approx(LONGEST_PAUSE_SECONDS)
    assert (other, pause("a")) == (0.0, 0.0)


async def test_one_that_gives_up_leaves_no_trace() -> None:
    """Parked, or in the very moment of its turn."""
    way = Way("a", "b")
    flood = await way.come("a", MOST)
    parked = await way.come("a", 3)
    parked[1].task.cancel()
    await settled()
    flood[0].end()  # the first's turn has come
    parked[0].task.cancel()
    await settled()
    assert [visit.task.cancelled() for visit in parked] == [True, True, False]
    assert parked[2].task.done() and way.inside("a") == MOST

    await way.end(*flood[1:], parked[2])
    line = way.gate.lines["a"]
    assert line.inside == line.just.count == len(line.parked) == 0


async def test_a_turn_is_over_when_it_has_lasted_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large requests hold up no small one of their key; their end changes nothing."""
    monkeypatch.setattr(gate, "LONG_SECONDS", 0.0)
    way = Way("a", "b")
    large = await way.come("a", MOST)
    (small,) = await way.come("a")
    assert small.task.done()

    await way.end(*large, small)
    line = way.gate.lines["a"]
    assert line.inside == line.just.count == 0


async def test_whose_turn_does_not_come_in_time_hears_of_it() -> None:
    """And has no turn that it would have to end."""
    way = Way("a", "b")
    await way.come("a", MOST)
    (late,) = await way.come("a", seconds=0.0)

    with pytest.raises(TimeoutError):
        await late.task
    assert way.inside("a") == MOST and not way.gate.lines["a"].parked


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


async def test_the_body_of_a_parked_request_is_not_read_and_its_client_may_leave(
    served: Callable[..., Connected],
) -> None:
    """At its turn it is told that it has left, and the next one's comes."""
    gates, reads = [asyncio.Event() for _ in range(MOST)], list[int]()

    async def read() -> dict[str, Any]:
        reads.append(len(reads))
        if reads[-1] < MOST:
            await gates[reads[-1]].wait()
        return {"type": "http.request", "body": b"{}"}

    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    app = served(api_keys=HELD).app
    flood = [asyncio.create_task(sent(app, A, read)) for _ in range(MOST)]
    await settled()
    flood += [asyncio.create_task(sent(app, A, coming)) for coming in (left, left, read)]
    await settled()
    assert len(reads) == MOST

    flood[-1].cancel()
    gates[0].set()
    gone = [(await task)[0]["status"] for task in flood[MOST:-1]]
    assert gone == [499] * 2 and len(reads) == MOST
    for one in gates:
        one.set()
    await asyncio.gather(*flood, return_exceptions=True)
    assert app.gate.lines["a"].inside == app.gate.total == 0


async def test_a_key_that_only_looks_at_metrics_takes_no_turns_from_another(
    served: Callable[..., Connected],
) -> None:
    """A scrape every few seconds is no work: the other key has as many inside as ever."""
    async with served(api_keys=HELD) as client:
        gate = client.app.gate
        page = await client.get("/metrics", headers={"authorization": f"Bearer {B}"})
        waited = [await gate.wait(gate.take("a"), 0.01) for _ in range(MOST)]

    assert page.status_code == 200
    assert waited == [0.0] * MOST


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
    theirs = [asyncio.create_task(app(dict(scope), receive, slowly)) for _ in range(2 * MOST)]
    for _ in theirs:
        await begun.acquire()
    assert app.gate.lines["a"].inside == 0 and app.gate.total == 2 * MOST
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
        for _ in range(MOST):
            await gate.wait(gate.take("a"), LONG)
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

    async def wait(gate: Gate, place: Place, seconds: float) -> float:
        return waits.pop(0)

    monkeypatch.setattr(Gate, "wait", wait)
    async with served(api_keys=HELD) as client:
        bearer = {"authorization": f"Bearer {A}"}
        answers = [await client.post("/v1/encode", json=ASKED, headers=bearer) for _ in range(2)]
    durations = [json.loads(line)["duration_ms"] for line in log().splitlines()]

    assert [answer.status_code for answer in answers] == [200, 504]
    assert durations[0] >= 3000 and durations[1] >= 31_000


class Jumping(asyncio.SelectorEventLoop):
    """A loop whose clock jumps to what comes next, so that seconds pass at once."""

    now = 0.0

    def time(self) -> float:
        return self.now

    def _run_once(self) -> None:
        if not self._ready and self._scheduled:
            self.now = max(self.now, self._scheduled[0].when())
        super()._run_once()


PASS_SECONDS, QUIET_SECONDS = 0.05, 4.0


def served_beside(quiet: bool) -> tuple[float, list[float]]:
    """A busy key's requests a second where any number takes the same time, and another's waits."""
    loop, waits = Jumping(), list[float]()
    gate, count = Gate("ab", 10_000, loop.time), 0

    async def ask(name: str) -> float:
        place = gate.take(name)
        assert place
        try:
            waited = await gate.wait(place, LONG)
            await asyncio.sleep(PASS_SECONDS)
            return waited
        finally:
            gate.give_back(place)

    async def busy() -> None:
        nonlocal count
        while True:
            await ask("a")
            count += 1

    async def run() -> None:
        tasks = [asyncio.create_task(busy()) for _ in range(2 * MOST)]
        for _ in range(3):
            await asyncio.sleep(QUIET_SECONDS - PASS_SECONDS * quiet)
            if quiet:
                waits.append(await ask("b"))
        for task in tasks:
            task.cancel()

    with asyncio.Runner(loop_factory=lambda: loop) as runner:
        runner.run(run())
    return count / loop.now, waits


async def test_a_busy_key_keeps_its_speed_beside_one_that_asks_now_and_then() -> None:
    """Where many requests run at once, as on a GPU, it matters most how many are inside."""
    alone, _ = await asyncio.to_thread(served_beside, quiet=False)
    beside, waits = await asyncio.to_thread(served_beside, quiet=True)

    assert alone > 0.9 * MOST / PASS_SECONDS
    assert beside > 0.9 * alone and max(waits) == 0.0


async def test_however_many_keys_flood_there_is_room_for_one_more() -> None:
    """Each as much as it gets; what they had is there again when they are done."""
    names = [f"k{number}" for number in range(11)]
    gate, held = Gate(names, 90), dict[str, list[Place | None]]()
    for name in names:
        held[name] = taken(gate, name, 100)
    for place in (place for places in held.values() for place in places):
        assert place
        gate.give_back(place)
    again = taken(gate, "k0", 61)

    assert [len(places) for places in held.values()][:6] == [60, 20, 7, 2, 1, 0]
    assert len(again) == 60


def taken(gate: Gate, name: str, most: int) -> list[Place | None]:
    """The places that a key gets, of so many."""
    places = list[Place | None]()
    with suppress(Full):
        for _ in range(most):
            places.append(gate.take(name))
    return places


async def test_what_a_key_has_under_way_counts_on_when_others_come_and_go() -> None:
    """And gives its room back when it is done, whichever keys share by then."""
    gate = Gate(["a", "b"], 9)
    held = taken(gate, "a", 5)
    gate.set_keys(["a", "b", "c"])
    held += taken(gate, "a", 9)
    gate.set_keys(["a"])
    alone = gate.take("a")
    assert len(held) == 6 and alone is None and gate.total == 6

    for place in held:
        assert place
        gate.give_back(place)
    assert gate.total == gate.lines["a"].under_way == 0


async def test_one_key_has_all_the_room() -> None:
    """And so has what needs no key."""
    assert taken(Gate(["a"], 3), "a", 9) == taken(Gate(["a", "b"], 3), "", 9) == [None] * 9


async def test_a_keys_flood_is_refused_before_others_are(
    served: Callable[..., Connected], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of 300 requests that there is room for, its own; those that leave give their places back."""
    monkeypatch.setattr(gate, "LONGEST_PAUSE_SECONDS", 0.0)
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
        client.app.gate = Gate(["a", "b"], 0)
        answers = [
            await client.post(path, json={"inputs": ["a"]}, headers=bearer)
            for path in ("/v1/encode", "/embed", "/v1/embeddings", "/nothing")
        ]

    assert [answer.status_code for answer in answers] == [429] * 4
    assert {answer.headers["retry-after"] for answer in answers} == {"1"}
    assert answers[0].json()["code"] == "overloaded"


async def test_what_serves_one_at_a_time_knows_whose_a_request_is(
    served: Callable[..., Connected], replica: Replica
) -> None:
    """Of long texts to be tokenized another key's only one is done before the third of a flood."""
    worker, order, text = replica.reader.worker, list[str](), "well " * 50_000

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
