"""The API keys that let in now, as their file changes.

A file of keys (keys.py) is followed:

    at the start    one that cannot be used is refused
    while it runs   every POLL_SECONDS the whole file is read; what it holds is taken up at once,
                    all of it, when it has held it for SETTLED_SECONDS
    once wrong      the last good keys let in, a line of the log says why, and `stale` is true

The digests of the last good keys are kept on the machine, for this user alone, and are read as long
as that Ray runs: a replica that starts next to a wrong file begins with them.

The file's bytes say whether it has changed: a Secret of Kubernetes changes by a symbolic link, and
no time of a file is to be relied on.
"""

import hashlib
import logging
import os
import stat
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import NoReturn

from service.tables.keys import Key, format_entry, parse_keys

logger = logging.getLogger(__name__)

POLL_SECONDS = 2.0  # between two readings of the file
SETTLED_SECONDS = 1.0  # a change must last: an editor may write a file piece by piece
STALE_SECONDS = 30.0  # without a good reading, after which the keys count as stale
MOST_FILE_BYTES = 1024 * 1024  # some 5,000 keys


class UnusableKeys(ValueError):
    """A file of keys cannot be used; its text is one line, with no part of a key."""


class KeyRing:
    """The API keys that are valid now, followed as their file changes.

    Args:
        held: keys of the settings, which stay; they win over the same keys of the file.
        file: of the other keys.
        kept: a folder for digests of the last good keys; None: a wrong file is refused.
        clock: returns seconds.

    Raises:
        UnusableKeys: the file cannot be used, and no good keys of it are kept.
    """

    def __init__(
        self,
        held: tuple[Key, ...],
        file: Path | None,
        kept: Path | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._held, self._file, self._kept, self._clock = held, file, kept, clock
        self.keys, self._digest = held, b""
        self.fault: str | None = None  # why the file cannot be used now
        if file:
            content = _read_file(file)
            self._digest = _digest(content)
            try:
                self.keys = self._parse(content)
            except UnusableKeys as error:
                self.keys = self._last_good_keys(error)
                self._note_fault(error)
            else:
                self._save_digests()
        self._last_match = clock()  # when the keys last were the file's

    @property
    def stale(self) -> bool:
        """Tell whether the keys may differ from the file's: it is wrong, or was not read lately."""
        is_late = self._clock() - self._last_match > STALE_SECONDS
        return self._file is not None and (self.fault is not None or is_late)

    def watch(self) -> NoReturn:
        """Reload the file every POLL_SECONDS, for ever; run in a thread."""
        while True:
            time.sleep(POLL_SECONDS)
            self.reload()

    def reload(self) -> None:
        """Replace the keys by what the file holds now, unless it is just being written."""
        if self._file is None:
            return
        content = _read_file(self._file)
        if (digest := _digest(content)) != self._digest:
            time.sleep(SETTLED_SECONDS)
            if _digest(_read_file(self._file)) != digest:
                return
            self._digest = digest
            self._replace_keys(content)
        self._last_match = self._clock()

    def _replace_keys(self, content: bytes | str) -> None:
        """Replace the keys by those of the file's content, or note what is wrong with it."""
        try:
            keys = self._parse(content)
        except UnusableKeys as error:
            return self._note_fault(error)
        names, before = {key.name for key in keys}, {key.name for key in self.keys}
        changes = {"new": sorted(names - before), "gone": sorted(before - names)}
        reason = "; ".join(f"{what}: {', '.join(some)}" for what, some in changes.items() if some)
        self.keys, self.fault = keys, None
        self._save_digests()
        logger.info("keys changed", extra={"count": len(keys), "reason": reason or None})

    def _note_fault(self, error: UnusableKeys) -> None:
        """Keep the keys, and log why the file cannot be used."""
        self.fault = str(error)
        logger.error("keys stay as they are", extra={"reason": self.fault})

    def _save_digests(self) -> None:
        """Write digests of the file's keys for the next replica here; log if that fails."""
        if self._kept is None:
            return
        held = {key.digest for key in self._held}
        lines = [format_entry(key) for key in self.keys if key.digest not in held]
        path = self._digests_file(self._kept)
        part = path.with_name(f"{path.name}.{os.getpid()}")
        try:
            self._kept.mkdir(mode=0o700, exist_ok=True)
            part.unlink(missing_ok=True)
            with open(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as file:
                file.write("\n".join(lines))
            part.replace(path)
        except OSError as error:
            logger.warning("keys not kept", extra={"reason": f"{path}: {error.strerror}"})

    def _last_good_keys(self, wrong: UnusableKeys) -> tuple[Key, ...]:
        """Return the last good keys that were saved; raises `wrong` where there are none."""
        if self._kept is None or not _is_private(self._kept):
            raise wrong
        try:
            return self._parse(_read_file(self._digests_file(self._kept)))
        except UnusableKeys:
            raise wrong from None

    def _digests_file(self, kept: Path) -> Path:
        """Return where the digests of this file's keys are saved."""
        return kept / hashlib.sha256(os.fsencode(str(self._file))).hexdigest()[:16]

    def _parse(self, content: bytes | str) -> tuple[Key, ...]:
        """Return the keys of the settings and a file.

        Raises:
            UnusableKeys: the file is wrong.
        """
        held = ["\n".join(map(format_entry, self._held))] if self._held else []
        try:
            return parse_keys(*held, _decode(content))
        except ValueError as error:
            raise UnusableKeys(f"api_keys_file {self._file}: {error}") from None


def check_keys(held: tuple[Key, ...], file: Path | None) -> None:
    """Check that the keys of the settings and of the file can be used.

    Raises:
        UnusableKeys: those of the file cannot.
    """
    KeyRing(held, file)


def follow_keys(held: tuple[Key, ...], file: Path | None, kept: Path | None) -> KeyRing:
    """Return a ring of these keys, which a thread reloads as their file changes.

    Raises:
        UnusableKeys: as KeyRing.
    """
    ring = KeyRing(held, file, kept)
    if file:
        threading.Thread(target=ring.watch, name="keys", daemon=True).start()
    return ring


def _is_private(folder: Path) -> bool:
    """Tell whether a folder is this user's and closed to others, who could write keys there."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    is_closed = status.st_uid == os.geteuid() and not status.st_mode & 0o77
    return stat.S_ISDIR(status.st_mode) and is_closed


def _read_file(file: Path) -> bytes | str:
    """Return the bytes that a file holds now, or as a string why it cannot be used."""
    try:
        if not stat.S_ISREG(file.stat().st_mode):
            return "it is not a regular file, which can be read again"
        with file.open("rb") as opened:
            content = opened.read(MOST_FILE_BYTES + 1)
    except OSError as error:
        return str(error.strerror)
    return (
        content
        if len(content) <= MOST_FILE_BYTES
        else f"it has more than {MOST_FILE_BYTES:,} bytes"
    )


def _decode(content: bytes | str) -> str:
    """Return the content of a file, as of _read_file, as text.

    Raises:
        ValueError: it cannot be used; says why.
    """
    if isinstance(content, str):
        raise ValueError(content)
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError:
        fault = "it is no text in UTF-8"
    raise ValueError(fault)


def _digest(content: bytes | str) -> bytes:
    """Return the SHA-256 of what _read_file returned, which shows whether it has changed."""
    return hashlib.sha256(content if isinstance(content, bytes) else content.encode()).digest()
