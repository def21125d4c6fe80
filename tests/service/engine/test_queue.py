"""The evenly shared machine, beside one that is simulated a token at a time."""

import asyncio
import random
from collections.abc import Sequence

import pytest

from service.engine.batcher import Batcher
from service.engine.queue import Shares


def waiting(shares: Shares) -> float:
    """Tokens that wait here: what waits there, and what is done there alone."""
    return sum(turn - shares._now for turn in shares._turns) + shares._ahead


@pytest.mark.parametrize("seed", range(5))
def test_requests_would_be_done_when_a_machine_that_serves_each_in_turn_is_done(seed: int) -> None:
    """In the same order, whoever comes when; work is done here in whatever order."""
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
        assert waiting(queue._queue._shares) == pytest.approx(queue.waiting_tokens, abs=1e-6)

    for task in asked:
        task.cancel()
    await asyncio.gather(*asked, return_exceptions=True)
    gate.release()
    await queue.drain()
