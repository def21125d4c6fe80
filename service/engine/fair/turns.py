"""Long work of the event loop, cut into pieces: in a round of the loop, one request does one."""

import asyncio
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from typing import TypeVar

from service.engine.fair.rotation import FairRoom

Entry = TypeVar("Entry")

PIECE_ENTRIES = 128  # of a piece of work: a millisecond or two, if each takes 10 us
LINE = FairRoom()  # held for a round of the loop by the request that does the next piece


async def in_turns(entries: Iterable[Entry]) -> AsyncIterator[Entry]:
    """Yield entries one by one, and wait for a turn after each PIECE_ENTRIES of them."""
    for number, entry in enumerate(entries, 1):
        yield entry
        if number % PIECE_ENTRIES == 0:
            await next_turn()


def cut(entries: Sequence[Entry]) -> Iterator[Sequence[Entry]]:
    """Yield entries PIECE_ENTRIES at a time; call `give_turn` after each."""
    for first in range(0, len(entries), PIECE_ENTRIES):
        yield entries[first : first + PIECE_ENTRIES]


async def give_turn(entries: int) -> None:
    """Wait for a turn between two pieces of work on so many entries, unless they are few."""
    if entries > PIECE_ENTRIES:
        await next_turn()


async def next_turn() -> None:
    """Wait while other tasks run once, and while other requests do their pieces."""
    await LINE.acquire()
    try:
        await asyncio.sleep(0)
    finally:
        LINE.release()
