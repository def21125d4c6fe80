"""A file of vectors that is written row by row and survives being interrupted.

    <out>.partial   safetensors: header (8 bytes of length, JSON), then the rows so far
    <out>           the same file once all rows are there; of .npy with NumPy's header in its place

The header is that of the finished file, so the file's own length says how far it came, nothing else
can disagree with it, and no reader of safetensors takes the partial file for a whole one.
Source of the layouts: safetensors' README, "Format"; numpy.lib.format.
"""

import fcntl
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import orjson
from numpy.lib.format import magic
from numpy.typing import NDArray

from headlight_client.formats import DTYPES, LENGTH_BYTES
from service.commands.terminal import Unusable

TENSOR_NAME = "pooled"  # of the file's only tensor
LONGEST_HEADER = 1 << 20  # bytes
PARTIAL_SUFFIX = ".partial"  # after the name of the output, until all rows are there
NPY_SUFFIX = ".npy"  # of an output in NumPy's format
PARQUET_SUFFIX = ".parquet"  # of a copy of the source with its vectors; see parquet.py
OUTPUT_SUFFIXES = (".safetensors", NPY_SUFFIX, PARQUET_SUFFIX)  # one of which an output has
SPARE_BYTES = 32  # of a header, for an origin that becomes longer
REMOVE_ADVICE = "remove it to start over, or choose another --out"  # ends messages
ALIGNED_BYTES = 64  # where rows may begin, as NumPy has it, so that they can be mapped to memory


class VectorFile:
    """A file of vectors, written row by row and resumed after an interruption; close it.

    Args:
        out: the finished file.
        count: rows of the finished file.
        origin: what the rows are made of and with; the same for all of them.
        kind: type of its numbers, as safetensors calls it.

    Raises:
        Unusable: the file already exists, or its partial file is another job's.
        OSError: it cannot be written.
    """

    def __init__(
        self,
        out: Path,
        count: int,
        origin: Mapping[str, str],
        kind: str = "F32",
    ) -> None:
        self._kind, self._dtype = kind, DTYPES[kind]
        self.out, self.partial = out, out.with_name(out.name + PARTIAL_SUFFIX)
        self.count, self.origin = count, dict(origin)
        if out.exists():
            raise Unusable(f"{out} already exists; remove it or choose another --out")
        self._file = open(os.open(self.partial, os.O_RDWR | os.O_CREAT, 0o666), "r+b")
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
            Unusable: they are not as wide as those before.
        """
        if not self._start:
            self._write_header(rows.shape[1])
        if rows.shape[1:] != (self._width,):
            raise Unusable(f"rows have {rows.shape[1]} numbers, those before {self._width}")
        self._file.write(np.ascontiguousarray(rows, self._dtype).tobytes())
        self._file.flush()
        os.fsync(self._file.fileno())
        self.rows += len(rows)

    def read(self) -> NDArray[Any]:
        """Return the rows so far, (rows, width), as the disk has them.

        They are of the open file: its lock lasts as long as they do.
        """
        return np.memmap(self._file, self._dtype, "r", self._start, (self.rows, self._width))

    def finish(self) -> None:
        """Rename the partial file to `out`, once it holds all rows."""
        if self.rows != self.count:
            raise RuntimeError(f"{self.rows} rows of {self.count}: this is a bug")
        if self.out.suffix == NPY_SUFFIX:
            self._file.seek(0)
            self._file.write(self._numpy_header())
            self._file.flush()
            os.fsync(self._file.fileno())
        os.replace(self.partial, self.out)
        folder = os.open(self.out.parent, os.O_RDONLY)
        os.fsync(folder)  # so that the new name, too, outlives a power cut
        os.close(folder)

    def _lock(self) -> None:
        """Lock the partial file, which one process at a time may write."""
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise Unusable(f"{self.partial} is being written by another process") from None

    def _resume(self) -> None:
        """Count the whole rows of the partial file, drop an incomplete one and seek to the end."""
        self.rows = self._width = self._start = 0
        size = os.fstat(self._file.fileno()).st_size
        first = self._file.read(LENGTH_BYTES)
        if first == magic(1, 0):
            raise Unusable(f"{self.partial} is finished: rename it to {self.out.name}")
        start = LENGTH_BYTES + int.from_bytes(first, "little")
        if size >= LENGTH_BYTES and start > LONGEST_HEADER:
            raise Unusable(f"{self.partial} is not a partial file of this command")
        if size >= max(start, LENGTH_BYTES + 1):
            self._start = start
            self._check_header(self._file.read(start - LENGTH_BYTES))
            self.rows = (size - start) // (self._width * self._dtype.itemsize)
        end = start + self.rows * self._width * self._dtype.itemsize if self._start else 0
        self._file.truncate(end)
        self._file.seek(end)

    def _check_header(self, header: bytes) -> None:
        """Compare what the rows so far are made of with what they should be made of.

        Where all texts so far fitted, their rows stay as they are if longer ones are now cut.
        """
        try:
            entries = orjson.loads(header)
            before, tensor = entries["__metadata__"], entries[TENSOR_NAME]
            (count, self._width), kind = tensor["shape"], tensor["dtype"]
        except (ValueError, KeyError, TypeError):
            raise Unusable(f"{self.partial} is not a partial file of this command") from None
        longest, most = before.get("max_tokens", ""), int(self.origin.get("max_tokens", 0))
        fitted = before.get("truncate") == "refuse" and longest.isdecimal() and int(longest) <= most
        cut = {"truncate", "max_tokens"} if fitted else set()
        for name, now in self.origin.items():
            if name not in cut and before.get(name) != now:
                raise self._wrong_job_error(f"{name} was {before.get(name)} and is {now}")
        if kind != self._kind:
            raise self._wrong_job_error(f"its numbers are {kind}, not {self._kind}")
        if count != self.count:
            raise self._wrong_job_error(f"it has {count} rows, not {self.count}")
        if before != self.origin:
            new_header = self._header(len(header))
            if len(new_header) != self._start:
                raise self._wrong_job_error("its header has no room for what has changed")
            self._file.seek(0)
            self._file.write(new_header)
            self._file.flush()

    def _wrong_job_error(self, difference: str) -> Unusable:
        """Return the error of a partial file whose rows are made of or with something else."""
        return Unusable(f"{self.partial} belongs to another job: {difference}; {REMOVE_ADVICE}")

    def _write_header(self, width: int) -> None:
        """Write the header, of rows of this width."""
        self._width = width
        header = self._header()
        self._start = len(header)
        self._file.write(header)

    def _header(self, length: int | None = None) -> bytes:
        """Return the finished file's header, with JSON of `length` bytes where that is enough."""
        end = self.count * self._width * self._dtype.itemsize
        shape = [self.count, self._width]
        tensor = {"dtype": self._kind, "shape": shape, "data_offsets": [0, end]}
        header = orjson.dumps({"__metadata__": self.origin, TENSOR_NAME: tensor})
        header = header.ljust(length or len(header) + SPARE_BYTES)
        header += b" " * (-(LENGTH_BYTES + len(header)) % ALIGNED_BYTES)
        return len(header).to_bytes(LENGTH_BYTES, "little") + header

    def _numpy_header(self) -> bytes:
        """Return NumPy's header, version 1.0, as long as the one it replaces."""
        shape = (self.count, self._width)
        facts = {"descr": self._dtype.str, "fortran_order": False, "shape": shape}
        length = self._start - LENGTH_BYTES - 2
        text = repr(facts).encode().ljust(length - 1) + b"\n"
        return magic(1, 0) + length.to_bytes(2, "little") + text
