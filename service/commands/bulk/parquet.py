"""A Parquet file of texts: its texts in batches, and the same file with a column of vectors.

pyarrow, the package's extra parquet, is imported here alone.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import orjson
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from headlight_client.data import VECTORS, append_vectors, check_columns
from service.commands.bulk.text_file import TextFile
from service.commands.terminal import Failed, Unusable

TEXT_ROWS = 1000  # read at a time
GROUP_ROWS = 10_000  # read at a time with all columns, and written as a row group
READ_BYTES = 1024 * 1024  # of a column, at a time
WRITING_SUFFIX = ".writing"  # after the name of the output, until all of it is there
ORIGIN_KEY = "headlight"  # of the output's metadata: what made the vectors


def read_blocks(file: TextFile) -> Iterator[tuple[list[str | None], bytes]]:
    """Yield the texts of a file, some at a time, with the digest of all texts so far.

    Raises:
        Unusable: the file is no Parquet, or the column holds no text.
    """
    digest = hashlib.sha256()
    for batch in _read_batches(file, TEXT_ROWS, [_column(file)]):
        texts = _read_texts(batch, file)
        for part in _write_texts(texts):
            digest.update(part)
        yield texts, digest.digest()


def check_output(file: TextFile) -> None:
    """Check that a column of vectors can be added to a file.

    Raises:
        Unusable: it has such a column already.
    """
    with _open(file) as source:
        if VECTORS in source.schema_arrow.names:
            raise Unusable(f"{file.name} has a column {VECTORS!r} already")


def write_vectors(
    file: TextFile, vectors: NDArray[Any], origin: Mapping[str, str], out: Path
) -> None:
    """Write a file again, with the vectors of its texts as one more column at the end.

    Args:
        vectors: (rows, numbers); read as rows are written.
        origin: what made them, for the file's metadata; `source_sha256` is of the texts.

    Raises:
        Failed: the texts are no longer those of the vectors.
        OSError: it cannot be written.
    """
    writing, digest, row = out.with_name(out.name + WRITING_SUFFIX), hashlib.sha256(), 0
    with _open(file) as source:
        empty = append_vectors(source.schema_arrow.empty_table(), VECTORS, vectors[:0])
    metadata = {**(empty.schema.metadata or {}), ORIGIN_KEY: orjson.dumps(dict(origin))}
    try:
        with pq.ParquetWriter(writing, empty.schema.with_metadata(metadata)) as writer:
            for batch in _read_batches(file, GROUP_ROWS):
                for part in _write_texts(_read_texts(batch, file)):
                    digest.update(part)
                rows = vectors[row : row + len(batch)]
                writer.write_table(append_vectors(batch, VECTORS, rows))
                row += len(batch)
        if digest.hexdigest() != origin["source_sha256"]:
            raise Failed(f"{file.name} was changed while it was read")
        with writing.open("rb") as written:
            os.fsync(written.fileno())
        os.replace(writing, out)
    finally:
        writing.unlink(missing_ok=True)


def _column(file: TextFile) -> str:
    """Return the name of the column of texts, which a Parquet file always has."""
    if file.column is None:
        raise RuntimeError("Parquet without a column: this is a bug")
    return file.column


def _open(file: TextFile) -> pq.ParquetFile:
    """Open a file whose column of texts is there.

    Raises:
        Unusable: why it is not; the message names the file.
    """
    try:
        # its default holds the raw bytes of all columns at once
        opened = pq.ParquetFile(file.path, pre_buffer=False, buffer_size=READ_BYTES)
        check_columns(opened.schema_arrow, _column(file))
    except ValueError as error:  # of pyarrow's too
        raise Unusable(f"{file.name}: {error}") from error
    return opened


def _read_batches(
    file: TextFile, rows: int, columns: list[str] | None = None
) -> Iterator[pa.Table]:
    """Yield the rows of a file, some at a time; of these columns, or of all."""
    with _open(file) as source:
        try:
            for batch in source.iter_batches(rows, columns=columns):
                yield pa.Table.from_batches([batch])
        except pa.ArrowInvalid as error:
            raise Unusable(f"{file.name}: {error}") from error


def _read_texts(batch: pa.Table, file: TextFile) -> list[str | None]:
    """Return the texts of a batch."""
    try:
        texts: list[str | None] = batch[_column(file)].to_pylist()
    except UnicodeDecodeError as error:
        raise Unusable(f"{file.name}: the column {file.column!r} is not UTF-8") from error
    return texts


def _write_texts(texts: Sequence[str | None]) -> Iterator[bytes]:
    """Yield texts for a digest, each after its length; null as empty, since it ends the job."""
    for text in texts:
        raw = (text or "").encode()
        yield len(raw).to_bytes(8, "little") + raw
