"""How long a request may take: the setting, which a header may shorten."""

import asyncio
import time
from collections.abc import Awaitable, Mapping
from typing import TypeVar

from service.refusals import Refused

DEADLINE = "x-headlight-deadline-ms"
LONGEST = 9  # digits of milliseconds

Result = TypeVar("Result")


async def in_time(work: Awaitable[Result], deadline: float) -> Result:
    """Return the result of some work, if it comes in time.

    Args:
        deadline: when it must be there, on time.monotonic's clock.

    Raises:
        Refused: it is late; work that never awaits cannot be late.
    """
    try:
        async with asyncio.timeout(deadline - time.monotonic()):
            return await work
    except TimeoutError:
        raise Refused("deadline_exceeded") from None


def seconds(headers: Mapping[str, str], most: float) -> float:
    """How long this request may take, in seconds, at most `most`.

    Raises:
        Refused: the header is not a number of milliseconds.
    """
    header = headers.get(DEADLINE)
    if header is None:
        return most
    if not header.isdecimal() or not header.isascii() or len(header) > LONGEST:
        detail = f"expected a number of milliseconds of up to {LONGEST} digits"
        raise Refused.at("out_of_range", DEADLINE, detail=detail)
    return min(int(header) / 1000, most)
