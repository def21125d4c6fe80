"""Who is likely to ask again at once."""

import asyncio

import pytest

from service.engine import batcher
from service.engine.batcher import ReturningClients


async def test_each_of_those_answered_is_expected_once() -> None:
    """Who comes beyond them was not expected, and changes nothing."""
    expected, those = [], ReturningClients(lambda: None)
    those.expect(2)
    for first in (True, False, False):
        expected.append(those.expected)
        those.count_arrival(first=first)

    assert [*expected, those.expected] == [2, 1, 0, 0]


@pytest.mark.parametrize("later", ["nobody", "another", "an answer to nobody"])
async def test_whoever_takes_too_long_is_expected_no_more(
    later: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Who waits for them is told in time, whatever comes meanwhile."""
    loop, gone = asyncio.get_running_loop(), asyncio.Event()
    monkeypatch.setattr(batcher, "COMPANY_WAIT_SECONDS", 0.02)
    those = ReturningClients(gone.set)
    those.expect(1000)
    those.count_arrival(first=True)
    until = loop.time() + 0.02

    while not gone.is_set() and loop.time() < until + 1:
        if later == "another":
            those.count_arrival(first=False)
        elif later == "an answer to nobody":
            those.expect(0)
        await asyncio.sleep(0.001)

    assert gone.is_set() and those.expected == 0
