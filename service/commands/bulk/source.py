"""The texts of a file: all checked before any is used, then read again in constant memory."""

import csv
import hashlib
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from service.commands.bulk.text_file import DELIMITERS, TextFile
from service.commands.terminal import Failed, Unusable
from service.wording.values import word_value_error

BLOCK_BYTES = 1024 * 1024  # of lines whose digest is compared before any of them is used
LONGEST_BYTES = 16 * 1024 * 1024  # of one line; one without an end must not fill the memory
MOST_NAMES, LONGEST_NAME = 20, 40  # of columns in a message; characters of each

Texts = str | tuple[str, str]  # a text, or a pair of them


class TextLine(BaseModel):
    """A line of jsonl that is an object; its id is for people, since row i is line i."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str
    pair: str | None = None
    id: str | int | None = None


LINE_ADAPTER: TypeAdapter[str | TextLine] = TypeAdapter(str | TextLine)  # of a line of jsonl


class BadLine(Exception):
    """A line or record (`unit`) that cannot be encoded; the message has its number, and why."""

    def __init__(self, number: int, why: str, unit: str = "line") -> None:
        super().__init__(f"{unit} {number}: {why}")


@dataclass(frozen=True, slots=True)
class Source:
    """A file whose lines were all checked, and what shows that it has not changed since.

    Args:
        sha256: of the whole file; of parquet, of its texts.
        lines: how many texts; a last line without an end counts.
        digests: SHA-256 of all bytes, or texts, up to the end of each block.
    """

    file: TextFile
    sha256: str
    lines: int
    digests: tuple[bytes, ...]

    def texts(self, start: int) -> Iterator[Texts]:
        """Read the texts after the first `start`.

        Raises:
            Failed: the file has changed; raised before any line of what changed is given.
        """
        return islice(_parse_texts(self.file, self._unchanged_lines()), start, None)

    @property
    def origin(self) -> dict[str, str]:
        """Return what identifies the texts, as strings: digest, lines, format and column."""
        column = {} if self.file.column is None else {"source_column": self.file.column}
        return {
            "source_sha256": self.sha256,
            "source_lines": str(self.lines),
            "source_format": self.file.format,
            **column,
        }

    def _unchanged_lines(self) -> Iterator[Any]:
        """Yield the raw lines of the file, a block only once its digest is what it was."""
        digests = iter(self.digests)
        for block, digest in _read_blocks(self.file):
            if digest != next(digests, None):
                break
            yield from block
        else:
            if next(digests, None) is None:
                return
        raise Failed(f"{self.file.name} was changed while it was read")


def check_lines(file: TextFile, info: Mapping[str, Any]) -> Source:
    """Check every line of a file against the service's limits; return the checked file.

    Args:
        info: the answer of GET /info.

    Raises:
        Unusable: names the first line that cannot be encoded, as far as can be told here.
        OSError: the file cannot be read.
    """
    most, number = info["limits"]["max_text_characters"], 0
    digests: list[bytes] = []

    def hashed_lines() -> Iterator[Any]:
        """Yield the file's lines, and add each block's digest to `digests`."""
        for block, digest in _read_blocks(file):
            digests.append(digest)
            yield from block

    try:
        for number, texts in enumerate(_parse_texts(file, hashed_lines()), 1):
            for text in (texts,) if isinstance(texts, str | None) else texts:
                if text is None:
                    raise BadLine(number, "the text is null", file.unit)
                if not text:
                    raise BadLine(number, "the text is empty", file.unit)
                if len(text) > most:
                    why = f"the text has {len(text)} characters; the service takes at most {most}"
                    raise BadLine(number, why, file.unit)
        if not number:
            raise BadLine(1, "the file is empty", file.unit)
    except BadLine as error:
        raise Unusable(f"{file.name}: {error}") from error
    return Source(file, digests[-1].hex(), number, tuple(digests))


def _read_blocks(file: TextFile) -> Iterator[tuple[list[Any], bytes]]:
    """Yield what holds the texts of a file, a block at a time, with the digest of all so far."""
    if file.format == "parquet":
        from service.commands.bulk import parquet  # it needs pyarrow

        return parquet.read_blocks(file)
    return _read_lines(file.path)


def _read_lines(path: Path) -> Iterator[tuple[list[bytes], bytes]]:
    """Yield the lines of a file, a block at a time, with the digest of all bytes so far."""
    digest, block, size, number = hashlib.sha256(), list[bytes](), 0, 0
    with path.open("rb") as file:
        while raw := file.readline(LONGEST_BYTES):
            number += 1
            if len(raw) == LONGEST_BYTES:
                raise BadLine(number, f"longer than {LONGEST_BYTES} bytes")
            digest.update(raw)
            block.append(raw)
            size += len(raw)
            if size >= BLOCK_BYTES:
                yield block, digest.digest()
                block, size = [], 0
    if block:
        yield block, digest.digest()


def _parse_texts(file: TextFile, lines: Iterable[Any]) -> Iterator[Texts]:
    """Parse a file's raw lines, or the texts of its rows, into texts.

    Raises:
        BadLine: a line holds no text.
    """
    if file.format == "parquet":
        return iter(lines)
    decoded = (_decode_line(number, raw) for number, raw in enumerate(lines, 1))
    if file.column is not None:
        return _read_column(decoded, DELIMITERS[file.format], file.column)
    if file.format == "txt":
        return (line.rstrip("\r\n") for line in decoded)
    return (_read_json_line(number, line) for number, line in enumerate(decoded, 1))


def _decode_line(number: int, raw: bytes) -> str:
    """Decode a line, the first without a byte order mark."""
    try:
        return raw.decode("utf-8-sig" if number == 1 else "utf-8")
    except UnicodeDecodeError:
        raise BadLine(number, "not UTF-8") from None


def _read_column(lines: Iterable[str], delimiter: str, column: str) -> Iterator[str]:
    """Yield one column of every record that holds a text.

    Raises:
        BadLine: a record has not as many columns as the first: a comma may be part of its text.
    """
    csv.field_size_limit(LONGEST_BYTES)  # of the process, which reads one file
    records = csv.reader(lines, delimiter=delimiter, strict=True)
    try:
        first = next(records, None)
        if first is None:
            return
        index, is_numbered = _find_column(first, column), column.isdecimal()
        if is_numbered:
            yield first[index]
        for number, record in enumerate(records, 2 if is_numbered else 1):
            if len(record) != len(first):
                why = f"{len(record)} columns where the first row has {len(first)}"
                raise BadLine(number, why, "record")
            yield record[index]
    except csv.Error as error:
        raise BadLine(records.line_num, f"not CSV: {error}") from None


def _find_column(first: list[str], column: str) -> int:
    """Return the index of a column, named by its number from 1 or as in the first record."""
    if column.isdecimal():
        if int(column) > len(first):
            raise BadLine(1, f"there is no column {column}, only {_list_cells(first)}")
        return int(column) - 1
    if first.count(column) != 1:
        found = first.count(column)
        raise BadLine(
            1, f"{found} columns have the name {column!r}; there are {_list_cells(first)}"
        )
    return first.index(column)


def _list_cells(first: list[str]) -> str:
    """Write the number and the shortened names of a first row's cells, which may be texts."""
    names = [
        repr(name if len(name) <= LONGEST_NAME else f"{name[:LONGEST_NAME]}..") for name in first
    ]
    more = [f"{len(names) - MOST_NAMES} more"] if len(names) > MOST_NAMES else []
    return f"{len(names)}: {', '.join([*names[:MOST_NAMES], *more])}"


def _read_json_line(number: int, line: str) -> Texts:
    """Parse one line of jsonl into its text or pair."""
    try:
        entry = LINE_ADAPTER.validate_json(line)
    except ValidationError as error:
        raise BadLine(number, _word_error(error)) from None
    if isinstance(entry, str):
        return entry
    return entry.text if entry.pair is None else (entry.text, entry.pair)


def _word_error(error: ValidationError) -> str:
    """Say what is wrong with a line of jsonl, without repeating its content."""
    errors = error.errors(include_url=False, include_input=False)
    if errors[0]["type"] == "json_invalid":
        return "not JSON; --format txt, csv or tsv reads other files"
    fields = [fault for fault in errors if len(fault["loc"]) > 1]  # of an object, a field of it
    if not fields:
        return 'neither a string nor an object with "text"'
    return f"{fields[0]['loc'][1]} {word_value_error(fields[0])}"
