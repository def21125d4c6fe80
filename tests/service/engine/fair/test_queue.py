"""The evenly shared machine, compared with one that is simulated a token at a time."""

import asyncio
import math
import random
from collections import Counter
from collections.abc import Sequence

import pytest

from service.engine.batcher import Batcher
from service.engine.fair.line import Batch, Job, Shares
from service.engine.fair.queue import Overloaded, Queue
from service.keys import Limits


def waiting(shares: Shares) -> float:
    """Tokens that wait here: what waits there, and what is done there alone."""
    return sum(turn - shares._now for turn in shares._turns) + shares._ahead


@pytest.mark.parametrize("seed", range(5))
def test_requests_would_be_done_when_a_machine_that_serves_each_in_turn_is_done(seed: int) -> None:
    """In the same order, whenever each arrives; work is done here in any order."""
    chance, shares = random.Random(seed), Shares()
    turns: dict[int, float] = {}
    left: dict[int, float] = {}
    done: list[int] = []
    for step in range(4000):
        if chance.random() < 0.02:
            tokens = chance.choice([7, 80, 900])
            turns[step], left[step] = shares.enter(tokens), tokens
        if left:
            shares.serve(1)
            left = {name: tokens - 1 / len(left) for name, tokens in left.items()}
            done += sorted(name for name, tokens in left.items() if tokens < 1e-6)
            left = {name: tokens for name, tokens in left.items() if tokens >= 1e-6}

    assert len(done) > 10
    late = [turns[a] - turns[b] for a, b in zip(done, done[1:], strict=False)]
    assert max(late) <= 1  # of two that are done within a token, either may be named first


def test_who_gives_up_leaves_the_others_what_was_theirs() -> None:
    """Done here was all of the first's and none of the second's; even shares were half of each."""
    shares = Shares()
    first, _ = shares.enter(100), shares.enter(100)
    shares.serve(60)
    shares.leave(first, 40)

    assert waiting(shares) == 100
    shares.serve(99)
    assert shares.enter(5) < shares.enter(10) and waiting(shares) == pytest.approx(1 + 15)


@pytest.mark.parametrize("seed", range(5))
async def test_as_much_waits_there_as_here_whoever_leaves(seed: int) -> None:
    """Behind a real queue: cancelled while they wait, while part of them is done, or not at all."""
    chance, gate = random.Random(seed), asyncio.Semaphore(0)

    async def launch(lane: int, works: Sequence[str], threads: int) -> Sequence[str]:
        await gate.acquire()
        return works

    queue = Batcher[str, str](
        launch, lanes=1, budget=200, speed=1e6, most_requests=100, most_tokens=10**6
    )
    asked: list[asyncio.Task[object]] = []
    for _ in range(400):
        if chance.random() < 0.3:
            size, count = chance.choice([10, 100]), chance.choice([1, 3, 20])
            asked.append(asyncio.create_task(queue.submit(["a" * size] * count, 1e9)))
        if asked and chance.random() < 0.15:
            asked.pop(chance.randrange(len(asked))).cancel()
        if queue.busy and chance.random() < 0.8:
            gate.release()
        for _ in range(5):
            await asyncio.sleep(0)
        assert waiting(queue._queue._lines[""]._shares) == pytest.approx(
            queue.waiting_tokens, abs=1e-6
        )

    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    gate.release()
    await queue.drain()


BATCH, LARGEST = 100, 400
SIZES = {"a": (10, 10, 80, LARGEST), "b": (10, 10, 70), "c": (10, 30)}  # tokens, by key


class Machine:
    """Shared evenly among the keys that wait, and each key's share among its requests."""

    def __init__(self) -> None:
        self.left: dict[Job[str, str], float] = {}
        self.done: dict[Job[str, str], int] = {}

    def step(self, now: int) -> None:
        """One token's work."""
        mates = Counter(job.key for job in self.left)
        self.left = {
            job: tokens - 1 / len(mates) / mates[job.key] for job, tokens in self.left.items()
        }
        self.done |= {job: now + 1 for job, tokens in self.left.items() if tokens < 1e-6}
        self.left = {job: tokens for job, tokens in self.left.items() if tokens >= 1e-6}


