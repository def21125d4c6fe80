"""What each key has of the machine, and in what order its requests run."""

import asyncio
import math
import random
from collections import Counter

import pytest

from service.engine.fair.line import JobLine
from service.engine.fair.queue import BATCH_GROWTH, CROWD_TOKENS, JobQueue
from service.shapes.job import Batch, Job
from service.tables.keys import Limits
from service.tables.refusals import Refused

BATCH, LARGEST = 100, 400
SIZES = {"a": (10, 10, 80, LARGEST), "b": (10, 10, 70), "c": (10, 30)}  # tokens, by key


def job(key: str, tokens: int) -> Job[str, str]:
    """A request of so many tokens, in works of ten."""
    future = asyncio.get_running_loop().create_future()
    count = tokens // 10
    return Job(["a" * 10] * count, [10.0] * count, 1e9, 0.0, future, key)


def queue_of(names: str) -> JobQueue[str, str]:
    """A queue with room for all, of keys without limits."""
    return JobQueue(10**6, 10**9, dict.fromkeys(names, Limits()))


@pytest.mark.parametrize("seed", range(5))
async def test_keys_that_always_wait_have_had_the_same(seed: int) -> None:
    """However many requests each has, of whatever size, and whichever gives up."""
    chance, had, queue = random.Random(seed), Counter[str](), queue_of("abc")
    for _ in range(500):
        for key, most in (("a", 40), ("b", 13), ("c", 11)):
            while sum(each.key == key for each in queue.jobs) < most:
                queue.add_job(job(key, chance.choice(SIZES[key])))
        if chance.random() < 0.3:
            queue.remove_job(chance.choice(queue.jobs))
        for each, _ in queue.take_batch(BATCH, 0.0):
            had[each.key] += 10
        assert max(had.values()) - min(had[key] for key in SIZES) <= 2 * LARGEST + BATCH


