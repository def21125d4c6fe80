"""One column of CSV, read strictly: no record is guessed at.

Source: RFC 4180, whose records all have the same number of fields.
"""

import csv
from collections.abc import Iterable, Iterator
from itertools import chain

DELIMITERS = {"csv": ",", "tsv": "\t"}
ENDS = b"\r\n"
LONGEST_BYTES = 16 * 1024 * 1024  # of a line; one without an end must not fill the memory


class BadLine(Exception):
    """What cannot be encoded; the message is one line and names its number."""

    def __init__(self, number: int, why: str, unit: str = "line") -> None:
        super().__init__(f"{unit} {number}: {why}")


def cells(lines: Iterable[bytes], delimiter: str, column: str) -> Iterator[str]:
    """One column of every record.

    Args:
        column: a name in the first record, or a number from 1 where that holds a text too.

    Raises:
        BadLine: a record has not as many columns as the first: a comma may be part of its text.
    """
    records = _records(lines, delimiter)
    first = next(records, None)
    if first is None:
        return
    index = _index(first, column)
    texts = chain([first], records) if column.isdecimal() else records
    for number, record in enumerate(texts, 1):
        if len(record) != len(first):
            why = f"{len(record)} columns where the first row has {len(first)}"
            raise BadLine(number, why, "record")
        yield record[index]


def _index(first: list[str], column: str) -> int:
    """Where a column stands, by its number from 1 or its name in the first record."""
    if column.isdecimal():
        if int(column) > len(first):
            raise BadLine(1, f"there is no column {column}, there are {len(first)}")
        return int(column) - 1
    if first.count(column) != 1:
        raise BadLine(1, f"{first.count(column)} of {len(first)} columns have the name {column!r}")
    return first.index(column)


def _records(lines: Iterable[bytes], delimiter: str) -> Iterator[list[str]]:
    decoded = (_decoded(number, raw) for number, raw in enumerate(lines, 1))
    csv.field_size_limit(LONGEST_BYTES)  # of the process, which reads one file
    reader = csv.reader(decoded, delimiter=delimiter, strict=True)
    try:
        yield from reader
    except csv.Error as error:
        raise BadLine(reader.line_num, f"not CSV: {error}") from None


def _decoded(number: int, raw: bytes) -> str:
    """A line with its end, which a cell in quotes may hold."""
    return plain(number, raw) + raw[len(raw.rstrip(ENDS)) :].decode()


def plain(number: int, raw: bytes) -> str:
    """A line without its end.

    Raises:
        BadLine: it is no UTF-8.
    """
    try:
        return raw.rstrip(ENDS).decode()
    except UnicodeDecodeError:
        raise BadLine(number, "not UTF-8") from None
