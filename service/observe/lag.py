"""How long the event loop keeps others waiting, measured by who only wants to wake up."""

import asyncio
import time
from collections.abc import Callable

PERIOD_SECONDS = 0.05


async def watch(observe: Callable[[float], None]) -> None:
    """Sleep over and over, and tell by how many seconds each sleep was too long."""
    while True:
        due = time.perf_counter() + PERIOD_SECONDS
        await asyncio.sleep(PERIOD_SECONDS)
        observe(max(time.perf_counter() - due, 0.0))
