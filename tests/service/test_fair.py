"""The evenly shared machine, beside one that is simulated a token at a time."""

import random

import pytest

from service.fair import Shares


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


def test_who_gives_up_leaves_its_share_to_the_others() -> None:
    """The clock of those that stay runs faster."""
    shares = Shares()
    gone, _ = shares.enter(100), shares.enter(100)
    shares.serve(20)
    shares.leave(gone)
    shares.serve(30)

    assert shares.enter(5) == 10 + 30 + 5


def test_who_comes_when_nobody_waits_finds_no_trace_of_others() -> None:
    """Also where work that was entered was never done."""
    shares = Shares()
    shares.enter(100)
    shares.rest()
    turn = shares.enter(10)
    shares.serve(4)

    assert shares.enter(10) - turn == 4
