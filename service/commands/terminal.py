"""What commands say on a terminal, and how they end: in one line and with an exit status."""

import os
import re
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import IO, TYPE_CHECKING, NoReturn

from service.cluster.start_report import StartFailed
from service.tables.wording.values import word_error

if TYPE_CHECKING:
    from rich.text import Text

FAILED, USAGE, INTERRUPTED = 1, 2, 130  # exit statuses
CONTROL_CHARACTERS = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f]")  # all but line feed


class Unusable(Exception):
    """The command or one of its files is wrong, exit status USAGE; the message is one line."""


class Failed(Exception):
    """A command fails through no mistake in it, exit status FAILED; the message is one line."""


def open_standard_streams() -> None:
    """Open stdin, stdout and stderr on /dev/null where closed: else files take their numbers."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # gets the lowest free number: this one
            setattr(sys, name, os.fdopen(number, mode, closefd=False))


def print_now(stream: IO[str], line: str) -> None:
    """Write a line to a stream and flush it."""
    stream.write(f"{line}\n")  # in one call, since other processes write there too
    stream.flush()


def exit_with(line: str, status: int, word: Callable[[str], str] = str) -> NoReturn:
    """Print one line to stderr, as `word` writes it, and exit with a status."""
    print_now(sys.stderr, word(f"headlight: {' '.join(line.split())}"))
    raise SystemExit(status)


@contextmanager
def end_in_one_line(
    interrupted: str | None = None, word: Callable[[str], str] = str
) -> Iterator[None]:
    """Exit with one line on stderr where the block raises an error that is no bug.

    Args:
        interrupted: the line after Ctrl-C; None: KeyboardInterrupt is raised again.
        word: writes the line.
    """
    try:
        yield
    except Unusable as error:
        exit_with(str(error), USAGE, word)
    except BrokenPipeError:
        raise  # the reader of our output has left: click ends in silence
    except (Failed, StartFailed, OSError) as error:
        exit_with(word_error(error), FAILED, word)
    except KeyboardInterrupt:
        if interrupted is None:
            raise
        exit_with(interrupted, INTERRUPTED, word)


@contextmanager
def drawing() -> Iterator[None]:
    """Raise Unusable where the block cannot make a picture."""
    try:
        yield
    except (ImportError, ValueError) as error:
        raise Unusable(str(error)) from error


def strip_control(text: str) -> "Text":
    """Return text that rich prints as it is, its terminal control characters replaced."""
    from rich.text import Text

    return Text(CONTROL_CHARACTERS.sub("\ufffd", text))
