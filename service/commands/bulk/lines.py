"""A file of texts, one a line: checked whole before it is used, then read again at no memory.

.txt            a line is a text
anything else   a line is JSON: a string, or {"text": .., "pair"?: .., "id"?: ..}
"""

import codecs
import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

LONGEST_BYTES = 16 * 1024 * 1024  # of a line; one without an end must not fill the memory
BLOCK_BYTES = 1024 * 1024  # of lines that are compared with what was checked before one is used
ENDS = b"\r\n"

Texts = str | tuple[str, str]  # a text, or a pair of them


class BadLine(Exception):
    """A line that cannot be encoded; the message is one line and names its number."""

    def __init__(self, number: int, why: str) -> None:
        super().__init__(f"line {number}: {why}")


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
class Source:
    """A file whose every line was checked.

    Args:
        sha256: of the whole file.
        lines: how many; a last one without an end counts.
        marks: the digest of all bytes up to the end of each block.
    """

    path: Path
    sha256: str
    lines: int
    marks: tuple[bytes, ...]

    def texts(self, start: int) -> Iterator[Texts]:
        """The texts after the first `start`.

        Raises:
            Changed: the file is another by now; said before any line of what changed.
        """
        marks = iter(self.marks)
        for block, mark in _blocks(self.path):
            if mark != next(marks, None):
                raise self._changed()
            for number, raw in block:
                if number > start:
                    yield _read(number, raw, self.path)
        if next(marks, None):
            raise self._changed()

    def _changed(self) -> Changed:
        return Changed(f"{self.path} was changed while it was read")


def check(path: Path, info: Mapping[str, Any]) -> Source:
    """Check every line of a file against what the service says it reads.

    Args:
        info: the answer of GET /info.

    Raises:
        BadLine: the first that cannot be encoded, as far as can be told here.
        OSError: the file cannot be read.
    """
    most = info["limits"]["max_text_characters"]
    marks, number = [], 0
    for block, mark in _blocks(path):
        marks.append(mark)
        for number, raw in block:
            _check_texts(number, _read(number, raw, path), most)
    if not number:
        raise BadLine(1, "there is none; the file is empty")
    return Source(path, marks[-1].hex(), number, tuple(marks))


def _check_texts(number: int, texts: Texts, most: int) -> None:
    """Refuse a line whose texts the service would not read."""
    for text in (texts,) if isinstance(texts, str) else texts:
        if not text:
            raise BadLine(number, "the text is empty")
        if len(text) > most:
            raise BadLine(number, f"{len(text)} characters, the service reads {most}")


def _blocks(path: Path) -> Iterator[tuple[list[tuple[int, bytes]], bytes]]:
    """The lines, each with its number from 1, some at a time; and the digest of all so far."""
    digest = hashlib.sha256()
    block: list[tuple[int, bytes]] = []
    size = 0
    for number, raw in _raw(path):
        digest.update(raw)
        block.append((number, raw.removeprefix(codecs.BOM_UTF8) if number == 1 else raw))
        size += len(raw)
        if size >= BLOCK_BYTES:
            yield block, digest.digest()
            block, size = [], 0
    if block:
        yield block, digest.digest()


def _raw(path: Path) -> Iterator[tuple[int, bytes]]:
    """Every line with its number, counted from 1."""
    with path.open("rb") as file:
        number = 0
        while raw := file.readline(LONGEST_BYTES):
            number += 1
            if len(raw) == LONGEST_BYTES:
                raise BadLine(number, f"longer than {LONGEST_BYTES} bytes")
            yield number, raw


def _read(number: int, raw: bytes, path: Path) -> Texts:
    """The text of a line, or the pair of texts."""
    if path.suffix == ".txt":
        try:
            return raw.rstrip(ENDS).decode()
        except UnicodeDecodeError:
            raise BadLine(number, "not UTF-8") from None
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
        return "not JSON"
    fields = [each for each in errors if len(each["loc"]) > 1]  # of an object, a field of it
    if not fields:
        return 'neither a string nor an object with "text"'
    return f"{fields[0]['loc'][1]}: {fields[0]['msg']}"
