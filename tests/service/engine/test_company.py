"""Who is likely to ask again at once."""

import asyncio

import pytest

from service.engine import batcher
from service.engine.batcher import ReturningClients


async def test_each_of_those_answered_is_expected_once() -> None:
    """Who comes beyond them was not expected, and changes nothing."""
    expected, those = [], ReturningClients(lambda: None)
    those.expect(2)
    for _ in range(3):
        expected.append(those.expected)
        those.count_arrival()

    assert [*expected, those.expected] == [2, 1, 0, 0]


@pytest.mark.parametrize("others", [0, 3])
async def test_a_client_that_takes_too_long_is_expected_no_more(
    others: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The wait for it ends in time, however often others are answered and return."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    monkeypatch.setattr(batcher, "COMPANY_WAIT_SECONDS", 0.02)
    those = ReturningClients(gone.set)
    those.expect(1000)
    until = loop.time() + 0.02

    while not gone.is_set() and loop.time() < until + 1:
        those.expect(others)
        for _ in range(others):
            those.count_arrival()
        await asyncio.sleep(0.001)

    assert gone.is_set() and those.expected == 0