def job(key: str, tokens: int, now: float = 0.0) -> Job[str, str]:
    """A request of so many tokens, in works of ten."""
    future = asyncio.get_running_loop().create_future()
    count = tokens // 10
    return Job(["a" * 10] * count, [10.0] * count, 1e9, now, future, key)


@pytest.mark.parametrize("cancelled", [0.0, 0.005])
@pytest.mark.parametrize("seed", range(5))
async def test_no_key_makes_anothers_requests_late(seed: int, cancelled: float) -> None:
    """One asks for all, at any time, and some give up: the others have what they would have had.

    A batch is waited for when a request comes, and another has to end before it is answered; a
    key that had much at once, and so early, waits for that itself.
    """
    chance, machine = random.Random(seed), Machine()
    queue = Queue[str, str](10**6, 10**9, dict.fromkeys(SIZES, Limits()))
    here: dict[Job[str, str], int] = {}
    batch: Batch[str, str] = Batch()
    until = 0
    for now in range(12_000):
        if chance.random() < 0.006 and now < 8000:
            key = chance.choice("abbbcc")
            for _ in range(9 if key == "a" else 1):
                new = job(key, chance.choice(SIZES[key]), now)
                queue.enter(new)
                machine.left[new] = new.tokens
        if machine.left and chance.random() < cancelled:
            gone = chance.choice(list(machine.left))
            queue.leave(gone)
            del machine.left[gone]
        if now >= until:
            here |= {done: now for done, _ in batch if not done.waiting}
            batch = queue.take(BATCH, now) if len(queue) else Batch()
            until = now + batch.tokens
        machine.step(now)

    late = {key: [-BATCH] for key in SIZES}
    for done, then in machine.done.items():
        late[done.key].append(here[done] - then)
    assert len(machine.done) > 40 and len(queue) == 0
    assert max(late["b"] + late["c"]) <= 2 * BATCH + 10
    assert max(late["a"]) <= 2 * BATCH + LARGEST


@pytest.mark.parametrize("seed", range(5))
async def test_keys_that_always_wait_have_had_the_same(seed: int) -> None:
    """However many requests each has, of whatever size, and whichever gives up."""
    chance, had = random.Random(seed), Counter[str]()
    queue = Queue[str, str](10**6, 10**9, dict.fromkeys(SIZES, Limits()))
    for _ in range(500):
        for key, most in (("a", 40), ("b", 13), ("c", 11)):
            while sum(each.key == key for each in queue.jobs) < most:
                queue.enter(job(key, chance.choice(SIZES[key])))
        if chance.random() < 0.3:
            queue.leave(chance.choice(queue.jobs))
        for each, _ in queue.take(BATCH, 0.0):
            had[each.key] += 10
        assert max(had.values()) - min(had[key] for key in SIZES) <= LARGEST + BATCH


async def test_what_a_key_did_not_ask_for_it_has_no_claim_on() -> None:
    """One that was away does not go before those that have waited since; nor after them."""
    queue = Queue[str, str](100, 10**6, dict.fromkeys("ab", Limits()))
    for _ in range(20):
        queue.enter(job("a", 100))
    for _ in range(10):
        queue.take(BATCH, 0.0)
    for _ in range(20):
        queue.enter(job("b", 100))

    batches = [queue.take(BATCH, 0.0) for _ in range(10)]

    assert Counter(batch[0][0].key for batch in batches) == {"a": 5, "b": 5}


async def test_a_request_of_which_nothing_fitted_has_not_begun() -> None:
    """It has waited since, and its place may still be another key's."""
    queue = Queue[str, str](100, 30, dict.fromkeys("ab", Limits()))
    future = asyncio.get_running_loop().create_future()
    short, long = (Job([text], [len(text)], 1e9, 0.0, future, "a") for text in ("a", "a" * 20))
    queue.enter(short)
    queue.enter(long)

    assert queue.take(15, 7.0) == [(short, 0)]
    assert (short.started, long.started) == (7.0, math.inf)
    assert queue.check(15, 15, 1.0, 1e6, "b", 7.0) == [long]


