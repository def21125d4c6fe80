"""Whose requests pass the door, and when."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from typing import Any

import httpx
import pytest

from service import keys
from service.edge import routes
from service.edge.guard import Guard
from service.edge.tenants import turns
from service.edge.tenants.turns import (
    JUST_SECONDS,
    LATELY_SECONDS,
    LONGEST_PAUSE_SECONDS,
    MOST,
    REFUSALS_A_SECOND,
    Turns,
)
from service.observe.metrics import samples
from service.observe.record import WAITED
from service.replica import Replica
from service.settings import Settings

pytestmark = pytest.mark.asyncio(loop_scope="session")

A, B = "the-key-of-a-12345678", "the-key-of-b-12345678"
HELD = keys.read(f"a:{A}\nb:{B}")
LONG = 1000.0
ASKED = {"inputs": ["a"]}


@pytest.fixture(autouse=True)
def endless(monkeypatch: pytest.MonkeyPatch) -> None:
    """A turn lasts until its request ends, however long a busy machine takes for a test."""
    monkeypatch.setattr(turns, "LONG_SECONDS", LONG)


class Door:
    """Turns at a clock that stands, and who has passed, in order."""

    def __init__(self, *names: str) -> None:
        self.now = 7.0
        self.turns = Turns(names, lambda: self.now)
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
            visit.turn.close()
        await settled()

    def inside(self, name: str) -> int:
        """How many of a key have passed and not ended."""
        return self.turns._lines[name].inside


class Visit:
    """One request's way."""

    def __init__(self, door: Door, name: str, seconds: float) -> None:
        self.door, self.name, self.turn = door, name, ExitStack()
        self.task = asyncio.create_task(self._wait(seconds))

    async def _wait(self, seconds: float) -> None:
        with self.turn.pop_all() as turn:
            waited = await self.door.turns.wait(self.name, seconds, turn)
            self.turn = turn.pop_all()
        self.door.passed.append((self.name, waited))


async def settled(count: int = 0) -> None:
    """All that is ready has run, and so many have passed one after the other."""
    for _ in range(5 + count):
        await asyncio.sleep(0)


async def test_a_key_alone_has_most_inside_and_the_others_wait_in_order() -> None:
    """One goes, the next comes; how long it waited is known."""
    door = Door("a", "b")
    flood = await door.come("a", MOST)
    late = await door.come("a", 3)
    door.now += 2.0
    await door.end(flood[0], flood[1])

    assert [visit.task.done() for visit in late] == [True, True, False]
    assert door.passed == [("a", 0.0)] * MOST + [("a", 2.0)] * 2
    assert door.inside("a") == MOST


async def test_of_a_single_key_all_pass() -> None:
    """It has nobody to wait for, nor has what is no key's."""
    lone, several = Door("a"), Door("a", "b")
    await lone.come("a", 3 * MOST)
    await several.come("", 3 * MOST)

    assert len(lone.passed) == len(several.passed) == 3 * MOST


async def test_a_key_that_asks_for_little_passes_a_flood_and_thins_it() -> None:
    """Those that are inside end; then as many as it had at once."""
    door = Door("a", "b")
    flood = await door.come("a", 2 * MOST)
    small = await door.come("b", 2)
    assert all(visit.task.done() for visit in small)

    await door.end(*flood[: MOST - 2])
    assert door.inside("a") == 2
    await door.end(flood[MOST - 1])
    assert door.inside("a") == 2 and flood[MOST].task.done()


async def test_other_keys_leave_those_that_stay_their_places() -> None:
    """Who waits goes on waiting, in its order; a key that is gone is waited for no longer."""
    door = Door("a", "b")
    flood = await door.come("a", MOST + 2)
    small = await door.come("b", 1)
    door.turns.follow(["a", "b", "c"])
    await door.end(*flood[: MOST - 1])
    assert door.inside("a") == 1 and not flood[MOST].task.done()

    door.turns.follow(["a", "c"])
    await settled()
    assert all(visit.task.done() for visit in flood) and small[0].task.done()
    await door.end(*small)
    assert door.inside("a") == 3


async def test_a_key_that_is_gone_lets_pass_what_it_had_waiting() -> None:
    """And one that comes shares from then on with the one that was alone."""
    door = Door("a", "b")
    flood = await door.come("a", MOST + 2)
    door.turns.follow(["b"])
    await door.end(flood[0])
    await door.end(flood[1])
    assert all(visit.task.done() for visit in flood)

    door.turns.follow(["b", "c"])
    assert len([visit for visit in await door.come("b", MOST + 1) if visit.task.done()]) == MOST


