"""The batcher, driven by a lane of our own that does what each test says."""

import asyncio
import time
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest

from service.engine.batcher import SURE_SHARE, Batcher, Launch
from service.engine.fair.line import OVERTAKING_TOKENS
from service.engine.fair.queue import LATELY_SECONDS, SMALL_TOKENS
from service.engine.speed import DOUBTFUL_PROBES, PROBE_EVERY
from service.shapes.job import Timing
from service.tables.keys import Limits
from service.tables.refusals import Refused

FAR = 1e9  # a deadline that no request misses


@dataclass(frozen=True)
class Work:
    name: str
    tokens: int

    def __len__(self) -> int:
        return self.tokens


def request(names: Sequence[str], tokens: Sequence[int]) -> list[Work]:
    """Works by name, each of so many tokens."""
    return [Work(*pair) for pair in zip(names, tokens, strict=True)]


class Lanes:
    """Lanes that finish when told, and remember every batch as (lane, works, threads)."""

    def __init__(self, held: bool = False) -> None:
        self.batches: list[tuple[int, list[str], int]] = []
        self.gate = asyncio.Event()
        if not held:
            self.gate.set()

    async def launch(
        self, lane: int, works: Sequence[Work], threads: int
    ) -> Sequence[str | Exception]:
        names = [work.name for work in works]
        self.batches.append((lane, names, threads))
        await self.gate.wait()
        return [ValueError(name) if name == "bad" else name.upper() for name in names]


def batcher(
    lanes: Lanes | Launch[Work, str], *, count: int = 1, budget: int = 1000, **more: Any
) -> Batcher[Work, str]:
    """A batcher that believes in 1,000 tokens a second."""
    limits: dict[str, Any] = {"most_requests": 100, "most_tokens": 10_000, "speed": 1000.0, **more}
    launch = lanes.launch if isinstance(lanes, Lanes) else lanes
    return Batcher(launch, lanes=count, budget=budget, **limits)


async def ask(
    queue: Batcher[Work, str], works: Sequence[Work], deadline: float, key: str = ""
) -> tuple[list[str], Timing]:
    """Run works if there is room and time for them, as admission asks."""
    queue.check_admission(sum(map(len, works)), sum(queue.costs(works)), deadline, key)
    return await queue.submit(works, deadline, key)


def check(queue: Batcher[Work, str], tokens: int, deadline: float, key: str = "") -> None:
    """Ask whether one work of so many tokens would be admitted."""
    queue.check_admission(tokens, sum(queue.costs([Work("", tokens)])), deadline, key)