async def test_other_limits_hold_what_comes_and_leave_what_waits() -> None:
    """In its order; a name that goes is served what it has waiting, one that stays owes on."""
    queue = Queue[str, str](100, 10_000, {"a": Limits(requests=2, rate=10), "b": Limits()})
    waits = [job("a", 50), job("b", 30), job("a", 20)]
    for one in waits:
        queue.enter(one)
    assert bound(queue, "a") == "key_requests"

    queue.set_limits({"a": Limits(requests=3, rate=20), "c": Limits(tokens=5)}, 0.0)
    assert bound(queue, "a") == "key_rate"  # 60 of 70 are owed, now paid 20 a second
    assert owed(queue, 1.0) == 2.0 and bound(queue, "c") is None
    queue.set_limits({"a": Limits(requests=3, rate=60), "c": Limits(tokens=5)}, 2.0)
    assert owed(queue, 2.0) == pytest.approx(20 / 60)  # of two seconds at 20
    queue.set_limits({"a": Limits(requests=2), "c": Limits(tokens=5)}, 2.0)
    assert bound(queue, "a") == "key_requests"
    queue.leave(waits[2])
    assert bound(queue, "a") is None
    batch = {id(one) for one, _ in queue.take(100, 0.0)}

    assert batch == {id(one) for one in waits[:2]}
    assert len(queue) == 0 and queue.tokens == 0
    queue.set_limits({"a": Limits(), "c": Limits()}, 0.0)
    assert queue._lines.keys() == {"", "a", "c"}


async def test_a_key_that_is_left_alone_without_limits_has_none() -> None:
    """Though a request of it waits from the time when it had some."""
    queue = Queue[str, str](100, 10_000, {"a": Limits(requests=1, rate=10), "b": Limits()})
    queue.enter(job("a", 1_000))
    assert bound(queue, "a") == "key_requests"

    queue.set_limits({"a": Limits()}, 1.0)

    assert bound(queue, "a") is None


async def test_leaving_gives_back_no_tokens_that_no_limit_has_taken() -> None:
    """Of a request that came before its key had a rate."""
    queue = Queue[str, str](100, 100_000, {"a": Limits(), "b": Limits()})
    before = job("a", 10_000)
    queue.enter(before)
    queue.set_limits({"a": Limits(rate=10), "b": Limits()}, 0.0)
    queue.enter(job("a", 20_000))
    seconds = owed(queue, 0.0)

    queue.leave(before)

    assert seconds > 0 and owed(queue, 0.0) == seconds


async def test_a_key_that_was_alone_keeps_what_waits_when_others_come() -> None:
    """And gives up what its client leaves, though it has a line of its own by now."""
    queue = Queue[str, str](100, 10_000, {"a": Limits()})
    first, second = job("a", 50), job("a", 20)
    queue.enter(first)
    queue.set_limits({"a": Limits(), "b": Limits()}, 0.0)
    queue.enter(second)
    assert len(queue) == 2
    queue.leave(first)

    assert (len(queue), queue.tokens, queue.jobs) == (1, 20, [second])


def bound(queue: Queue[str, str], name: str) -> str | None:
    """The limit that a request of a key would break now."""
    try:
        queue.check(1, 1.0, 1e9, 1.0, name, 0.0)
    except Overloaded as error:
        return error.bound
    return None


def owed(queue: Queue[str, str], now: float) -> float:
    """Seconds until a key with a rate may ask again, as its refusal says."""
    with pytest.raises(Overloaded) as refused:
        queue.check(1, 1.0, 1e9, 1.0, "a", now)
    assert refused.value.bound == "key_rate"
    return refused.value.retry_after
