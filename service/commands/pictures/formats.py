"""What a picture can be written as, and whether one can be made here."""

from pathlib import Path

FORMATS = (".png", ".svg")
MISSING = "matplotlib is missing (the package's extra plot): pip install matplotlib"
DPI = 160


class CannotDraw(Exception):
    """A picture of this kind cannot be made here; the message is one line."""


def check(path: Path) -> None:
    """See that a picture can be made, before anything is measured for it.

    Raises:
        CannotDraw: the file's name ends in none of FORMATS, or matplotlib is missing.
    """
    if path.suffix.lower() not in FORMATS:
        raise CannotDraw(f"{path.name}: a picture's name ends in {' or '.join(FORMATS)}")
    try:
        import matplotlib  # noqa: F401  # whether it is there
    except ImportError as error:
        raise CannotDraw(MISSING) from error
