"""A file of vectors that is written row by row and survives being interrupted.

    <out>.partial/rows          the rows so far, one after the other
    <out>.partial/origin.json   what they are made of and with, and how wide they are
    <out>                       all rows, in the format that its suffix names

The rows' own length says how far they came, so nothing else can disagree with it.
Source of the layout of safetensors: its README, "Format".
"""

import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
import orjson
from numpy.typing import NDArray

from headlight_client.formats import DTYPES, LENGTH_BYTES, METADATA
from service.commands.terminal import Unusable

TENSOR_NAME = "pooled"  # of the file's only tensor
PARTIAL_SUFFIX = ".partial"  # after the name of the output, until all rows are there
ROWS, ORIGIN, WRITING = "rows", "origin.json", "writing"  # files of the partial folder
NPY_SUFFIX = ".npy"  # of an output in NumPy's format
PARQUET_SUFFIX = ".parquet"  # of a copy of the source with its vectors; see parquet.py
OUTPUT_SUFFIXES = (".safetensors", NPY_SUFFIX, PARQUET_SUFFIX)  # one of which an output has
REMOVE_ADVICE = "remove it to start over, or choose another --out"  # ends messages
ALIGNED_BYTES = 64  # where rows may begin, as NumPy has it, so that they can be mapped to memory

Write = Callable[[IO[bytes], NDArray[Any]], None]  # writes an output of all rows, (rows, width)


class VectorFile:
    """A file of vectors, written row by row and resumed after an interruption; close it.

    Args:
        out: the finished file.
        count: rows of the finished file.
        origin: what the rows are made of and with; the same for all of them.

    Raises:
        Unusable: the file already exists, or its partial folder is another job's.
        OSError: it cannot be written.
    """

    def __init__(self, out: Path, count: int, origin: Mapping[str, str]) -> None:
        self.out, self.partial = out, out.with_name(out.name + PARTIAL_SUFFIX)
        self.count, self.origin, self.rows = count, dict(origin), 0
        if out.exists():
            raise Unusable(f"{out} already exists; remove it or choose another --out")
        self.partial.mkdir(exist_ok=True)
        if not {*os.listdir(self.partial)} <= {ROWS, ORIGIN, WRITING}:
            raise Unusable(f"{self.partial} is not of this command")
        self._file = (self.partial / ROWS).open("a+b")
        try:
            self._lock()
            self._resume()
        except BaseException:
            self._file.close()
            raise

    def close(self) -> None:
        """Close the file, which keeps the rows so far."""
        self._file.close()

    def append(self, rows: NDArray[Any]) -> None:
        """Append rows, (rows, width), and wait until the disk has them.

        Raises:
            Unusable: they are not as wide as those before, or of another type.
        """
        row = np.dtype((rows.dtype.newbyteorder("<"), rows.shape[1:]))
        if not self.rows:
            self._row = row
            self._write_origin()
        if row != self._row:
            raise Unusable(f"rows are {row}, those before {self._row}")
        self._file.write(rows.astype(row.base).tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += len(rows)

    def read(self) -> NDArray[Any]:
        """Return the rows so far, (rows, width), as the disk has them.

        They are of the open file: its lock lasts as long as they do.
        """
        return np.memmap(self._file, self._row.base, "r", 0, (self.rows, *self._row.shape))

    def finish(self, write: Write | None = None) -> None:
        """Write `out` of all rows, then remove the partial folder.

        Args:
            write: writes its content; None: as its suffix says.
        """
        if self.rows != self.count:
            raise RuntimeError(f"{self.rows} rows of {self.count}: this is a bug")
        with self._whole_file(self.out) as file:
            (write or self._write)(file, self.read())
        shutil.rmtree(self.partial)

    def _write(self, file: IO[bytes], rows: NDArray[Any]) -> None:
        """Write rows, (rows, width), in NumPy's format or that of safetensors."""
        if self.out.suffix == NPY_SUFFIX:
            np.save(file, rows)
            return
        (kind,) = (name for name, dtype in DTYPES.items() if dtype == rows.dtype)
        tensor = {"dtype": kind, "shape": rows.shape, "data_offsets": [0, rows.nbytes]}
        header = orjson.dumps({METADATA: self.origin, TENSOR_NAME: tensor})
        header += b" " * (-(LENGTH_BYTES + len(header)) % ALIGNED_BYTES)
        file.write(len(header).to_bytes(LENGTH_BYTES, "little") + header)
        rows.tofile(file)

    @contextmanager
    def _whole_file(self, path: Path) -> Iterator[IO[bytes]]:
        """Yield a file that gets this path once the disk has all of it."""
        writing = self.partial / WRITING
        with writing.open("wb") as file:
            yield file
            file.flush()
            os.fsync(file.fileno())
        os.replace(writing, path)
        folder = os.open(path.parent, os.O_RDONLY)
        os.fsync(folder)  # so that the new name, too, outlives a power cut
        os.close(folder)

    def _lock(self) -> None:
        """Lock the rows, which one process at a time may write."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable(f"{self.partial} is being written by another process") from None

    def _resume(self) -> None:
        """Count the whole rows so far, and drop an incomplete one."""
        size = os.fstat(self._file.fileno()).st_size
        if size:
            stored = orjson.loads((self.partial / ORIGIN).read_bytes())
            self._check_origin(stored["origin"])
            self._row = np.dtype((stored["dtype"], tuple(stored["shape"])))
            self.rows = size // self._row.itemsize
            self._file.truncate(self.rows * self._row.itemsize)
            self._write_origin()

    def _check_origin(self, before: Mapping[str, str]) -> None:
        """Compare what the rows so far are made of with what they should be made of.

        Where all texts so far fitted, their rows stay as they are if longer ones are now cut.
        """
        longest, most = (int(origin.get("max_tokens", 0)) for origin in (before, self.origin))
        fitted = before.get("truncate") == "refuse" and longest <= most
        for name in {**before, **self.origin}:
            then, now = (origin.get(name, "not given") for origin in (before, self.origin))
            if then != now and not (fitted and name in ("truncate", "max_tokens")):
                why = f"{name} was {then} and is {now}"
                raise Unusable(f"{self.partial} belongs to another job: {why}; {REMOVE_ADVICE}")

    def _write_origin(self) -> None:
        """Write what the rows are and are made of, whole or not at all."""
        row = {"dtype": self._row.base.str, "shape": self._row.shape}
        with self._whole_file(self.partial / ORIGIN) as file:
            file.write(orjson.dumps({"origin": self.origin, **row}))
