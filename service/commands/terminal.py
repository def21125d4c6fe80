"""What commands say on a terminal, and how they end: in one line and with an exit status."""

import os
import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NoReturn

from service.cluster.progress import StartFailed

if TYPE_CHECKING:
    from rich.text import Text

FAILED, USAGE, INTERRUPTED = 1, 2, 130
CONTROL_CHARACTERS = re.compile(
    r"[\x00-\x09\x0b-\x1f\x7f-\x9f]"
)  # controls a terminal, but for line ends


class Unusable(Exception):
    """A mistake in the command or in its files; the message is one line."""


class Failed(Exception):
    """An early end that is not the caller's mistake; the message is one line."""


def open_standard() -> None:
    """Open what was closed of stdin, stdout and stderr: else the next file takes its place."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest number that is free: this one
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def print_now(stream: IO[str], line: str) -> None:
    """Print a line now."""
    stream.write(f"{line}\n")  # at once, since others write there too
    stream.flush()


def exit_with(line: str, status: int) -> NoReturn:
    """Leave with one line on stderr."""
    print_now(sys.stderr, f"headlight: {' '.join(line.split())}")
    raise SystemExit(status)


@contextmanager
def end_in_one_line(interrupted: str | None = None) -> Iterator[None]:
    """Leave with one line where a command ends early.

    Args:
        interrupted: the line after Ctrl-C; without one, the caller sees to that.
    """
    try:
        yield
    except Unusable as error:
        exit_with(str(error), USAGE)
    except BrokenPipeError:
        raise  # the reader of our output has left: click ends in silence
    except (Failed, StartFailed, OSError) as error:
        exit_with(str(error), FAILED)
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        exit_with(interrupted, INTERRUPTED)


def strip_control(text: str) -> "Text":
    """Return foreign text without markup and without terminal control characters."""
    from rich.text import Text

    return Text(CONTROL_CHARACTERS.sub("\ufffd", text))
