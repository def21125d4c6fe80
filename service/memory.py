"""Bytes that the requests of one process hold together, by kind, within a budget.

    bodies    what was read of requests, then what was made of it, until each is answered
    arrays    what the model is to make for an answer, from its admission until it is written
    answers   what is written, until its reader has taken it; from admission on as an estimate

Memory belongs to the process, and so does the count.
"""

import sys
from typing import Literal, get_args

Kind = Literal["bodies", "arrays", "answers"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNBOUNDED = sys.maxsize  # of what no client asked for
SMALL_BYTES = 64 * 1024  # of a request that is always let in: the queue bounds how many there are


class NoRoom(Exception):
    """What a request would hold is more than the budget has left."""


class Memory:
    """What is held, bytes by kind, and how many readers were cut off because they held too long."""

    def __init__(self) -> None:
        self.bytes, self.cut_off = dict.fromkeys(KINDS, 0), 0


class Hold:
    """What one request holds, until it is released.

    Args:
        limit: of all that requests hold together, bytes.
    """

    __slots__ = ("_limit", "_memory", "bytes")

    def __init__(self, memory: Memory, limit: int) -> None:
        self._memory, self._limit = memory, limit
        self.bytes = dict.fromkeys(KINDS, 0)

    def take(self, bodies: int = 0, arrays: int = 0, answers: int = 0) -> None:
        """Hold this many more bytes, by kind; fewer if negative.

        Raises:
            NoRoom: the budget has no room for them; nothing is held of them.
        """
        more = bodies + arrays + answers
        if more > 0 and sum(self.bytes.values()) + more > SMALL_BYTES:
            if sum(self._memory.bytes.values()) + more > self._limit:
                raise NoRoom
        for held in (self.bytes, self._memory.bytes):
            held["bodies"] += bodies
            held["arrays"] += arrays
            held["answers"] += answers

    def keep(self, kind: Kind, size: int) -> None:
        """Hold this many bytes of a kind, whatever the budget says: they are there."""
        self._memory.bytes[kind] += size - self.bytes[kind]
        self.bytes[kind] = size

    def release(self) -> None:
        """Release all bytes."""
        for kind, size in self.bytes.items():
            self._memory.bytes[kind] -= size
        self.bytes = dict.fromkeys(KINDS, 0)


PROCESS = Memory()
