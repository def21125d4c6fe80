"""Bytes that the requests of one process hold together, by kind, within a budget.

    bodies    what was read of requests, then what was made of it, until each is answered
    arrays    what the model is to make for an answer, from its admission until it is written
    answers   what is written, until its reader has taken it; from admission on as an estimate

Memory belongs to the process, and so does the count: the outermost layer and the replica, which
know nothing of each other, add to the same one.
"""

import ctypes
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import ClassVar, Literal, get_args

Kind = Literal["bodies", "arrays", "answers"]
KINDS: tuple[Kind, ...] = get_args(Kind)
UNBOUNDED = sys.maxsize  # of what nobody asked for
KEPT_BYTES = 128 * 1024 * 1024  # free in the heap: more than the tiles of a batch's attention
SMALL_BYTES = 64 * 1024  # of a request that is always let in: the queue bounds how many there are


class NoRoom(Exception):
    """What a request would hold is more than the budget has left."""


class Memory:
    """What is held, bytes by kind, and how many readers were cut off because they held too long."""

    def __init__(self) -> None:
        self.bytes, self.cut_off = dict.fromkeys(KINDS, 0), 0

    @contextmanager
    def hold(self, limit: int) -> Iterator["Hold"]:
        """A request's share, which ends with it.

        Args:
            limit: of all shares together, bytes.
        """
        hold = Hold(self, limit)
        try:
            yield hold
        finally:
            for kind, size in hold.bytes.items():
                if size:
                    hold.keep(kind, 0)


class Hold:
    """What one request holds."""

    def __init__(self, memory: Memory, limit: int) -> None:
        self._memory, self._limit = memory, limit
        self.bytes = dict.fromkeys(KINDS, 0)

    def take(self, **sizes: int) -> None:
        """Hold so many bytes more, by kind; fewer, where they are negative.

        Raises:
            NoRoom: the budget has no room for them; nothing is held of them.
        """
        more = sum(sizes.values())
        own, all_ = sum(self.bytes.values()), sum(self._memory.bytes.values())
        if more > 0 and own + more > SMALL_BYTES and all_ + more > self._limit:
            raise NoRoom
        for kind in KINDS:
            if size := sizes.get(kind):
                self.keep(kind, self.bytes[kind] + size)

    def keep(self, kind: Kind, size: int) -> None:
        """Hold so many bytes of a kind, whatever the budget says: they are there."""
        self._memory.bytes[kind] += size - self.bytes[kind]
        self.bytes[kind] = size


PROCESS = Memory()


class _Heap(ctypes.Structure):
    """What glibc's mallinfo2 tells of the heap, bytes or counts."""

    _fields_: ClassVar = [
        (name, ctypes.c_size_t)
        for name in ("arena", "ordblks", "smblks", "hblks", "hblkhd", "usmblks", "fsmblks")
        + ("uordblks", "fordblks", "keepcost")
    ]


def give_back(kept: int = 0) -> None:
    """Give the system what is free in the heap, where that is more than `kept` bytes.

    glibc by itself gives back the heap's end alone. Elsewhere nothing is done.
    """
    library = ctypes.CDLL(None)
    if not hasattr(library, "mallinfo2"):  # glibc's alone, from 2.33 on
        return
    library.mallinfo2.restype = _Heap
    if library.mallinfo2().fordblks > kept:
        library.malloc_trim(0)
