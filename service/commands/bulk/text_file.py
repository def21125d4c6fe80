"""A file of texts, its format, and the column that holds them.

txt         a line is a text
jsonl       a line is JSON: a string, or {"text": .., "pair"?: .., "id"?: ..}
csv, tsv    a record has a text in one column; all records have as many columns (RFC 4180)
parquet     a row has a text in one column
"""

import hashlib
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryFile
from typing import Literal, Self, get_args

import click

from service.commands.terminal import Failed, Unusable

DELIMITERS = {"csv": ",", "tsv": "\t"}  # of columns, by format
UNITS = {"csv": "record", "tsv": "record", "parquet": "row"}  # what holds a text; else a line
PYARROW_MISSING = "pyarrow is missing (the package's extra parquet): pip install pyarrow"

Format = Literal["jsonl", "txt", "csv", "tsv", "parquet"]  # of a file of texts


def check_pyarrow() -> None:
    """Check that Parquet can be read and written.

    Raises:
        Unusable: pyarrow is missing.
    """
    if find_spec("pyarrow") is None:
        raise Unusable(PYARROW_MISSING)


@dataclass(frozen=True, slots=True)
class TextFile:
    """A file of texts and its format.

    Args:
        path: `-` is stdin.
        name: what messages call the file.
        column: of parquet a name; of csv and tsv a name in the first record, or a number from 1
            where the first record, too, holds a text; else None.
    """

    path: Path
    name: str
    format: Format
    column: str | None

    @classmethod
    def of(cls, path: Path, form: Format | None, column: str | None) -> Self:
        """Return a path with its format, which its suffix names unless `form` is given.

        Raises:
            Unusable: the column is missing or not valid, or pyarrow is missing.
        """
        by_name: dict[str, Format] = {f".{known}": known for known in get_args(Format)}
        form = form or by_name.get(path.suffix.lower(), "jsonl")
        name = "stdin" if str(path) == "-" else str(path)
        if form == "parquet":
            if column is None:
                raise Unusable(f"{name} needs --column: the name of a column")
            check_pyarrow()
        elif column is None and form in DELIMITERS:
            raise Unusable(
                f"{name} needs --column: a name in its first row, "
                "or a number from 1 if its first row holds a text too"
            )
        elif column is not None and form not in DELIMITERS:
            raise Unusable(f"--column is for csv, tsv and parquet; {name} is read as {form}")
        elif column is not None and column.isdecimal() and int(column) == 0:
            raise Unusable("--column counts from 1")
        return cls(path, name, form, column)

    @property
    def unit(self) -> str:
        """Return what messages call the part of the file that holds a text: record, row or line."""
        return UNITS.get(self.format, "line")

    def refusal(self, number: int, why: str, unit: str | None = None) -> Unusable:
        """Return the error of a part of the file that cannot be encoded, by its number from 1."""
        return Unusable(f"{self.name}: {unit or self.unit} {number}: {why}")

    def changed_error(self) -> Failed:
        """Return the error of a file that is no longer what it was."""
        return Failed(f"{self.name} was changed while it was read")

    def digest(self) -> str:
        """Return the SHA-256 of the whole file, in hexadecimal."""
        with self.path.open("rb") as file:
            return hashlib.file_digest(file, "sha256").hexdigest()

    @contextmanager
    def as_regular_file(self, folder: Path) -> Iterator["TextFile"]:
        """Yield the file, or a temporary copy of what can be read only once, such as a pipe.

        The copy lies in `folder` without a name: it does not outlive this process.
        """
        if self.path.is_file():
            yield self
            return
        with click.open_file(str(self.path), "rb") as pipe, TemporaryFile(dir=folder) as copy:
            shutil.copyfileobj(pipe, copy)
            copy.flush()
            yield replace(self, path=Path(f"/proc/self/fd/{copy.fileno()}"))
