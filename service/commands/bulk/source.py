"""The texts of a file: all checked before any is used, then read again in constant memory."""

import csv
import hashlib
import reprlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import chain, islice
from typing import Any, BinaryIO

import orjson
from pydantic import BaseModel, ConfigDict, TypeAdapter, ValidationError

from service.commands.bulk.text_file import DELIMITERS, TextFile
from service.commands.terminal import Unusable
from service.tables.wording.values import word_value_error

BATCH_TEXTS = 100  # whose digest is compared before any of them is used
LONGEST_BYTES = 16 * 1024 * 1024  # of one line; one without an end must not fill the memory
MOST_BLANKS = 10  # texts in a message
MOST_NAMES, LONGEST_NAME = 20, 40  # of columns in a message; characters of each

Texts = str | tuple[str, str]  # a text, or a pair of them


class TextLine(BaseModel):
    """A line of jsonl that is an object; its id is for people, since row i is line i."""

    model_config = ConfigDict(strict=True, extra="forbid")

    text: str
    pair: str | None = None
    id: str | int | None = None


LINE_ADAPTER: TypeAdapter[str | TextLine] = TypeAdapter(str | TextLine)  # of a line of jsonl


@dataclass(frozen=True, slots=True)
class Source:
    """A file whose texts were all checked, and what shows that they have not changed since.

    Args:
        sha256: of the whole file.
        lines: how many texts; a last line without an end counts.
        blanks: how many of them are blank, and the numbers of the first of these.
        digests: SHA-256 of all texts up to the end of each batch.
    """

    file: TextFile
    sha256: str
    lines: int
    blanks: tuple[int, Sequence[int]]
    digests: tuple[bytes, ...]

    def texts(self, start: int) -> Iterator[Texts]:
        """Read the texts after the first `start`.

        Raises:
            Failed: the file has changed; raised before any text of what changed is given.
        """
        return islice(self._unchanged_texts(), start, None)

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

    def word_blanks(self) -> str:
        """Say how many texts are blank and which are the first; empty if none is."""
        count, first = self.blanks
        if not count:
            return ""
        more = f" and {count - len(first):,} more" if count > len(first) else ""
        places = f"{self.file.unit}{'s' if count > 1 else ''} {', '.join(map(str, first))}{more}"
        if count == 1:
            return f"{self.file.name}: 1 text is blank: {places}"
        return f"{self.file.name}: {count:,} texts are blank, and are encoded alike: {places}"

    def _unchanged_texts(self) -> Iterator[Texts]:
        """Yield all texts, a batch only once its digest is what it was."""
        try:
            with _open_texts(self.file) as texts:
                batches = _digest_batches(texts)
                for (batch, digest), before in zip(batches, self.digests, strict=True):
                    if digest != before:
                        raise self.file.changed_error()
                    yield from batch
        except Unusable as error:
            raise self.file.changed_error() from error


def check_lines(file: TextFile, info: Mapping[str, Any]) -> Source:
    """Check every line of a file against the service's limits; return the checked file.

    Args:
        info: the answer of GET /info.

    Raises:
        Unusable: names the first line that cannot be encoded, as far as can be told here.
        OSError: the file cannot be read.
    """
    texts, lines, digests = _check_texts(file, info["limits"]["max_text_characters"]), 0, []
    count, first = 0, list[int]()
    for batch, digest in _digest_batches(texts):
        blanks = [lines + n for n, text in enumerate(batch, 1) if "".join(text).isspace()]
        count, first = count + len(blanks), [*first, *blanks][:MOST_BLANKS]
        lines += len(batch)
        digests.append(digest)
    if not lines:
        raise file.refusal(1, "the file is empty")
    return Source(file, file.digest(), lines, (count, first), tuple(digests))