async def test_a_key_that_comes_back_for_one_large_request_at_a_time_has_its_share_too() -> None:
    """What it has had too much it owes, though nothing of it waited meanwhile; and no longer.

    What the others have had since counts, and none has a claim on what it did not ask for.
    """
    had, queue = Counter[str](), queue_of("ab")
    for _ in range(1000):
        while sum(each.key == "b" for each in queue.jobs) < 100:
            queue.add_job(job("b", 10))
        if not any(each.key == "a" for each in queue.jobs):
            queue.add_job(job("a", 2000))
        for each, _ in queue.take_batch(2000, 0.0):
            had[each.key] += 10
    assert had["b"] == pytest.approx(had["a"], rel=0.1)

    for each in queue.jobs:
        queue.remove_job(each)
    for _ in range(900):
        queue.add_job(job("b", 10))
    for _ in range(10):
        queue.take_batch(256, 0.0)
    for _ in range(100):
        queue.add_job(job("a", 10))
    came = Counter(each.key for _ in range(6) for each, _ in queue.take_batch(256, 0.0))
    assert came["a"] == pytest.approx(came["b"], abs=2 * LARGEST // 10)


async def test_a_request_of_a_key_that_asks_for_little_is_in_the_next_batch_but_one() -> None:
    """However many another key has, and of whatever size."""
    queue = queue_of("ab")
    for _ in range(50):
        while sum(each.key == "a" for each in queue.jobs) < 50:
            queue.add_job(job("a", 10))
            queue.add_job(job("a", 4000))
        for _ in range(7):
            queue.take_batch(1000, 0.0)
        queue.add_job(job("b", 10))
        batches = [{each.key for each, _ in queue.take_batch(1000, 0.0)} for _ in range(2)]
        assert any("b" in keys for keys in batches)


@pytest.mark.parametrize("order", ["ab", "ba"])
async def test_of_two_keys_that_come_the_one_that_has_had_less_goes_first(order: str) -> None:
    """A busy key whose requests have all been started comes, too, with each new one."""
    queue = queue_of("ab")
    for _ in range(2):
        queue.add_job(job("a", 100))
        queue.take_batch(100, 0.0)

    for key in order:
        queue.add_job(job(key, 100))

    assert {each.key for each, _ in queue.take_batch(100, 0.0)} == {"b"}
    queue.remove_job(queue.jobs[0])
    assert (len(queue), queue.tokens, queue.jobs) == (0, 0, [])


async def test_within_a_key_a_small_request_passes_large_ones_and_rides_in_a_small_batch() -> None:
    """Always at once, if few are small: those that do not fit with it run after it."""
    queue = queue_of("a")
    for _ in range(50):
        queue.add_job(job("a", 5000))
        queue.add_job(job("a", 5000))
        queue.take_batch(4000, 0.0)
        small = job("a", 20)
        queue.add_job(small)
        batch = queue.take_batch(4000, 0.0)
        assert batch[0][0] is small and batch.tokens <= max(CROWD_TOKENS, BATCH_GROWTH * 20)


@pytest.mark.parametrize(
    ("tokens", "long", "shared"), [(5, 200, False), (5, 128, True), (30, 200, True)]
)
async def test_a_short_sequence_does_not_run_with_one_that_takes_far_longer(
    tokens: int, long: int, shared: bool
) -> None:
    """Up to SMALL_TOKENS company costs nothing; others wait for a batch of a few milliseconds."""
    queue = queue_of("a")
    for length in (tokens, long):
        future = asyncio.get_running_loop().create_future()
        queue.add_job(Job(["a" * length], [float(length)], 1e9, 0.0, future, "a"))

    batch = queue.take_batch(4000, 0.0)

    assert batch.tokens == tokens + long * shared
    assert len(queue) == (not shared)


async def test_requests_about_alike_go_first_come() -> None:
    """One overtakes those of twice its tokens, and none of its own octave."""
    line, order = JobLine[str, str]("a"), list[int]()
    for tokens in (1000, 590, 510, 700, 300, 160, 290):
        line.add_job(job("a", tokens))
    while line.jobs:
        first = line.next_job()
        order.append(line.start_works(first, Batch(), 10**6))

    assert order == [160, 1000, 590, 510, 300, 290, 700]


@pytest.mark.parametrize("tokens", [40, 200, 4000])
async def test_a_request_is_overtaken_by_no_more_tokens_than_it_has(tokens: int) -> None:
    """However many small ones come; one that takes long by as many again meanwhile."""
    queue, started = queue_of("a"), 0
    larger = job("a", tokens)
    queue.add_job(larger)
    while larger.waiting and started < 100_000:
        while len(queue) < 50:
            queue.add_job(job("a", 20))
        started += queue.take_batch(BATCH, 0.0).tokens

    assert tokens < started <= 3 * tokens + BATCH


async def test_a_request_of_which_nothing_fitted_has_not_begun() -> None:
    """It has waited since."""
    queue = queue_of("ab")
    future = asyncio.get_running_loop().create_future()
    short, long = (Job([text], [len(text)], 1e9, 0.0, future, "a") for text in ("a", "a" * 20))
    queue.add_job(short)
    queue.add_job(long)

    assert queue.take_batch(15, 7.0) == [(short, 0)]
    assert (short.started, long.started) == (7.0, math.inf)


@pytest.mark.parametrize("seed", range(5))
async def test_nothing_is_left_of_what_has_run_or_given_up(seed: int) -> None:
    """Counts go back to nothing, of each key and of all."""
    chance, queue, waits = random.Random(seed), queue_of("abc"), list[Job[str, str]]()
    for _ in range(500):
        waits.append(job(chance.choice("abc"), chance.choice(SIZES["a"])))
        queue.add_job(waits[-1])
        if chance.random() < 0.4:
            queue.remove_job(waits.pop(chance.randrange(len(waits))))
        if len(queue) and chance.random() < 0.4:
            queue.take_batch(BATCH, 0.0)
        left = [each for each in waits if each.waiting]
        assert len(queue) == len(left) == len(queue.jobs)
        assert queue.tokens == queue.cost == sum(each.tokens for each in left)
    while len(queue):
        queue.take_batch(BATCH, 0.0)

    assert (queue.tokens, queue.cost, queue.jobs) == (0, 0.0, [])
    assert {(line.tokens, line.cost, len(line.jobs)) for line in queue._lines.values()} == {
        (0, 0.0, 0)
    }


async def test_other_limits_hold_what_comes_and_leave_what_waits() -> None:
    """In its order; a name that goes is served what it has waiting, and then forgotten."""
    queue = JobQueue[str, str](100, 10_000, {"a": Limits(requests=2), "b": Limits()})
    waits = [job("a", 50), job("b", 30), job("a", 20)]
    for one in waits:
        queue.add_job(one)
    assert bound(queue, "a") == "key_requests"

    queue.set_limits({"a": Limits(requests=3), "c": Limits(tokens=5)})
    assert bound(queue, "a") is None and bound(queue, "c") is None
    queue.set_limits({"a": Limits(requests=2), "c": Limits(tokens=5)})
    assert bound(queue, "a") == "key_requests"
    queue.remove_job(waits[2])
    assert bound(queue, "a") is None
    batch = {id(one) for one, _ in queue.take_batch(100, 0.0)}

    assert batch == {id(one) for one in waits[:2]}
    assert len(queue) == 0 and queue.tokens == 0
    queue.set_limits({"a": Limits(), "c": Limits()})
    assert queue._lines.keys() == {"a"}


def bound(queue: JobQueue[str, str], name: str) -> str | None:
    """The limit that a request of a key would break now."""
    try:
        queue.check_admission(1, 1.0, 1e9, 1.0, name)
    except Refused as error:
        return error.bound
    return None
