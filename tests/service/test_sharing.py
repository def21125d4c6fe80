"""What a key feels of another, and a small request of large ones: the drills, on a clock of ours.

The gate and the batcher are the service's own; the event loop, two lanes and HAProxy share two
cores (benchmarks/served/simulation.py). tests/ray/test_tenants.py asks a real service.
"""

import asyncio
import math
import statistics
import sys
from collections import Counter, defaultdict
from collections.abc import Sequence
from pathlib import Path

import pytest

sys.path.append(str(Path(__file__).parent.parent.parent / "benchmarks"))

from served.simulation import PROXY_THREADS, Cores, SerialServer, SimulatedLoop

from service.door.door import PAUSE_SECONDS
from service.door.gate import KeyGate
from service.engine.batcher import Batcher
from service.tables.keys import Limits
from service.tables.refusals import Refused

# The event loop's for a request's head, its body and its answer, and HAProxy's each way
HEAD_SECONDS, BODY_SECONDS, ANSWER_SECONDS, PROXY_SECONDS = 0.0002, 0.0003, 0.0005, 0.0001
BATCH_SECONDS, TOKEN_SECONDS = 0.0082, 0.000152
CORES = 2
LANES, BUDGET = 2, 1300  # tokens of two lanes' batches: 100 ms of each
ROOM, WAITING, WAITING_TOKENS = 768, 512, 600_000
AGAIN_SECONDS = 0.5  # a client's pause after a refusal
SMALL, LARGE = (16,), (200,) * 64
BEGUN_SECONDS = 2.0  # by then the flood that came before others is answered
SECONDS = 10.0


class Service:
    """A replica: its gate, its event loop, which does one thing at a time, and its lanes.

    Attributes:
        seconds: of each request that was answered, by its client's name.
        refused: by key.
    """

    def __init__(self, keys: str, pass_seconds: float = TOKEN_SECONDS) -> None:
        self._loop, self._cores = asyncio.get_running_loop(), Cores(CORES)
        self._steps, self._proxy = SerialServer(), SerialServer(PROXY_THREADS)
        self._token_seconds = pass_seconds
        self.gate = KeyGate(keys, ROOM, self._loop.time)
        self.batcher: Batcher[range, bool] = Batcher(
            self._compute,
            lanes=LANES,
            budget=BUDGET,
            speed=LANES / TOKEN_SECONDS,
            most_requests=WAITING,
            most_tokens=WAITING_TOKENS,
            limits={key: Limits() for key in keys},
            clock=self._loop.time,
        )
        self.seconds, self.refused = defaultdict[str, list[float]](list), Counter[str]()

    async def _compute(self, lane: int, works: Sequence[range], cores: int) -> Sequence[bool]:
        tokens = sum(map(len, works))
        await self._cores.compute(BATCH_SECONDS + tokens * self._token_seconds / cores, cores)
        return [True] * len(works)

    async def ask(self, name: str, key: str, texts: Sequence[int]) -> None:
        """Have one request answered, or refused as admission and the door do."""
        began, place = self._loop.time(), None
        await self._proxy.do(self._cores, PROXY_SECONDS)
        await self._steps.do(self._cores, HEAD_SECONDS)
        try:
            place = self.gate.take_place(key)
            if place:
                await self.gate.enter(place, 30.0)
            await self._steps.do(self._cores, BODY_SECONDS)
            works = [range(tokens) for tokens in texts]
            self.batcher.check_admission(
                sum(texts), sum(self.batcher.costs(works)), began + 30, key
            )
            await self.batcher.submit(works, began + 30, key)
            await self._steps.do(self._cores, ANSWER_SECONDS)
            await self._proxy.do(self._cores, PROXY_SECONDS)
            self.seconds[name].append(self._loop.time() - began)
        except Refused:
            self.refused[key] += 1
            await asyncio.sleep(PAUSE_SECONDS)
            await self._steps.do(self._cores, HEAD_SECONDS)
            await self._proxy.do(self._cores, PROXY_SECONDS)
            await asyncio.sleep(AGAIN_SECONDS)
        finally:
            if place:
                self.gate.give_back(place)

    async def flood(self, name: str, key: str, count: int, texts: Sequence[int] = SMALL) -> None:
        """Ask on so many connections without end."""

        async def one() -> None:
            while True:
                await self.ask(name, key, texts)

        await asyncio.gather(*(one() for _ in range(count)))

    async def now_and_then(self, name: str, key: str, every: float) -> None:
        """Ask for a small text so often."""
        while True:
            began = self._loop.time()
            await self.ask(name, key, SMALL)
            await asyncio.sleep(max(0.0, began + every - self._loop.time()))


Client = tuple[str, str, int, Sequence[int]]  # name, key, connections, texts


def served(
    clients: Sequence[Client],
    every: float | None,
    keys: str = "",
    key: str = "",
    token_seconds: float = TOKEN_SECONDS,
) -> Service:
    """What clients that flood, and one that asks for small texts so often, have seen."""

    async def run() -> Service:
        service = Service(keys, token_seconds)
        tasks = [asyncio.create_task(service.flood(*client)) for client in clients]
        await asyncio.sleep(BEGUN_SECONDS)
        service.seconds.clear()
        if every:
            tasks.append(asyncio.create_task(service.now_and_then("small", key, every)))
        await asyncio.sleep(SECONDS)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await service.batcher.drain()
        lines = service.gate.lines.values()
        assert service.gate.total == sum(line.taken for line in lines) == 0
        return service

    with asyncio.Runner(loop_factory=SimulatedLoop) as runner:
        return runner.run(run())


