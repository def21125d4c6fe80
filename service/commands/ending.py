"""How a command ends early: a line on stderr, and an exit status."""

import sys
from typing import IO, NoReturn

FAILED, USAGE, INTERRUPTED = 1, 2, 130


def tell(stream: IO[str], line: str) -> None:
    """Print a line now."""
    stream.write(f"{line}\n")  # at once, since others write there too
    stream.flush()


def refuse(line: str, status: int) -> NoReturn:
    """Leave with one line on stderr."""
    tell(sys.stderr, f"headlight: {' '.join(line.split())}")
    raise SystemExit(status)
