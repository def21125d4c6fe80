"""A Parquet file of texts: its texts, and the same file with a column of vectors.

pyarrow, the package's extra parquet, is imported here alone.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import IO, Any

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
ORIGIN_KEY = "headlight"  # of the output's metadata: what made the vectors


def read_texts(file: TextFile) -> Iterator[str | None]:
    """Yield the texts of a file, or None for a null.

    Raises:
        Unusable: the file is no Parquet, or the column holds no text.
    """
    with _open(file) as source:
        for batch in source.iter_batches(TEXT_ROWS, columns=[file.column]):
            yield from batch[0].to_pylist()


def check_output(file: TextFile) -> None:
    """Check that a column of vectors can be added to a file.

    Raises:
        Unusable: it has such a column already.
    """
    with _open(file) as source:
        if VECTORS in source.schema_arrow.names:
            raise Unusable(f"{file.name} has a column {VECTORS!r} already")


def write_vectors(
    file: TextFile, origin: Mapping[str, str], out: IO[bytes], vectors: NDArray[Any]
) -> None:
    """Write a file again, with the vectors of its texts as one more column at the end.

    Args:
        origin: what made them, for the file's metadata; `source_sha256` is of the file.
        vectors: (rows, numbers); read as rows are written.

    Raises:
        Failed: the file is no longer that of the vectors.
        OSError: it cannot be written.
    """
    row = 0
    with _open(file) as source:
        empty = append_vectors(source.schema_arrow.empty_table(), VECTORS, vectors[:0])
        metadata = {**(empty.schema.metadata or {}), ORIGIN_KEY: orjson.dumps(dict(origin))}
        with pq.ParquetWriter(out, empty.schema.with_metadata(metadata)) as writer:
            for batch in source.iter_batches(GROUP_ROWS):
                rows = vectors[row : row + len(batch)]
                table = pa.Table.from_batches([batch.slice(0, len(rows))])  # fewer: it is refused
                writer.write_table(append_vectors(table, VECTORS, rows))
                row += len(batch)
    if file.digest() != origin["source_sha256"]:
        raise file.changed_error()


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
