"""Who is likely to ask again at once."""

import asyncio

import pytest

from service.engine.fair import company
from service.engine.fair.company import Company


async def test_each_of_those_answered_is_expected_once() -> None:
    """Who comes beyond them was not expected, and changes nothing."""
    expected, those = [], Company(lambda: None)
    those.answered(2)
    for _ in range(3):
        expected.append(those.expected)
        those.arrived()

    assert [*expected, those.expected] == [2, 1, 0, 0]


async def test_whoever_takes_too_long_is_expected_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor are those who would come after; whoever waited for them is told."""
    monkeypatch.setattr(company, "PATIENCE_SECONDS", 0.001)
    gone = asyncio.Event()
    those = Company(gone.set)
    those.answered(3)
    those.arrived()

    async with asyncio.timeout(5):
        await gone.wait()

    assert those.expected == 0
