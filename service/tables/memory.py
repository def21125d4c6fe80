"""Bytes that the requests of one process hold together, by kind, within a budget.

    bodies    what was read of requests, then what was made of it, until each is answered
    arrays    what the model is to make for an answer, from its admission until it is written
    answers   what is written, until its reader has taken it; from admission on as an estimate

Memory belongs to the process, and so does the count.
"""

import sys

from service.tables.refusals import overloaded

KINDS = ("bodies", "arrays", "answers")  # of bytes, see above
UNBOUNDED = sys.maxsize  # limit of work that no client asked for
SMALL_BYTES = 64 * 1024  # what a request may always hold: the queue bounds how many there are


class Memory:
    """Bytes held by kind, and the number of readers cut off because they held them too long."""

    def __init__(self) -> None:
        self.bytes, self.cut_off = dict.fromkeys(KINDS, 0), 0


class Hold:
    """The bytes that one request holds by kind, until it releases them.

    Args:
        memory: the count of all requests of the process.
        limit: bytes that all requests may hold together.
    """

    __slots__ = ("_limit", "_memory", "bytes")

    def __init__(self, memory: Memory, limit: int) -> None:
        self._memory, self._limit = memory, limit
        self.bytes = dict.fromkeys(KINDS, 0)

    def take(self, **sizes: int) -> None:
        """Hold so many bytes of each kind given, in place of those held of it before.

        Raises:
            Refused: the budget has no room for them; what is held stays as it was.
        """
        held = {**self.bytes, **sizes}
        total, before = sum(held.values()), sum(self.bytes.values())
        if total > SMALL_BYTES and total > before:
            if sum(self._memory.bytes.values()) + total - before > self._limit:
                raise overloaded("memory")
        for kind, size in sizes.items():
            self._memory.bytes[kind] += size - self.bytes[kind]
        self.bytes = held

    def keep(self, **sizes: int) -> None:
        """Hold bytes as `take` does, without a look at the budget: they are in use already."""
        for kind, size in sizes.items():
            self._memory.bytes[kind] += size - self.bytes[kind]
            self.bytes[kind] = size

    def release(self) -> None:
        """Release all bytes."""
        for kind, size in self.bytes.items():
            self._memory.bytes[kind] -= size
        self.bytes = dict.fromkeys(KINDS, 0)


PROCESS = Memory()  # the count of this process
