"""Whose turn it is at a thread and at a lock, and who gives up."""

import asyncio
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial

import pytest

from service.engine.fair.rotation import OWNER_KEY, FairRoom, FairThread


@contextmanager
def as_owner(name: str) -> Iterator[None]:
    """What is asked for is a key's."""
    token = OWNER_KEY.set(name)
    try:
        yield
    finally:
        OWNER_KEY.reset(token)


async def settled() -> None:
    """All that is ready has run."""
    for _ in range(5):
        await asyncio.sleep(0)


async def test_keys_take_turns_at_a_thread() -> None:
    """However many one has waiting: each line in its order, without those that give up."""
    thread, gate, done = FairThread("one"), threading.Event(), list[str]()
    first = asyncio.create_task(thread.run(gate.wait))
    await settled()
    with as_owner("a"):
        flood = [asyncio.create_task(thread.run(partial(done.append, f"a{n}"))) for n in range(5)]
    with as_owner("b"):
        few = [asyncio.create_task(thread.run(partial(done.append, f"b{n}"))) for n in range(2)]
    await settled()
    flood[2].cancel()
    gate.set()
    await asyncio.gather(first, *flood[:2], *flood[3:], *few)

    assert done == ["a0", "b0", "a1", "b1", "a3", "a4"]


async def test_between_two_works_the_event_loop_goes_round() -> None:
    """Every other that is ready has a turn, however many works wait."""
    thread, rounds, seen, over = FairThread("one"), 0, list[int](), asyncio.Event()

    async def others() -> None:
        nonlocal rounds
        while not over.is_set():
            rounds += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(others())
    await asyncio.gather(*(thread.run(lambda: seen.append(rounds)) for _ in range(20)))
    over.set()
    await counting

    assert len(set(seen)) == 20


async def test_who_gives_up_keeps_its_turn_until_its_work_is_done() -> None:
    """It cannot be stopped; the next begins after a round of the loop, as ever."""
    thread, gate, began = FairThread("one"), threading.Event(), threading.Event()

    def work() -> None:
        began.set()
        gate.wait()

    gives_up = asyncio.create_task(thread.run(work))
    await asyncio.to_thread(began.wait)
    second = asyncio.create_task(thread.run(lambda: 7))
    gives_up.cancel()
    await settled()
    queued = thread._thread._work_queue.qsize()
    gate.set()

    assert queued == 0 and await second == 7


async def test_what_work_raises_is_raised_to_whoever_asked() -> None:
    """And the thread goes on."""
    thread = FairThread("one")

    with pytest.raises(ZeroDivisionError):
        await thread.run(lambda: 1 / 0)
    assert await thread.run(lambda: 7) == 7


async def test_keys_take_turns_at_a_lock() -> None:
    """One that gives up, waiting or as its turn comes, holds up no other."""
    lock, had = FairRoom(), list[str]()

    async def hold(name: str) -> None:
        await lock.acquire()
        had.append(name)
        await asyncio.sleep(0)
        lock.release()

    await lock.acquire()
    asked = []
    for name in ("a0", "a1", "a2", "a3", "b0", "b1"):
        with as_owner(name[0]):
            asked.append(asyncio.create_task(hold(name)))
    await settled()
    asked[3].cancel()
    await settled()
    lock.release()
    asked[0].cancel()  # its turn has come
    await asyncio.gather(*asked, return_exceptions=True)

    assert had == ["b0", "a1", "b1", "a2"]
    await lock.acquire()
