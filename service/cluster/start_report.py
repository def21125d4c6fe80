"""A failed start, and reports every few seconds on what a start waits for."""

import re
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

PERIOD_SECONDS = 5.0  # between two reports


class StartFailed(Exception):
    """The service could not be started; its text is one line."""


@contextmanager
def report_progress(
    say: Callable[[str], None], cause: Callable[[], str], period: float = PERIOD_SECONDS
) -> Iterator[None]:
    """Report every `period` seconds what the block waits for, while it runs.

    Args:
        say: prints a line.
        cause: returns what it waits for; called in a thread of its own, since it may wait as well.
    """
    over, began = threading.Event(), time.monotonic()

    def report() -> None:
        """Report what the block waits for, until it ends."""
        while not over.wait(period):
            try:
                line = cause()
            except Exception:
                if over.is_set():  # what `cause` asks has gone
                    return
                raise
            if not over.is_set():
                say(f"waiting for {time.monotonic() - began:.0f} s: {line}")

    threading.Thread(target=report, name="progress", daemon=True).start()
    try:
        yield
    finally:
        over.set()


@contextmanager
def naming_failures(name: str) -> Iterator[None]:
    """Let a StartFailed in the block say of which model; where the name is empty, it need not."""
    try:
        yield
    except StartFailed as error:
        if not name:
            raise
        raise StartFailed(f"{name}: {error}") from error


def last_line(text: object) -> str:
    """Return the last line of a traceback, without colours and without the exception's class."""
    plain = re.sub(r"\x1b\[[0-9;]*m", "", str(text)).strip()
    line = plain.splitlines()[-1] if plain else "no reason given"
    return re.sub(r"^(?:\w+\.)*[A-Z]\w*: ", "", line)