async def test_two_busy_keys_do_not_hold_each_other_back() -> None:
    """What counts is how many each has under way, whether they have passed or not."""
    door = Door("a", "b")
    await door.come("b", 5)
    both = await door.come("a", 2 * MOST), await door.come("b", 2 * MOST)
    await door.end(both[0][0])
    await settled(MOST)

    assert door.inside("a") == door.inside("b") == MOST


async def test_a_key_that_asks_no_more_soon_counts_no_more() -> None:
    """It does for a moment, whatever else it had before: most ask again at once."""
    door = Door("a", "b")
    await door.end(*await door.come("b"))
    flood = await door.come("a", 2 * MOST)
    door.now += JUST_SECONDS
    await door.end(flood[0])
    assert door.inside("a") == 1

    door.now += JUST_SECONDS
    await door.end(flood[1])
    await settled(MOST)
    assert door.inside("a") == MOST


async def test_beside_a_key_that_asked_lately_one_passes_in_a_round() -> None:
    """So whoever comes meanwhile finds a round short, and not all of a batch's clients in it."""
    door = Door("a", "b")
    await door.end(*await door.come("b"))
    door.now += LATELY_SECONDS - 1
    for _ in range(7):
        door.visit("a")
    inside = [door.inside("a")]
    for _ in range(3):
        await asyncio.sleep(0)
        inside.append(door.inside("a"))
    assert inside == [0, 1, 2, 3]

    await settled()
    door.now += 1
    for _ in range(7):
        door.visit("a")
    await asyncio.sleep(0)
    assert door.inside("a") == 14


async def test_a_request_under_way_is_lately_however_long() -> None:
    """One that runs for minutes is still one."""
    door = Door("a", "b")
    await door.come("b")
    door.now += 100 * LATELY_SECONDS
    await door.come("a", 2 * MOST)

    assert door.inside("a") == 1


async def test_a_keys_refusals_leave_so_many_a_second() -> None:
    """None waits longer than the longest pause; of another key, or later, none waits at all."""
    door = Door("a", "b")

    pauses = [door.turns.pause("a") for _ in range(600)]
    other = door.turns.pause("b")
    door.now += 2 * LONGEST_PAUSE_SECONDS

    assert pauses[:2] == pytest.approx([0, 1 / REFUSALS_A_SECOND])
    assert pauses[100] == pytest.approx(100 / REFUSALS_A_SECOND)
    assert max(pauses) == pytest.approx(LONGEST_PAUSE_SECONDS)
    assert (other, door.turns.pause("a"), Turns(["a"]).pause("a")) == (0.0, 0.0, 0.0)


async def test_one_that_gives_up_leaves_no_trace() -> None:
    """Parked, or in the very moment of its turn."""
    door = Door("a", "b")
    flood = await door.come("a", MOST)
    parked = await door.come("a", 3)
    parked[1].task.cancel()
    await settled()
    flood[0].turn.close()  # the first's turn has come
    parked[0].task.cancel()
    await settled()
    assert [visit.task.cancelled() for visit in parked] == [True, True, False]
    assert parked[2].task.done() and door.inside("a") == MOST

    await door.end(*flood[1:], parked[2])
    line = door.turns._lines["a"]
    assert line.inside == line.just._count == len(line.parked) == 0


async def test_a_turn_is_over_when_it_has_lasted_long(monkeypatch: pytest.MonkeyPatch) -> None:
    """A few large requests hold up no small one of their key; their end changes nothing."""
    monkeypatch.setattr(turns, "LONG_SECONDS", 0.0)
    door = Door("a", "b")
    large = await door.come("a", MOST)
    (small,) = await door.come("a")
    assert small.task.done()

    await door.end(*large, small)
    line = door.turns._lines["a"]
    assert line.inside == line.just._count == 0


async def test_whose_turn_does_not_come_in_time_hears_of_it() -> None:
    """And has no turn that it would have to end."""
    door = Door("a", "b")
    await door.come("a", MOST)
    (late,) = await door.come("a", seconds=0.0)

    with pytest.raises(TimeoutError):
        await late.task
    assert door.inside("a") == MOST and not door.turns._lines["a"].parked


def post(guard: Guard, key: str, receive: Any) -> asyncio.Task[None]:
    """A request with a key, whose answer nobody reads."""

    async def send(message: Any) -> None: ...

    headers = [(b"authorization", f"Bearer {key}".encode())]
    scope = {"type": "http", "method": "POST", "path": "/v1/encode", "headers": headers}
    return asyncio.create_task(guard(scope, receive, send))


