"""The keys that let in now: those of the settings, and those of a file, which is followed.

    at the start    a file that cannot be used is refused
    while it runs   every LOOK_SECONDS the whole file is read; what it holds is taken up at once,
                    all of it, when it has held it for SETTLED_SECONDS
    once wrong      the last good keys let in, a line of the log says why, and `stale` is true

The file's bytes say whether it has changed: a Secret of Kubernetes changes by a symbolic link, and
no time of a file is to be relied on.
"""

import hashlib
import logging
import stat
import threading
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import NamedTuple, NoReturn

from service.keys.key import Key, entry, read

logger = logging.getLogger(__name__)

LOOK_SECONDS = 2.0
SETTLED_SECONDS = 1.0  # an editor may write a file piece by piece
STALE_SECONDS = 30.0  # by then a change is taken up
MOST_BYTES = 1024 * 1024  # some 5,000 keys


class Unusable(ValueError):
    """A file of keys cannot be used; its text is one line, with no part of a key."""


class Seen(NamedTuple):
    """A file as it is at a time.

    Args:
        digest: of its bytes; where there are none, why.
        fault: why it cannot be read.
    """

    digest: bytes
    content: bytes = b""
    fault: str | None = None


class Ring:
    """The keys that let in now.

    Args:
        held: those of the settings, which stay; where the file has one too, they count.
        file: of the others.
        clock: seconds.

    Raises:
        Unusable: the file cannot be used.
    """

    def __init__(
        self,
        held: tuple[Key, ...],
        file: Path | None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._held, self._file, self._clock = held, file, clock
        self.keys, self._digest = held, b""
        self.fault: str | None = None
        if file:
            seen = _look(file)
            self.keys, self._digest = self._read(seen), seen.digest
        self._sure = clock()  # when the keys last were the file's

    @property
    def stale(self) -> bool:
        """Whether the keys may not be the file's."""
        late = self._clock() - self._sure > STALE_SECONDS
        return self._file is not None and (self.fault is not None or late)

    def follow(self) -> NoReturn:
        """Look for ever."""
        while True:
            time.sleep(LOOK_SECONDS)
            self.look()

    def look(self) -> None:
        """Take up what the file holds now, unless it is just being written."""
        if self._file is None:
            return
        seen = _look(self._file)
        if seen.digest != self._digest:
            time.sleep(SETTLED_SECONDS)
            if _look(self._file).digest != seen.digest:
                return
            self._take_up(seen)
        self._sure = self._clock()

    def _take_up(self, seen: Seen) -> None:
        self._digest = seen.digest
        try:
            keys = self._read(seen)
        except Unusable as error:
            self.fault = str(error)
            logger.error("keys stay as they are", extra={"reason": self.fault})
            return
        names, before = {key.name for key in keys}, {key.name for key in self.keys}
        told = {"new": sorted(names - before), "gone": sorted(before - names)}
        reason = "; ".join(f"{what}: {', '.join(some)}" for what, some in told.items() if some)
        self.keys, self.fault = keys, None
        logger.info("keys changed", extra={"count": len(keys), "reason": reason or None})

    def _read(self, seen: Seen) -> tuple[Key, ...]:
        """The keys of the settings and a file.

        Raises:
            Unusable: the file is wrong.
        """
        held = [",".join(map(entry, self._held))] if self._held else []
        fault = seen.fault
        try:
            if fault is None:
                return read(*held, seen.content.decode("utf-8-sig"))
        except UnicodeDecodeError:
            fault = "it is no text in UTF-8"
        except ValueError as error:
            fault = str(error).removeprefix("api_keys: ")
        raise Unusable(f"api_keys_file {self._file}: {fault}")


@cache
def followed(held: tuple[Key, ...], file: Path | None) -> Ring:
    """Return this process's ring of these keys, which a thread keeps up with its file.

    Raises:
        Unusable: as Ring.
    """
    ring = Ring(held, file)
    if file:
        threading.Thread(target=ring.follow, name="keys", daemon=True).start()
    return ring


def _look(file: Path) -> Seen:
    """A file as it is now."""
    try:
        content = _content(file)
        return Seen(hashlib.sha256(content).digest(), content)
    except OSError as error:
        fault = str(error.strerror)
    except ValueError as error:
        fault = str(error)
    return Seen(fault.encode(), fault=fault)


def _content(file: Path) -> bytes:
    """The bytes of a file.

    Raises:
        OSError: it cannot be read.
        ValueError: it is none that could be read again, or far too large.
    """
    if not stat.S_ISREG(file.stat().st_mode):
        raise ValueError("it is no regular file, which can be read again")
    with file.open("rb") as opened:
        content = opened.read(MOST_BYTES + 1)
    if len(content) > MOST_BYTES:
        raise ValueError(f"it has more than {MOST_BYTES:,} bytes")
    return content
