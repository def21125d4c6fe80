"""A file of texts: checked whole before it is used, then read again at no memory.

txt         a line is a text
jsonl       a line is JSON: a string, or {"text": .., "pair"?: .., "id"?: ..}
csv, tsv    a record has a text in one column
"""

import codecs
import hashlib
import shutil
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryFile
from typing import Any, Literal, Self

import click
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from service.commands.bulk.columns import DELIMITERS, LONGEST_BYTES, BadLine, cells, plain

BLOCK_BYTES = 1024 * 1024  # of lines that are compared with what was checked before one is used

Format = Literal["jsonl", "txt", "csv", "tsv"]
Texts = str | tuple[str, str]  # a text, or a pair of them


class Changed(Exception):
    """The file is no longer what it was when it was checked."""


class Line(BaseModel):
    """A line that is an object; its id is for whoever wrote it: row i is line i."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str
    pair: str | None = None
    id: str | int | None = None


LINE: TypeAdapter[str | Line] = TypeAdapter(str | Line)


@dataclass(frozen=True, slots=True)
class File:
    """A file and how it holds its texts.

    Args:
        path: `-` is stdin.
        column: of csv and tsv alone: a name in the first record, or a number from 1 where the
            first record, too, holds a text.

    Raises:
        ValueError: the column is missing, or is none.
    """

    path: Path
    format: Format
    column: str | None = None

    def __post_init__(self) -> None:
        if self.column is None and self.format in DELIMITERS:
            raise ValueError(
                f"{self.name} needs --column: a name in its first row, "
                "or a number from 1 if its first row holds a text too"
            )
        if self.column is not None and self.format not in DELIMITERS:
            raise ValueError(f"--column is for csv and tsv; {self.name} is read as {self.format}")
        if self.column is not None and self.column.isdecimal() and int(self.column) == 0:
            raise ValueError("--column counts from 1")

    @classmethod
    def of(cls, path: Path, form: Format | None, column: str | None) -> Self:
        """A file in a format, by default the one its name ends in, or else JSON lines."""
        by_name: dict[str, Format] = {".txt": "txt", ".csv": "csv", ".tsv": "tsv"}
        return cls(path, form or by_name.get(path.suffix, "jsonl"), column)

    @property
    def name(self) -> str:
        """What messages call it."""
        return "stdin" if str(self.path) == "-" else str(self.path)

    @property
    def unit(self) -> str:
        """What holds a text, as messages count it."""
        return "record" if self.format in DELIMITERS else "line"

    @contextmanager
    def lasting(self, folder: Path) -> Iterator["File"]:
        """The file itself, or a copy of what can be read only once, such as a pipe.

        The copy lies in `folder` without a name: nothing of it outlives this process.
        """
        if self.path.is_file():
            yield self
            return
        with click.open_file(str(self.path), "rb") as pipe, TemporaryFile(dir=folder) as copy:
            shutil.copyfileobj(pipe, copy)
            copy.flush()
            yield replace(self, path=Path(f"/proc/self/fd/{copy.fileno()}"))

    def texts(self, lines: Iterable[bytes]) -> Iterator[Texts]:
        """The texts that lines of this format hold.

        Raises:
            BadLine: the first that holds none.
        """
        if self.column is not None:
            return cells(lines, DELIMITERS[self.format], self.column)
        read = plain if self.format == "txt" else _json
        return (read(number, raw) for number, raw in enumerate(lines, 1))


@dataclass(frozen=True, slots=True)
class Source:
    """A file whose every line was checked.

    Args:
        sha256: of the whole file.
        lines: how many texts; a last line without an end counts.
        marks: the digest of all bytes up to the end of each block.
    """

    file: File
    sha256: str
    lines: int
    marks: tuple[bytes, ...]

    def texts(self, start: int) -> Iterator[Texts]:
        """The texts after the first `start`.

        Raises:
            Changed: the file is another by now; said before any line of what changed.
        """
        return islice(self.file.texts(self._unchanged()), start, None)

    @property
    def origin(self) -> dict[str, str]:
        """What the texts are, in strings: equal ones are the same texts."""
        column = {} if self.file.column is None else {"source_column": self.file.column}
        return {
            "source_sha256": self.sha256,
            "source_lines": str(self.lines),
            "source_format": self.file.format,
            **column,
        }

    def _unchanged(self) -> Iterator[bytes]:
        marks = iter(self.marks)
        for block, mark in _blocks(self.file.path):
            if mark != next(marks, None):
                raise self._changed()
            yield from block
        if next(marks, None):
            raise self._changed()

    def _changed(self) -> Changed:
        return Changed(f"{self.file.path} was changed while it was read")


def check(file: File, info: Mapping[str, Any]) -> Source:
    """Check every line of a file against what the service says it reads.

    Args:
        info: the answer of GET /info.

    Raises:
        BadLine: the first that cannot be encoded, as far as can be told here.
        OSError: the file cannot be read.
    """
    most = info["limits"]["max_text_characters"]
    marks: list[bytes] = []
    number = 0
    for number, texts in enumerate(file.texts(_marked(file.path, marks)), 1):
        for text in (texts,) if isinstance(texts, str) else texts:
            if not text:
                raise BadLine(number, "the text is empty", file.unit)
            if len(text) > most:
                why = f"{len(text)} characters, the service reads {most}"
                raise BadLine(number, why, file.unit)
    if not number:
        raise BadLine(1, "there is none; the file is empty", file.unit)
    return Source(file, marks[-1].hex(), number, tuple(marks))


def _marked(path: Path, marks: list[bytes]) -> Iterator[bytes]:
    """The lines of a file; adds each block's digest to `marks`."""
    for block, mark in _blocks(path):
        marks.append(mark)
        yield from block


def _blocks(path: Path) -> Iterator[tuple[list[bytes], bytes]]:
    """The lines, some at a time; and the digest of all so far."""
    digest = hashlib.sha256()
    block: list[bytes] = []
    size = 0
    for number, raw in enumerate(_raw(path), 1):
        digest.update(raw)
        block.append(raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw)
        size += len(raw)
        if size >= BLOCK_BYTES:
            yield block, digest.digest()
            block, size = [], 0
    if block:
        yield block, digest.digest()


def _raw(path: Path) -> Iterator[bytes]:
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(LONGEST_BYTES):
            number += 1
            if len(raw) == LONGEST_BYTES:
                raise BadLine(number, f"longer than {LONGEST_BYTES} bytes")
            yield raw


def _json(number: int, raw: bytes) -> Texts:
    try:
        line = LINE.validate_json(raw)
    except ValidationError as error:
        raise BadLine(number, _why(error)) from None
    if isinstance(line, str):
        return line
    return line.text if line.pair is None else (line.text, line.pair)


def _why(error: ValidationError) -> str:
    """What is wrong with a line, without repeating it."""
    errors = error.errors(include_url=False, include_input=False)
    if errors[0]["type"] == "json_invalid":
        return "not JSON; --format txt, csv or tsv reads other files"
    fields = [each for each in errors if len(each["loc"]) > 1]  # of an object, a field of it
    if not fields:
        return 'neither a string nor an object with "text"'
    return f"{fields[0]['loc'][1]}: {fields[0]['msg']}"