def p99(seconds: Sequence[float]) -> float:
    """The 99th percentile."""
    return sorted(seconds)[math.ceil(0.99 * len(seconds)) - 1]


@pytest.fixture(scope="module")
def idle() -> float:
    """What a small request takes on the idle service."""
    return p99(served([], 0.1).seconds["small"])


def test_a_key_that_floods_delays_no_other_much_and_has_none_refused(idle: float) -> None:
    """Six hundred connections, beside ten requests a second; refusals are its own."""
    flooded = served([("flood", "a", 600, SMALL)], 0.1, "ab", "b")

    assert flooded.refused["b"] == 0 and flooded.refused["a"] > 0
    assert p99(flooded.seconds["small"]) <= 2.5 * idle


@pytest.mark.parametrize("texts", [(200,) * 8, pytest.param(LARGE, marks=pytest.mark.prove)])
def test_nor_does_a_flood_of_longer_texts(idle: float, texts: Sequence[int]) -> None:
    """Whose batches of 100 ms leave a lane."""
    flooded = served([("flood", "a", 600, texts)], 0.1, "ab", "b")

    assert flooded.refused["b"] == 0
    assert p99(flooded.seconds["small"]) <= 2 * idle


@pytest.mark.prove
def test_nor_one_that_asks_seldom(idle: float) -> None:
    """It waits for the batches that run, of 100 ms on shared cores, and for more of the loop."""
    flooded = served([("flood", "a", 600, SMALL)], 1.0, "ab", "b")

    assert flooded.refused["b"] == 0
    assert p99(flooded.seconds["small"]) <= idle + 0.25


@pytest.mark.parametrize(
    ("count", "connections"), [(16, 1), pytest.param(2, 32, marks=pytest.mark.prove)]
)
def test_keys_that_ask_alike_leave_no_lane_idle(count: int, connections: int) -> None:
    """As many are answered as without keys: each waits, and none is most of what runs for long."""
    keys = "abcdefghijklmnop"[:count]
    alike = served([(key, key, connections, SMALL) for key in keys], None, keys)
    without = served([(key, "", connections, SMALL) for key in keys], None)

    assert sum(map(len, alike.seconds.values())) >= 0.95 * sum(map(len, without.seconds.values()))


@pytest.mark.prove
@pytest.mark.parametrize(
    ("connections", "token_seconds"),
    [
        pytest.param(16, 1e-6, id="few on an accelerator"),
        pytest.param(128, TOKEN_SECONDS, id="many on a processor", marks=pytest.mark.prove),
        pytest.param(128, 1e-6, id="many on an accelerator", marks=pytest.mark.prove),
    ],
)
def test_a_busy_key_keeps_its_speed_beside_a_quiet_one(
    connections: int, token_seconds: float
) -> None:
    """One that asks every three seconds, and is answered."""
    busy = [("busy", "a", connections, SMALL)]
    alone = served(busy, None, "ab", "b", token_seconds)
    beside = served(busy, 3.0, "ab", "b", token_seconds)

    assert len(beside.seconds["busy"]) >= 0.9 * len(alone.seconds["busy"])
    assert beside.refused["b"] == 0 and len(beside.seconds["small"]) >= 3


@pytest.mark.parametrize(("keys", "key"), [("", ""), ("a", "a"), ("ab", "a")])
def test_a_small_request_passes_large_ones_of_its_own_key(idle: float, keys: str, key: str) -> None:
    """Without keys, too; and of the large ones none is left behind."""
    flood = [(f"large {n}", key, 1, LARGE) for n in range(6)]
    flooded = served(flood, 0.1, keys, key)
    done = [len(flooded.seconds[name]) for name, *_ in flood]

    assert p99(flooded.seconds["small"]) <= idle + 0.15
    assert min(done) >= max(done) - 1 > 0


def test_requests_about_alike_wait_alike() -> None:
    """Of four connections, of 32 texts each, the one with the longest waits for no other twice."""
    flood = [(f"of {n} tokens", "", 1, (n,) * 32) for n in (18, 26, 34, 44)]
    taken = [seconds for each in served(flood, None).seconds.values() for seconds in each]

    assert p99(taken) <= 1.6 * statistics.median(taken)


def test_a_large_request_is_not_starved_by_small_ones_of_its_own_key() -> None:
    """After those that may pass it, it has half of what the event loop leaves."""
    large = ("large", "", 1, LARGE)
    alone = served([large], None).seconds["large"]
    beside = served([large, ("small", "", 64, SMALL)], None).seconds["large"]

    assert max(beside) <= 3.5 * max(alone)


def test_a_client_that_asks_now_and_then_keeps_no_lane_idle(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It is expected back for a moment only; those that ask without a pause keep their speed."""
    monkeypatch.setattr(f"{__name__}.BATCH_SECONDS", 0.003)  # passes shorter than the wait for it
    busy: list[Client] = [("busy", "", 8, (5,))]
    alone = served(busy, None, token_seconds=0.0004)
    beside = served(busy, 0.1, token_seconds=0.0004)

    assert len(beside.seconds["busy"]) >= 0.9 * len(alone.seconds["busy"])