async def test_the_body_of_a_parked_request_is_not_read_and_its_client_may_leave() -> None:
    """At its turn the app hears that it has left, and the next one's comes."""
    passed: list[Any] = []
    gates = [asyncio.Event() for _ in range(MOST)]
    reads = 0

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        if len(passed) >= MOST:
            await receive()  # no body
            passed.append((await receive())["type"])
            return
        passed.append(None)
        await gates[len(passed) - 1].wait()

    async def receive() -> dict[str, Any]:
        nonlocal reads
        reads += 1
        return {"type": "http.request", "body": b"{}"}

    async def left() -> dict[str, Any]:
        return {"type": "http.disconnect"}

    guard = Guard(inner, Settings(api_keys=HELD))
    flood = [post(guard, A, receive) for _ in range(MOST)]
    await settled()
    flood += [post(guard, A, left), post(guard, A, left), post(guard, A, receive)]
    await settled()
    assert reads == len(passed) == MOST

    flood[-1].cancel()
    gates[0].set()
    await settled()
    assert passed[MOST:] == ["http.disconnect"] * 2 and reads == MOST
    for gate in gates:
        gate.set()
    await asyncio.gather(*flood, return_exceptions=True)
    assert guard._turns._lines["a"].inside == guard._under_way._total == 0


async def test_a_key_that_only_looks_at_metrics_takes_no_turns_from_another(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """A scrape every few seconds is no work: the other key has as many inside as ever."""
    async with served(api_keys=HELD) as client:
        guard = client._transport.app  # type: ignore[attr-defined]
        page = await client.get("/metrics", headers={"authorization": f"Bearer {B}"})
        with ExitStack() as held:
            waited = [await guard._turns.wait("a", 0.01, held) for _ in range(MOST)]

    assert page.status_code == 200
    assert waited == [0.0] * MOST


async def test_a_slow_reader_of_an_answer_holds_no_turn() -> None:
    """The turn is over when the answer begins."""
    begun = asyncio.Semaphore(0)

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        begun.release()
        await asyncio.Event().wait()

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"{}"}

    guard = Guard(inner, Settings(api_keys=HELD))
    theirs = [post(guard, A, receive) for _ in range(2 * MOST)]
    for _ in theirs:
        await begun.acquire()
    assert guard._turns._lines["a"].inside == 0
    for task in theirs:
        task.cancel()
    await asyncio.gather(*theirs, return_exceptions=True)


def turned_away(page: str) -> Counter[str]:
    """The requests that were turned away so far, by their reasons."""
    counts = Counter[str]()
    for name, labels, value in samples(page):
        if name == "headlight_shed_total":
            counts[labels["reason"]] += int(value)
    return counts


async def test_whose_turn_comes_too_late_is_answered_so(
    served: Callable[..., httpx.AsyncClient],
) -> None:
    """By its own deadline, in the words of each API, and counted as its key's own."""
    bearer = {"authorization": f"Bearer {B}"}
    async with served(api_keys=HELD) as client:
        before = (await client.get("/metrics", headers=bearer)).text
        guard = client._transport.app  # type: ignore[attr-defined]
        with ExitStack() as held:
            for _ in range(MOST):
                await guard._turns.wait("a", LONG, held)
            late = [
                await client.post(
                    path,
                    json=ASKED,
                    headers={"authorization": f"Bearer {A}", "x-headlight-deadline-ms": "1"},
                )
                for path in ("/v1/encode", "/embed", "/v1/embeddings", "/nothing")
            ]
            other = await client.post("/v1/encode", json=ASKED, headers=bearer)
        after = (await client.get("/metrics", headers=bearer)).text

    assert [answer.status_code for answer in late] == [504] * 4
    assert turned_away(after) - turned_away(before) == {"share": 4}
    assert late[0].json()["code"] == "deadline_exceeded"
    assert other.status_code == 200


async def test_what_a_request_waited_is_of_its_duration_and_of_its_deadline(
    replica: Replica, log: Callable[[], str]
) -> None:
    """As if the routes had had it since."""

    async def scrape(openmetrics: bool) -> bytes:
        return b""

    transport = httpx.ASGITransport(routes.application(replica, scrape))
    async with httpx.AsyncClient(transport=transport, base_url="http://headlight") as client:
        answers = [
            await client.post("/v1/encode", json=ASKED, headers={WAITED: waited})
            for waited in ("3.000000", "31.000000")
        ]
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
    door, count = Turns("ab", loop.time), 0

    async def ask(name: str) -> float:
        with ExitStack() as turn:
            waited = await door.wait(name, LONG, turn)
            await asyncio.sleep(PASS_SECONDS)
            return waited

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