def _digest_batches(texts: Iterable[Any]) -> Iterator[tuple[list[Any], bytes]]:
    """Yield texts in batches, the last one smaller, each with the digest of all so far."""
    texts, digest, batch = iter(texts), hashlib.sha256(), [None] * BATCH_TEXTS
    while len(batch) == BATCH_TEXTS:
        batch = list(islice(texts, BATCH_TEXTS))
        digest.update(orjson.dumps(batch))
        yield batch, digest.digest()


def _check_texts(file: TextFile, most: int) -> Iterator[Texts]:
    """Yield the texts of a file, each checked to have 1 to `most` characters."""
    with _open_texts(file) as each:
        for number, texts in enumerate(each, 1):
            for text in (texts,) if isinstance(texts, str | None) else texts:
                if not text:
                    raise file.refusal(number, f"the text is {'null' if text is None else 'empty'}")
                if len(text) > most:
                    why = f"the text has {len(text)} characters; the service takes at most {most}"
                    raise file.refusal(number, why)
            yield texts


@contextmanager
def _open_texts(file: TextFile) -> Iterator[Iterator[Any]]:
    """Yield the texts of a file, or None for a null; close it when they are left, however.

    Raises:
        Unusable: a line, record or row holds no text; raised by what is yielded.
    """
    if file.format == "parquet":
        from service.commands.bulk import parquet  # it needs pyarrow

        with closing(parquet.read_texts(file)) as rows:
            yield rows
        return
    with file.path.open("rb") as opened:
        lines = _read_lines(file, opened)
        if file.column is not None:
            yield _read_column(file, lines, file.column)
        elif file.format == "txt":
            yield (line.rstrip("\r\n") for line in lines)
        else:
            yield (_read_json_line(file, *line) for line in enumerate(lines, 1))


def _read_lines(file: TextFile, opened: BinaryIO) -> Iterator[str]:
    """Yield the lines of a file with their ends, the first without a byte order mark."""
    for number, raw in enumerate(iter(lambda: opened.readline(LONGEST_BYTES), b""), 1):
        if len(raw) == LONGEST_BYTES:
            raise file.refusal(number, f"longer than {LONGEST_BYTES} bytes", "line")
        try:
            yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
        except UnicodeDecodeError:
            raise file.refusal(number, "not UTF-8", "line") from None


def _read_column(file: TextFile, lines: Iterator[str], column: str) -> Iterator[str]:
    """Yield one column of every record that holds a text.

    Raises:
        Unusable: a record has not as many columns as the first: a comma may be part of its text.
    """
    csv.field_size_limit(LONGEST_BYTES)  # of the process, which reads one file
    records = csv.reader(lines, delimiter=DELIMITERS[file.format], strict=True)
    try:
        first = next(records, None)
        if first is None:
            return
        index = _find_column(file, column, first)
        texts = chain([first], records) if column.isdecimal() else records
        for number, record in enumerate(texts, 1):
            if len(record) != len(first):
                why = f"{len(record)} columns where the first row has {len(first)}"
                raise file.refusal(number, why)
            yield record[index]
    except csv.Error as error:
        raise file.refusal(records.line_num, f"not CSV: {error}", "line") from None


def _find_column(file: TextFile, column: str, first: list[str]) -> int:
    """Return the index of a column, named by its number from 1 or as in the first record."""
    count = first.count(column)
    if column.isdecimal():
        if int(column) <= len(first):
            return int(column) - 1
        why = f"there is no column {column}, only {len(first)}"
    elif count == 1:
        return first.index(column)
    else:
        why = f"{count} columns have the name {column!r}; there are {len(first)}"
    short = reprlib.Repr()  # the first row's cells may be texts
    short.maxlist, short.maxstring = MOST_NAMES, LONGEST_NAME
    raise file.refusal(1, f"{why}: {short.repr(first)}", "line")


def _read_json_line(file: TextFile, number: int, line: str) -> Texts:
    """Parse one line of jsonl into its text or pair."""
    try:
        entry = LINE_ADAPTER.validate_json(line)
    except ValidationError as error:
        raise file.refusal(number, _word_error(error)) from None
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
