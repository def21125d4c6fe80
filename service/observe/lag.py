"""How long the event loop keeps others waiting, and how much of its time it computes."""

import asyncio
import threading
import time
from collections.abc import Callable

PERIOD_SECONDS = 0.05


async def watch(observe: Callable[[float], None]) -> None:
    """Sleep over and over, and tell by how many seconds each sleep was too long."""
    while True:
        due = time.perf_counter() + PERIOD_SECONDS
        await asyncio.sleep(PERIOD_SECONDS)
        observe(max(time.perf_counter() - due, 0.0))


def spent() -> Callable[[], float]:
    """What tells, in any thread, the seconds that the event loop in this one has computed.

    Those that it waits, for a core or for Python's own lock, are not among them.
    """
    clock = time.pthread_getcpuclockid(threading.get_ident())
    return lambda: time.clock_gettime(clock)