async def settle() -> None:
    """Let every task run until it waits."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_every_sequence_comes_back_once_and_in_its_place() -> None:
    """Results stand in the order of the works, whatever the batches were."""
    lanes = Lanes()

    works = request(["a", "b", "c", "d"], [100, 7, 90, 11])
    done, _ = await ask(batcher(lanes, budget=128), works, FAR)

    assert done == ["A", "B", "C", "D"]
    assert sorted(work for _, works, _ in lanes.batches for work in works) == ["a", "b", "c", "d"]


async def test_a_batch_stays_within_the_budget() -> None:
    """Sequences that do not fit wait for the next batch."""
    lanes = Lanes()

    await ask(batcher(lanes, budget=250), request(list("abcde"), [100] * 5), FAR)

    assert [len(works) for _, works, _ in lanes.batches] == [2, 2, 1]


@pytest.mark.parametrize(("cost", "batches"), [(100.0, [2, 2, 1]), (500.0, [1] * 5)])
async def test_a_batch_costs_no_more_than_the_budget(cost: float, batches: list[int]) -> None:
    """What is computed of a few tokens may take far longer than their pass."""
    lanes = Lanes()
    queue = batcher(lanes, budget=250, costs=lambda works: [cost] * len(works))

    await ask(queue, request(list("abcde"), [5] * 5), FAR)

    assert [len(works) for _, works, _ in lanes.batches] == batches


async def test_a_sequence_above_the_budget_runs_alone() -> None:
    """An oversize sequence is neither refused nor forgotten."""
    lanes = Lanes()

    await ask(batcher(lanes, budget=50), request(["a", "b"], [500, 10]), FAR)

    assert [works for _, works, _ in lanes.batches] == [["b"], ["a"]]


async def test_requests_that_wait_share_a_batch() -> None:
    """What arrives while the lane is busy runs together."""
    lanes = Lanes(held=True)
    queue = batcher(lanes)
    waiting = [asyncio.create_task(ask(queue, request([work], [10]), FAR)) for work in "abcd"]
    await settle()

    lanes.gate.set()
    await asyncio.gather(*waiting)

    assert [works for _, works, _ in lanes.batches] == [["a"], ["b", "c", "d"]]


async def test_a_small_request_passes_a_flood_of_large_ones() -> None:
    """Its turn comes before work that would take longer, in a batch that stays small."""
    lanes = Lanes(held=True)
    queue = batcher(lanes, budget=1000)
    flood = [asyncio.create_task(ask(queue, request(["L"] * 9, [300] * 9), FAR)) for _ in range(3)]
    await settle()
    small = asyncio.create_task(ask(queue, request(["s"], [10]), FAR))
    await settle()

    lanes.gate.set()
    await asyncio.gather(small, *flood)

    assert lanes.batches[1][1] == ["s"]


async def test_a_small_request_passes_large_ones_however_long_they_have_waited() -> None:
    """Work that came first has no claim on more than its share."""
    lanes = Lanes()
    queue = batcher(lanes, budget=100, most_tokens=99_999)
    flood = [
        asyncio.create_task(ask(queue, request(["L"] * 50, [100] * 50), FAR)) for _ in range(4)
    ]
    while len(lanes.batches) < 60:
        await asyncio.sleep(0)
    begun = len(lanes.batches)

    await ask(queue, request(["s"], [10]), FAR)

    assert ["s"] in [works for _, works, _ in lanes.batches[begun : begun + 2]]
    await asyncio.gather(*flood)


async def test_a_small_request_passes_the_last_of_large_ones_that_came_together() -> None:
    """The one served last has had its share of the machine all the same, and no more."""
    lanes = Lanes()
    queue = batcher(lanes, budget=100)
    large = [asyncio.create_task(ask(queue, request([n] * 10, [100] * 10), FAR)) for n in "123"]
    while sum(works == ["3"] for _, works, _ in lanes.batches) < 7:
        await asyncio.sleep(0)
    small = asyncio.create_task(ask(queue, request(["small"], [10]), FAR))
    await asyncio.gather(small, *large)

    assert lanes.batches[-1] == (0, ["3"], 1)


async def test_a_small_request_passes_a_large_one_whose_equal_gave_up() -> None:
    """Though that one was first and had most of its work done."""
    lanes = Lanes()
    queue = batcher(lanes, budget=100)
    first, second = (
        asyncio.create_task(ask(queue, request([n] * 20, [100] * 20), FAR)) for n in ("1", "2")
    )
    while sum(works == ["1"] for _, works, _ in lanes.batches) < 17:
        await asyncio.sleep(0)
    first.cancel()
    while sum(works == ["2"] for _, works, _ in lanes.batches) < 12:
        await asyncio.sleep(0)
    small = asyncio.create_task(ask(queue, request(["small"], [10]), FAR))
    await asyncio.gather(small, second)

    works = [works for _, works, _ in lanes.batches]
    assert works.index(["small"]) < len(works) - 4


async def test_small_requests_that_keep_coming_do_not_starve_a_large_one() -> None:
    """Some may pass it, and then as many as it has had itself."""
    lanes = Lanes()
    queue = batcher(lanes, budget=100)
    large = asyncio.create_task(ask(queue, request(["L"] * 5, [100] * 5), FAR))

    async def stream() -> None:
        while not large.done() and len(lanes.batches) < 999:
            await ask(queue, request(["s"], [90]), FAR)

    await asyncio.gather(stream(), stream())

    assert large.done()
    assert 90 * len(lanes.batches) < OVERTAKING_TOKENS + 2 * 500 + 3 * 90


async def test_a_lone_sequence_gets_every_core() -> None:
    """Idle lanes lend their cores to the only work there is, and it runs in lane 0."""
    lanes = Lanes()

    await ask(batcher(lanes, count=3), request(["a"], [10]), FAR)

    assert lanes.batches == [(0, ["a"], 3)]


@pytest.mark.parametrize(
    ("tokens", "count", "cores"),
    [(SMALL_TOKENS, 2, 1), (SMALL_TOKENS + 1, 2, 2), (SMALL_TOKENS, 3, 3)],
)
async def test_a_short_sequence_that_waited_leaves_its_company_one_of_two_cores(
    tokens: int, count: int, cores: int
) -> None:
    """Who was answered meanwhile asks again at once, and need not wait for all cores."""
    lanes = Lanes(held=True)
    queue = batcher(lanes, count=count)
    asking = [asyncio.create_task(ask(queue, request(["a"], [10]), FAR))]
    await settle()
    asking.append(asyncio.create_task(ask(queue, request(["b"], [tokens]), FAR)))
    await settle()

    lanes.gate.set()
    await asyncio.gather(*asking)

    assert [(works, threads) for _, works, threads in lanes.batches] == [
        (["a"], count),
        (["b"], cores),
    ]


class Held:
    """Lanes each of whose batches ends when it is told to, by its first work."""

    def __init__(self) -> None:
        self.batches: list[str] = []
        self._ends: dict[str, asyncio.Event] = {}

    async def launch(self, lane: int, works: Sequence[Work], threads: int) -> Sequence[str]:
        names = "".join(work.name for work in works)
        self.batches.append(names)
        self._ends[names[0]] = asyncio.Event()
        await self._ends[names[0]].wait()
        return names

    async def end(self, first: str) -> None:
        self._ends[first].set()
        await settle()


class Asking:
    """Three whose short requests were answered together by one lane; the others still run."""

    later = 0.0  # seconds that the batcher's clock is ahead

    def __init__(self, held: Held, count: int) -> None:
        self._queue = batcher(held.launch, count=count, clock=lambda: time.monotonic() + self.later)
        self._tasks = list[asyncio.Task[Any]]()
        self._held, self._lanes = held, "123"[:count]

    async def ask(self, name: str, tokens: int = 10, seconds: float = FAR) -> None:
        """One more request, of works with these names, to be answered in so many seconds."""
        works = request(name, [tokens] * len(name))
        deadline = time.monotonic() + seconds
        self._tasks.append(asyncio.create_task(ask(self._queue, works, deadline)))
        await settle()

    async def __aenter__(self) -> "Asking":
        await self.ask(self._lanes, 200)
        for name in "abc":
            await self.ask(name)
        await self._held.end("1")
        await self._held.end("a")
        assert sorted(self._held.batches) == [*self._lanes, "abc"]
        return self

    async def __aexit__(self, *error: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.wait(self._tasks)


@pytest.fixture
def held(monkeypatch: pytest.MonkeyPatch) -> Held:
    """Lanes that are told when to end, and company that is waited for without end."""
    monkeypatch.setattr("service.engine.batcher.COMPANY_WAIT_SECONDS", 60)
    return Held()


async def test_a_few_short_ones_wait_for_company(held: Held) -> None:
    """Those who were answered together come back one by one, and are computed together again."""
    async with Asking(held, 2) as asking:
        await asking.ask("d")
        await asking.ask("e")
        alone = held.batches[3:]

        await asking.ask("f")

    assert alone == [] and held.batches[3:] == ["def"]


async def test_company_that_does_not_come_is_not_waited_for(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that came meanwhile start without it."""
    monkeypatch.setattr("service.engine.batcher.COMPANY_WAIT_SECONDS", 0.001)
    async with Asking(held, 2) as asking:
        await asking.ask("d")

        async with asyncio.timeout(5):
            while len(held.batches) == 3:
                await asyncio.sleep(0.001)

    assert held.batches[3:] == ["d"]


