"""A Parquet file of texts: its texts, and the same file with more columns.

pyarrow, the package's extra parquet, is imported here alone.
"""

from collections.abc import Callable, Generator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import IO, Any

import numpy as np
import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headlight_client.data import VECTORS, append_vectors, check_columns
from service.commands.bulk.text_file import TextFile
from service.commands.terminal import Unusable

TEXT_ROWS = 1000  # read at a time
GROUP_ROWS = 10_000  # read at a time with all columns, and written as a row group
READ_BYTES = 1024 * 1024  # of a column, at a time
STATES = "state"  # name of the column of texts that come from another format
FACTS = 4  # numbers of a question after its probabilities: choice, score, confidence, cut
ORIGIN_KEY = "headlight"  # of the output's metadata: what made the vectors


def read_texts(file: TextFile) -> Generator[str | None, None, None]:
    """Yield the texts of a file, or None for a null.

    Raises:
        Unusable: the file is no Parquet, or the column holds no text.
    """
    with _open(file) as source:
        for batch in source.iter_batches(TEXT_ROWS, columns=[file.column]):
            yield from batch[0].to_pylist()


def check_output(file: TextFile, names: Iterable[str] = (VECTORS,)) -> None:
    """Check that columns can be added to a file; to one of another format, next to its texts.

    Raises:
        Unusable: it has such a column already.
    """
    with _read_tables(file, ()) as (empty, _):
        for name in names:
            if name in empty.column_names:
                raise Unusable(f"{file.name} has a column {name!r} already")


def write_vectors(
    file: TextFile, origin: Mapping[str, str], out: IO[bytes], vectors: NDArray[Any]
) -> None:
    """Write a Parquet file again, with the vectors of its texts, (rows, numbers), at its end.

    Args, Raises: as `write_columns`.
    """
    write_columns(
        file, (), origin, lambda table, rows: append_vectors(table, VECTORS, rows), out, vectors
    )


def write_columns(
    file: TextFile,
    texts: Iterable[Any],
    origin: Mapping[str, str],
    append: Callable[[pa.Table, NDArray[Any]], pa.Table],
    out: IO[bytes],
    rows: NDArray[Any],
) -> None:
    """Write a file again as Parquet, with more columns at its end.

    Args:
        texts: those of a file of another format, as its column STATES.
        origin: what made the rows, for the file's metadata; `source_sha256` is of the file.
        append: returns a table with the columns of its rows, (the table's rows, numbers).
        rows: (rows, numbers); read as rows are written.

    Raises:
        Failed: the file is no longer that of the rows.
        OSError: it cannot be written.
    """
    row = 0
    with _read_tables(file, texts) as (empty, tables):
        schema = append(empty, rows[:0]).schema
        metadata = {**(schema.metadata or {}), ORIGIN_KEY: orjson.dumps(dict(origin))}
        with pq.ParquetWriter(out, schema.with_metadata(metadata)) as writer:
            for table in tables:
                own = rows[row : row + len(table)]
                writer.write_table(append(table.slice(0, len(own)), own))  # fewer: it is refused
                row += len(table)
    if file.digest() != origin["source_sha256"]:
        raise file.changed_error()


@dataclass(frozen=True, slots=True)
class QuestionColumn:
    """One question, and how the numbers of its answers become a column.

    Args:
        options: their names as answers have them.
        words: how many of the strongest words are kept.
    """

    name: str
    type: str
    options: Sequence[str]
    words: int

    @property
    def width(self) -> int:
        """Return how many numbers an answer takes."""
        return len(self.options) + FACTS + 3 * self.words

    def to_column(self, states: Sequence[str], rows: NDArray[Any]) -> pa.Array:
        """Return the answers about some states, (states, width), as a column of structs."""
        shares, facts, words = np.split(rows, np.cumsum([len(self.options), FACTS]), axis=1)
        choice, score, confidence, cut = facts.T
        fields: dict[str, Any] = {}
        match self.type:
            case "noul":
                fields["noul"] = shares[:, -1]
            case "choice":
                fields["choice"] = pa.array(self.options).take(pa.array(choice.astype(np.int64)))
            case _:
                fields["score"] = score
        if self.type != "noul":
            by_option = map(pa.array, shares.T)
            fields["confidence"] = confidence
            fields["probabilities"] = pa.StructArray.from_arrays([*by_option], [*self.options])
        fields["truncated"] = cut.astype(bool)
        if self.words:
            found = map(_find_words, states, words.reshape(len(rows), self.words, 3))
            fields["reason"] = pa.array([*found], WORDS)
        return pa.StructArray.from_arrays([*map(pa.array, fields.values())], [*fields])


WORDS = pa.list_(pa.struct({"text": pa.string(), "share": pa.float64()}))  # type of a reason


def _find_words(state: str, words: NDArray[Any]) -> list[dict[str, Any]]:
    """Return the words of a state by their characters and shares, (words, 3)."""
    kept = words[~np.isnan(words[:, 0])]
    return [{"text": state[int(a) : int(b)], "share": share} for a, b, share in kept]


def append_answers(
    columns: Sequence[QuestionColumn], states: str, table: pa.Table, rows: NDArray[Any]
) -> pa.Table:
    """Return a table with a column of answers for each question at its end.

    Args:
        states: name of the column of states.
        rows: (the table's rows, numbers).
    """
    texts, ends = table[states].to_pylist(), np.cumsum([column.width for column in columns])
    for column, numbers in zip(columns, np.split(rows, ends, axis=1), strict=False):
        table = table.append_column(column.name, column.to_column(texts, numbers))
    return table


@contextmanager
def _read_tables(
    file: TextFile, texts: Iterable[Any]
) -> Iterator[tuple[pa.Table, Iterator[pa.Table]]]:
    """Open a file; yield a table of all its columns without rows, and its rows in tables.

    Args:
        texts: of a file of another format, whose column is STATES.
    """
    if file.format == "parquet":
        with _open(file) as source:
            batches = source.iter_batches(GROUP_ROWS)
            yield source.schema_arrow.empty_table(), (pa.Table.from_batches([b]) for b in batches)
    else:
        rest, schema = iter(texts), pa.schema({STATES: pa.string()})
        parts = iter(lambda: list(islice(rest, GROUP_ROWS)), [])
        yield schema.empty_table(), (pa.table([part], schema) for part in parts)


@contextmanager
def _open(file: TextFile) -> Iterator[pq.ParquetFile]:
    """Open a file whose column of texts is there.

    Raises:
        Unusable: why it is not, or cannot be read; the message names the file.
    """
    try:
        # its default holds the raw bytes of all columns at once
        with pq.ParquetFile(file.path, pre_buffer=False, buffer_size=READ_BYTES) as source:
            check_columns(source.schema_arrow, file.column or "")  # TextFile.of asks for one
            yield source
    except UnicodeDecodeError as error:
        raise Unusable(f"{file.name}: the column {file.column!r} is not UTF-8") from error
    except ValueError as error:  # of pyarrow's too
        raise Unusable(f"{file.name}: {error}") from error