async def test_a_request_waits_for_company_only_so_long_though_more_is_expected(held: Held) -> None:
    """Those that came meanwhile start with it."""
    async with Asking(held, 2) as asking:
        await asking.ask("d")
        asking.later = 60.0
        await asking.ask("e")

    assert held.batches[3:] == ["de"]


async def test_nobody_waits_for_company_where_nothing_runs(held: Held) -> None:
    """Who waited for it starts as the other lane ends."""
    async with Asking(held, 2) as asking:
        await asking.ask("d")
        await held.end("2")
        assert held.batches[3:] == ["d"]


@pytest.mark.parametrize(("count", "tokens"), [(3, 10), (2, SMALL_TOKENS + 1)])
async def test_neither_more_lanes_nor_long_ones_wait_for_company(
    count: int, tokens: int, held: Held
) -> None:
    """Its effect there was not measured; a long one fills a batch by itself."""
    async with Asking(held, count) as asking:
        await asking.ask("d", tokens)

    assert held.batches[count + 1 :] == ["d"]


async def test_whoever_is_in_a_hurry_waits_for_no_company(
    held: Held, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Those that waited with it start with it."""
    monkeypatch.setattr("service.engine.batcher.HURRY_SECONDS", 100)
    async with Asking(held, 2) as asking:
        await asking.ask("d")
        await asking.ask("e", seconds=90)

    assert held.batches[3:] == ["de"]


async def test_a_lone_sequence_gets_one_core_while_more_are_slower() -> None:
    """A neighbour makes the cores wait for each other; when it goes, they are used again."""
    now, slow, threads_seen = 0.0, True, []

    async def launch(lane: int, works: Sequence[Work], threads: int) -> Sequence[str | Exception]:
        nonlocal now
        threads_seen.append(threads)
        now += (10.0 if slow else 0.5) if threads == 2 else 1.0
        return [work.name for work in works]

    queue = batcher(launch, count=2, budget=100, clock=lambda: now)

    for _ in range(5 * PROBE_EVERY):
        await ask(queue, request(["a"], [10]), FAR)
    busy, slow = threads_seen[2 * PROBE_EVERY :], False
    for _ in range(6 * DOUBTFUL_PROBES):
        await ask(queue, request(["a"], [10]), FAR)

    assert busy.count(1) > 6 * busy.count(2) > 0
    assert threads_seen[-DOUBTFUL_PROBES:].count(2) >= DOUBTFUL_PROBES - 1


async def test_what_ran_beside_others_says_nothing_of_a_lone_ones_cores() -> None:
    """Each of two takes one core, and is as fast as it likes; the next lone one gets all."""
    now, threads_seen = 0.0, []

    async def launch(lane: int, works: Sequence[Work], threads: int) -> Sequence[str | Exception]:
        nonlocal now
        threads_seen.append(threads)
        now += 1.0 if threads == 2 else 0.001
        return [work.name for work in works]

    queue = batcher(launch, count=2, budget=100, clock=lambda: now)

    for names in ("a", "bc", "d"):
        await ask(queue, request(list(names), [10] * len(names)), FAR)

    assert threads_seen == [2, 1, 1, 2]


async def test_several_sequences_are_shared_among_the_lanes() -> None:
    """Every idle lane takes its share, on one core."""
    lanes = Lanes()

    await ask(batcher(lanes, count=2), request(list("abcd"), [10] * 4), FAR)

    assert sorted(lanes.batches) == [(0, ["d", "c"], 1), (1, ["b", "a"], 1)]


async def test_a_request_is_refused_whole_when_it_would_be_late() -> None:
    """Tokens waiting and its own over the speed must stay below the time left."""
    lanes = Lanes(held=True)
    queue = batcher(lanes)
    now = asyncio.get_running_loop().time()

    with pytest.raises(Refused, match="overloaded"):
        await ask(queue, request(["a", "b"], [600, 600]), now + 1)

    assert lanes.batches == [] and queue.waiting_requests == 0 and queue.waiting_tokens == 0


async def test_attention_makes_a_long_sequence_late_where_as_many_short_tokens_are_not() -> None:
    """Its cost counts: in what waits before others, too, until it is done."""
    lanes = Lanes(held=True)

    def costs(works: Sequence[Work]) -> list[float]:
        return [len(work) ** 2 / 100 for work in works]

    queue = batcher(lanes, costs=costs, clock=lambda: 0.0)
    running = asyncio.create_task(ask(queue, request(["a"], [100]), 1.0))
    await settle()
    waiting = asyncio.create_task(ask(queue, request(["b"], [700]), FAR))  # takes 4.9 s
    await settle()

    seconds = (5.1 + 0.1) / SURE_SHARE  # 0.1 of them for what runs
    check(queue, 100, seconds)
    with pytest.raises(Refused, match="overloaded") as refused:
        check(queue, 150, seconds)
    lanes.gate.set()
    await asyncio.gather(running, waiting)

    assert refused.value.bound == "deadline" and refused.value.retry_after == 5
    check(queue, 700, 5.0)


async def test_what_runs_counts_until_it_should_be_done() -> None:
    """And of the time that is left, with others before it, a request may plan with a part."""
    lanes, now = Lanes(held=True), 0.0
    queue = batcher(lanes, budget=1000, clock=lambda: now)
    running = asyncio.create_task(ask(queue, request(["a"], [500]), FAR))
    await settle()

    for elapsed, tokens in ((0.0, 299), (0.4, 699), (0.5, 799), (9.0, 799)):
        now = elapsed
        check(queue, tokens, now + 0.8 / SURE_SHARE)
        with pytest.raises(Refused, match="overloaded"):
            check(queue, tokens + 2, now + 0.8 / SURE_SHARE)
    lanes.gate.set()
    await running


async def test_what_can_no_longer_be_done_in_time_gives_way_to_what_can() -> None:
    """Neither what has begun nor what has not is run in vain; with none behind it, it may try."""
    lanes, now = Lanes(held=True), 0.0
    queue = batcher(lanes, budget=500, clock=lambda: now)
    first = asyncio.create_task(ask(queue, request(["a"], [500]), FAR))
    await settle()
    late = asyncio.create_task(ask(queue, request(["b"], [500]), 1.3))
    other = asyncio.create_task(ask(queue, request(["c"], [300]), 1.9))
    await settle()
    now = 0.9
    lanes.gate.set()
    with pytest.raises(Refused, match="deadline_exceeded"):
        await late
    await asyncio.gather(first, other)
    alone = asyncio.create_task(queue.submit(request(["d"], [500]), 1.2))
    await alone

    assert [names for _, names, _ in lanes.batches] == [["a"], ["c"], ["d"]]


async def test_a_request_whose_deadline_has_passed_is_not_called_an_overload() -> None:
    """Coming again would not help it."""
    with pytest.raises(Refused, match="deadline_exceeded"):
        await ask(batcher(Lanes()), request(["a"], [1]), asyncio.get_running_loop().time())


async def test_what_a_request_takes_at_best_does_not_rise_when_the_machine_is_slow() -> None:
    """The best speed stands, also when the one lately measured has fallen."""
    now, seconds = 0.0, 0.1

    async def launch(lane: int, works: Sequence[Work], threads: int) -> Sequence[str | Exception]:
        nonlocal now
        now += seconds
        return [work.name for work in works]

    queue = batcher(launch, clock=lambda: now)
    for _ in range(3000):
        await ask(queue, request(["a"], [500]), FAR)
    best = queue.fewest_seconds(500)
    seconds = 10.0
    while queue.speed > 100:
        await ask(queue, request(["a"], [500]), FAR)

    assert best == pytest.approx(0.1, rel=0.1)
    assert queue.fewest_seconds(500) == best


async def test_a_batch_hangs_when_it_takes_several_times_what_its_tokens_should() -> None:
    """A long one may take long; a short one has the least."""
    lanes, now = Lanes(held=True), 0.0
    queue = batcher(lanes, budget=10, most_tokens=99_999, clock=lambda: now)
    idle = queue.is_hanging(10, 4)
    running = asyncio.create_task(ask(queue, request(["a"], [20_000]), FAR))
    await settle()
    found = {}
    for now in (0.0, 11.0, 79.0, 81.0):
        found[now] = queue.is_hanging(10, 4)
    lanes.gate.set()
    await running
    lanes.gate.clear()
    short = asyncio.create_task(ask(queue, request(["a"], [20]), FAR))
    await settle()
    began = now
    for now in (began, began + 9, began + 11):
        found[now] = queue.is_hanging(10, 4)
    lanes.gate.set()
    await short

    assert not idle and list(found.values()) == [False, False, False, False, False, True]


@pytest.mark.parametrize(
    ("share", "hangs"),
    [(0.0, True), (0.0002, True), (0.01, False), (0.2, False), (0.9, True)],
    ids=["blocked", "looks now and then", "one of a hundred", "one of five", "without end"],
)
async def test_a_batch_that_other_processes_keep_from_the_cores_does_not_hang(
    share: float, hangs: bool
) -> None:
    """By what its thread got of a core; one that is blocked later is found all the same."""
    lanes, now, spent = Lanes(held=True), 0.0, 0.0
    queue = batcher(lanes, clock=lambda: now, processor_seconds=lambda lane: spent)
    running = asyncio.create_task(ask(queue, request(["a"], [20]), FAR))
    await settle()
    found = list[bool]()
    for now in range(0, 60, 2):
        spent = share * now
        found.append(queue.is_hanging(10, 4))
    blocked = list[bool]()
    for now in (80, 91, 102):  # noqa: B007  # the clock
        blocked.append(queue.is_hanging(10, 4))
    lanes.gate.set()
    await running

    assert found[:6] == [False] * 6 and any(found) == hangs
    assert blocked[-1]


async def test_a_full_queue_refuses_and_says_when_to_come_back() -> None:
    """The time given is that of the work that waits."""
    lanes = Lanes(held=True)
    queue = batcher(lanes, most_requests=2)
    waiting = [asyncio.create_task(ask(queue, request(["a"], [500]), FAR)) for _ in range(3)]
    await settle()

    with pytest.raises(Refused, match="overloaded") as refused:
        await ask(queue, request(["b"], [1]), FAR)

    assert refused.value.bound == "queue_full"
    assert refused.value.retry_after == 2
    lanes.gate.set()
    await asyncio.gather(*waiting)


async def test_the_queue_is_bounded_in_tokens() -> None:
    """Few huge requests fill it as well as many small ones."""
    lanes = Lanes(held=True)
    queue = batcher(lanes, most_tokens=1000)
    waiting = [asyncio.create_task(ask(queue, request(["a"], [800]), FAR)) for _ in range(2)]
    await settle()

    with pytest.raises(Refused, match="overloaded"):
        await ask(queue, request(["b"], [300]), FAR)

    lanes.gate.set()
    await asyncio.gather(*waiting)


async def test_work_whose_deadline_passed_in_the_queue_is_never_run() -> None:
    """It fails when its turn comes, and the lane does something useful instead."""
    lanes, now = Lanes(held=True), 0.0
    queue = batcher(lanes, budget=10, clock=lambda: now)
    first = asyncio.create_task(ask(queue, request(["a"], [10]), FAR))
    late = asyncio.create_task(ask(queue, request(["late"], [10]), 1.0))
    await settle()

    now = 2.0
    lanes.gate.set()

    await first
    with pytest.raises(Refused, match="deadline_exceeded"):
        await late
    assert [works for _, works, _ in lanes.batches] == [["a"]]


async def test_work_of_a_client_that_left_is_never_run() -> None:
    """A cancelled request gives its place back at once."""
    lanes = Lanes(held=True)
    queue = batcher(lanes)
    first = asyncio.create_task(ask(queue, request(["a"], [10]), FAR))
    gone = asyncio.create_task(ask(queue, request(["gone"], [10]), FAR))
    await settle()

    gone.cancel()
    with suppress(asyncio.CancelledError):
        await gone
    waiting = queue.waiting_requests, queue.waiting_tokens
    lanes.gate.set()
    await first

    assert waiting == (0, 0)
    assert [works for _, works, _ in lanes.batches] == [["a"]]


async def test_one_bad_sequence_fails_its_own_request_alone() -> None:
    """The others of its batch are answered."""
    lanes = Lanes(held=True)
    queue = batcher(lanes)
    tasks = [
        asyncio.create_task(ask(queue, request([work], [10]), FAR)) for work in ("a", "bad", "c")
    ]
    await settle()
    lanes.gate.set()

    answers = await asyncio.gather(*tasks, return_exceptions=True)

    assert answers[0][0] == ["A"] and answers[2][0] == ["C"]  # type: ignore[index]
    assert isinstance(answers[1], ValueError)


async def test_a_lane_that_breaks_fails_its_batch_and_the_queue_goes_on() -> None:
    """Nothing a lane does can leave later requests waiting for ever."""
    broken = True

    async def launch(lane: int, works: Sequence[Work], threads: int) -> Sequence[str | Exception]:
        if broken:
            raise OSError("no lane")
        return [work.name for work in works]

    queue = batcher(launch)
    with pytest.raises(OSError, match="no lane"):
        await ask(queue, request(["a"], [1]), FAR)

    broken = False

    assert (await ask(queue, request(["b"], [1]), FAR))[0] == ["b"]


async def test_draining_ends_when_nothing_waits_and_nothing_runs() -> None:
    """Admitted work is finished first."""
    lanes = Lanes(held=True)
    queue = batcher(lanes, budget=10)
    admitted = [asyncio.create_task(ask(queue, request([work], [10]), FAR)) for work in "abc"]
    await settle()
    drained = asyncio.create_task(queue.drain())
    await settle()
    early = drained.done()

    lanes.gate.set()
    await drained

    assert not early
    assert [task.result()[0] for task in admitted] == [["A"], ["B"], ["C"]]


async def test_the_speed_follows_what_batches_take() -> None:
    """Slow ones lower the speed that admission believes in, and small ones say nothing of it."""
    now = 0.0

    async def launch(lane: int, works: Sequence[Work], threads: int) -> Sequence[str | Exception]:
        nonlocal now
        now += 1.0
        return [work.name for work in works]

    queue = batcher(launch, speed=10_000.0, clock=lambda: now)

    for _ in range(60):
        await ask(queue, request(["a"], [500]), FAR)

    slow = queue.speed
    for _ in range(60):
        await ask(queue, request(["a"], [5]), FAR)

    assert slow == queue.speed == pytest.approx(500, rel=0.05)


async def waiting(queue: Batcher[Work, str], key: str, *tokens: int) -> list[asyncio.Task[object]]:
    """Requests of a key, each of so many tokens; they have reached the queue."""
    works = (request([key], [n]) for n in tokens)
    tasks = [asyncio.create_task(ask(queue, each, FAR, key)) for each in works]
    await settle()
    return tasks


async def refusals(tasks: Sequence[asyncio.Task[object]]) -> list[str]:
    """What each request was refused for, or an empty text."""
    done = await asyncio.gather(*tasks, return_exceptions=True)
    return [(error.bound or "") if isinstance(error, Refused) else "" for error in done]


def shared(lanes: Lanes, **more: int) -> Batcher[Work, str]:
    """A batcher for two keys, whose lane is busy."""
    limits = {"a": Limits(), "b": Limits()}
    return batcher(lanes, limits=limits, **more)  # type: ignore[arg-type]


async def test_a_key_alone_leaves_room_in_the_queue_to_another() -> None:
    """It has two thirds of the places, or of the tokens, however much it asks for."""
    for most, each, own in (({"most_requests": 9}, 10, 6), ({"most_tokens": 900}, 100, 600 // 100)):
        lanes = Lanes(held=True)
        queue = shared(lanes, budget=each, **most)
        theirs = await waiting(queue, "a", *[each] * 20)
        assert queue.waiting_requests == own

        with pytest.raises(Refused, match="overloaded") as refused:
            check(queue, each, FAR, "a")
        others = await waiting(queue, "b", each, each)
        lanes.gate.set()

        assert refused.value.bound == "share" and await refusals(others) == ["", ""]
        assert await refusals(theirs) == [""] * (1 + own) + ["share"] * (19 - own)


async def test_without_other_keys_there_is_no_room_to_leave() -> None:
    """Whether there is one key, or none, or the service asks itself."""
    for limits, key in (({"a": Limits()}, "a"), ({}, ""), ({"a": Limits(), "b": Limits()}, "")):
        lanes = Lanes(held=True)
        queue = batcher(lanes, most_requests=9, budget=10, limits=limits)
        theirs = await waiting(queue, key, *[10] * 11)
        lanes.gate.set()

        assert await refusals(theirs) == [""] * 10 + ["queue_full"]


async def test_a_key_with_most_of_what_waits_is_refused_for_its_share() -> None:
    """Of time as of room; another is refused for want of it."""
    lanes = Lanes(held=True)
    queue = shared(lanes, most_requests=9, budget=100)
    tasks = await waiting(queue, "a", 100, 30, 50, 40, 40)
    tasks += await waiting(queue, "b", *[10] * 2)
    soon = asyncio.get_running_loop().time() + 0.001

    bounds = list[str | None]()
    for deadline, key in ((soon, "a"), (soon, "b"), (FAR, "a"), (FAR, "b")):
        with pytest.raises(Refused, match="overloaded") as refused:
            check(queue, 10, deadline, key)
            tasks += await waiting(queue, key, 10)
            check(queue, 10, deadline, key)
        bounds.append(refused.value.bound)
    lanes.gate.set()
    await asyncio.gather(*tasks)

    assert bounds == ["share", "deadline", "share", "queue_full"]


async def test_a_key_leaves_a_lane_to_another_that_has_asked_lately() -> None:
    """What it sends goes on in the other lane; what the other sends finds one, without company."""
    lanes, now = Lanes(held=True), [0.0]
    queue = batcher(
        lanes, count=2, limits={"a": Limits(), "b": Limits()}, clock=lambda: now[0], small=5
    )
    tasks = await waiting(queue, "b", 10)
    lanes.gate.set()
    await asyncio.gather(*tasks)
    lanes.gate.clear()
    large = request(["a"] * 3, [100] * 3)
    tasks = [asyncio.create_task(ask(queue, large, FAR, "a"))]
    tasks += await waiting(queue, "a", 100)
    running = [works for _, works, _ in lanes.batches[1:]]
    tasks += await waiting(queue, "b", 10)

    assert running == [["a"]]
    assert lanes.batches[2:] == [(1, ["b"], 1)] and queue.waiting_requests == 2
    lanes.gate.set()
    await asyncio.gather(*tasks)
    lanes.gate.clear()
    now[0] += LATELY_SECONDS
    tasks = [asyncio.create_task(ask(queue, large, FAR, "a"))]
    await settle()
    assert queue.waiting_requests == 0
    lanes.gate.set()
    await asyncio.gather(*tasks)


async def test_a_keys_wait_is_its_own_work_as_often_as_keys_wait() -> None:
    """A flood costs a key no more than any other company."""
    lanes, now = Lanes(held=True), asyncio.get_running_loop().time()
    queue = shared(lanes)
    (first,) = await waiting(queue, "a", 10)
    theirs = [first, *await waiting(queue, "a", 3000, 2000)]  # five seconds of work
    others = await waiting(queue, "b", 400)

    check(queue, 100, now + 1.1 / SURE_SHARE, "b")
    for key, tokens, seconds, retry in (("b", 100, 0.9, 1), ("a", 1, 5.3, 6)):
        with pytest.raises(Refused, match="overloaded") as late:
            check(queue, tokens, now + seconds, key)
        assert late.value.bound == {"a": "share", "b": "deadline"}[key]
        assert late.value.retry_after == retry
    lanes.gate.set()
    await asyncio.gather(*theirs, *others)


@pytest.mark.parametrize(
    ("limits", "bound"),
    [(Limits(requests=2), "key_requests"), (Limits(tokens=250), "key_tokens")],
    ids=["requests", "tokens"],
)
async def test_a_key_may_not_use_more_than_its_limits(limits: Limits, bound: str) -> None:
    """Though there is room; who has none, and the service's own work, may."""
    lanes = Lanes(held=True)
    queue = batcher(lanes, limits={"a": limits})
    tasks = await waiting(queue, "a", 110, 100, 100)

    with pytest.raises(Refused, match="overloaded") as refused:
        check(queue, 100, FAR, "a")
    check(queue, 100, FAR)
    lanes.gate.set()
    await asyncio.gather(*tasks)

    assert (refused.value.bound, refused.value.retry_after) == (bound, 1)


@pytest.mark.parametrize(("small", "sizes"), [(128, [1, 51, 9]), (331, [1, 60])])
async def test_a_short_request_shares_a_batch_as_large_as_costs_little(
    small: int, sizes: list[int]
) -> None:
    """On a GPU a pass of one token takes as long as one of hundreds."""
    lanes = Lanes(held=True)
    queue = batcher(lanes, small=small)

    asked = [asyncio.create_task(ask(queue, request([f"{i}"], [5]), FAR)) for i in range(61)]
    await settle()
    lanes.gate.set()
    await asyncio.gather(*asked)

    assert [len(works) for _, works, _ in lanes.batches] == sizes


async def test_a_batch_that_takes_as_long_whatever_it_holds_says_nothing_of_the_speed() -> None:
    """Below what the device does in its shortest pass."""
    lanes = Lanes()
    queue = batcher(lanes, small=331)

    await ask(queue, request(["a"], [330]), FAR)
    assert queue.speed == 1000
    await ask(queue, request(["a"], [331]), FAR)
    assert queue.speed > 1000
